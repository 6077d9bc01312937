#!/usr/bin/env python3
"""The outside oracle: a forward of llama-family GGUF files in NumPy, float32, over weights decoded by the PyPI package `gguf`.

It shares no code, no data layout and no order of sums with the engine, and nothing in it is tuned: tests compare the engine's
logits with it. Needs `pip install gguf numpy`.

    numpy_llama.py MODEL.gguf TOKENS.txt LOGITS.bin     TOKENS.txt: one chunk of token ids a line

Logits files hold one record per chunk: int32 n_tokens, int32 vocabulary, then float32 logits (n_tokens, vocabulary).
"""
import struct
import sys

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize


class NumpyLlama:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.get("general.architecture")
        if self.architecture not in ("llama", "qwen2"):
            raise ValueError(f"general.architecture is {self.architecture}")
        self.layers = self.setting("block_count")
        self.hidden = self.setting("embedding_length")
        self.heads = self.setting("attention.head_count")
        self.kv_heads = self.setting("attention.head_count_kv", self.heads)
        self.head_dim = self.setting("attention.key_length", self.hidden // self.heads)
        self.epsilon = numpy.float32(self.setting("attention.layer_norm_rms_epsilon"))
        self.rotary_dims = self.setting("rope.dimension_count", self.head_dim)
        self.embedding = self.weight("token_embd.weight")
        self.head = self.weight("output.weight") if "output.weight" in self.tensors else self.embedding
        self.vocabulary = self.embedding.shape[0]

    def get(self, key, default=None):
        field = self.fields.get(key)
        return default if field is None else field.contents()

    def setting(self, key, default=None):
        return self.get(f"{self.architecture}.{key}", default)

    def weight(self, name):
        """(rows, columns), or (columns) for a vector, float32."""
        tensor = self.tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32).reshape(tensor.shape[::-1])

    def linear(self, x, name):
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

    def norm(self, x, name):
        mean_square = numpy.mean(x * x, axis=-1, keepdims=True, dtype=numpy.float32)
        return x / numpy.sqrt(mean_square + self.epsilon) * self.weight(name)

    def rope_frequencies(self):
        """Radians per position (pairs), and the amplitude of cos and sin; in float64."""
        dims, base = self.rotary_dims, float(self.setting("rope.freq_base", 10000.0))
        own = base ** (-numpy.arange(0, dims, 2, dtype=numpy.float64) / dims)
        if "rope_freqs.weight" in self.tensors:
            own = own / self.weight("rope_freqs.weight").astype(numpy.float64)
        kind = self.setting("rope.scaling.type", "linear")
        factor = float(self.setting("rope.scaling.factor", self.setting("rope.scale_linear", 1.0)))
        amplitude = float(self.setting("rope.scaling.attn_factor", 1.0))
        if kind == "none":
            return own, amplitude
        if kind == "linear":
            return own / factor, amplitude
        context = self.setting("rope.scaling.original_context_length", self.setting("context_length"))
        fast = float(self.setting("rope.scaling.yarn_beta_fast", 32.0))
        slow = float(self.setting("rope.scaling.yarn_beta_slow", 1.0))

        def pair_of(turns):
            return dims * numpy.log(context / (turns * 2 * numpy.pi)) / (2 * numpy.log(base))

        low = max(numpy.floor(pair_of(fast)), 0)
        high = min(numpy.ceil(pair_of(slow)), dims - 1)
        ramp = numpy.clip((numpy.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
        return own / factor * ramp + own * (1 - ramp), amplitude * (0.1 * numpy.log(factor) + 1)

    def rotate(self, x, cos, sin):
        """x (tokens, heads, head_dim): pairs are neighbours for llama files, halves for qwen2."""
        dims = self.rotary_dims
        adjacent = self.architecture == "llama"
        first = numpy.s_[..., 0:dims:2] if adjacent else numpy.s_[..., : dims // 2]
        second = numpy.s_[..., 1:dims:2] if adjacent else numpy.s_[..., dims // 2 : dims]
        out = x.copy()
        out[first] = x[first] * cos - x[second] * sin
        out[second] = x[first] * sin + x[second] * cos
        return out

    def attend(self, q, k, v):
        """q (tokens, heads, head_dim), k and v (tokens, kv_heads, head_dim) -> (tokens, heads * head_dim)."""
        tokens = q.shape[0]
        group = self.heads // self.kv_heads
        k, v = numpy.repeat(k, group, axis=1), numpy.repeat(v, group, axis=1)
        scores = numpy.einsum("ihd,jhd->hij", q, k) / numpy.float32(numpy.sqrt(self.head_dim))
        scores[:, numpy.triu(numpy.ones((tokens, tokens), dtype=bool), 1)] = -numpy.inf
        weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return numpy.einsum("hij,jhd->ihd", weights, v).reshape(tokens, -1)

    def layer(self, x, index, cos, sin):
        name = f"blk.{index}."
        h = self.norm(x, name + "attn_norm.weight")
        q, k, v = (self.linear(h, name + part).reshape(len(x), -1, self.head_dim) for part in ("attn_q", "attn_k", "attn_v"))
        x = x + self.linear(self.attend(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v), name + "attn_output")
        h = self.norm(x, name + "ffn_norm.weight")
        gate, up = self.linear(h, name + "ffn_gate"), self.linear(h, name + "ffn_up")
        return x + self.linear(gate / (1 + numpy.exp(-gate)) * up, name + "ffn_down")

    def logits(self, tokens):
        """(tokens, vocabulary), float32; positions count from 0."""
        frequencies, amplitude = self.rope_frequencies()
        angles = numpy.arange(len(tokens), dtype=numpy.float64)[:, None] * frequencies
        cos, sin = (numpy.float32(f(angles) * amplitude)[:, None, :] for f in (numpy.cos, numpy.sin))
        x = self.embedding[numpy.asarray(tokens)]
        for index in range(self.layers):
            x = self.layer(x, index, cos, sin)
        return self.norm(x, "output_norm.weight") @ self.head.T


def read_tokens(path):
    with open(path) as lines:
        return [[int(word) for word in line.split()] for line in lines if line.strip() and not line.startswith("#")]


def write_logits(path, chunks):
    with open(path, "wb") as file:
        for logits in chunks:
            file.write(struct.pack("<ii", *logits.shape))
            file.write(logits.astype("<f4").tobytes())


def read_logits(path):
    chunks = []
    with open(path, "rb") as file:
        while header := file.read(8):
            tokens, vocabulary = struct.unpack("<ii", header)
            data = file.read(4 * tokens * vocabulary)
            chunks.append(numpy.frombuffer(data, dtype="<f4").reshape(tokens, vocabulary))
    return chunks


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    oracle = NumpyLlama(sys.argv[1])
    write_logits(sys.argv[3], (oracle.logits(tokens) for tokens in read_tokens(sys.argv[2])))
