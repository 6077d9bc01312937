"""The oracle with a cache: numpy_llama.py, with keys (after RoPE) and values passed through a format of the KV cache and back.

What the formats cost by themselves, for the rest stays float32: beside it an engine's own figures tell what its kernels add. Shares no
code with the engine. The pairs that tbq4x keeps come from 64 random tokens of this module's own, not the engine's.
"""
import numpy

from numpy_llama import NumpyLlama

HALF_LEVELS = (6, 18, 31, 44, 58, 75, 96, 127)
LEVELS = numpy.float32([-level for level in reversed(HALF_LEVELS)] + list(HALF_LEVELS))
THRESHOLDS = numpy.float32((LEVELS[1:] + LEVELS[:-1]) / 2 * 2.7325896 / 127)
SAMPLE_TOKENS = 64


def q8_0(x):
    """32 values and a scale; the last axis, as in all of these, is head_dim."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    return through_int8(blocks).reshape(x.shape)


def through_int8(x):
    largest = numpy.abs(x).max(axis=-1, keepdims=True)
    codes = numpy.rint(x * (127 / numpy.where(largest == 0, numpy.float32(1), largest)))
    return codes * numpy.float32(numpy.float16(largest / 127))


def signs(count):
    state, out = 0, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        word = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        out.append(-1 if (word ^ word >> 31) >> 63 else 1)
    return numpy.float32(out)


def rotation(n):
    """(n, n), orthogonal: the Walsh-Hadamard matrix after the signs, over sqrt(n)."""
    matrix = numpy.ones((1, 1))
    while len(matrix) < n:
        matrix = numpy.block([[matrix, matrix], [matrix, -matrix]])
    return numpy.float32(matrix / numpy.sqrt(n)) * signs(n)


def tbq4(x):
    n = 64 if x.shape[-1] == 64 else 128
    blocks = x.reshape(*x.shape[:-1], -1, n)
    length = numpy.sqrt((blocks * blocks).sum(axis=-1, keepdims=True))
    turn = rotation(n)
    unit = blocks @ turn.T * numpy.sqrt(n, dtype=numpy.float32) / numpy.where(length == 0, numpy.float32(1), length)
    levels = LEVELS[numpy.searchsorted(THRESHOLDS, unit)]
    scale = length * (unit * levels).sum(axis=-1, keepdims=True) / (levels * levels).sum(axis=-1, keepdims=True) / numpy.sqrt(n)
    return (levels * numpy.float32(numpy.float16(scale)) @ turn).reshape(x.shape).astype(numpy.float32)


def f16(x):
    return numpy.float32(numpy.float16(x))


FORMATS = {"f16": f16, "q8_0": q8_0, "tbq4": tbq4}


class NumpyLlamaKv(NumpyLlama):
    def __init__(self, path, key_type, value_type):
        super().__init__(path)
        self.key_type, self.value_type = key_type, value_type
        self.index = 0
        self.sampling, self.kept = False, []  # per layer (kv_heads, head_dim): whether the dimension is kept apart
        if key_type == "tbq4x":
            self.sampling = True
            self.logits(numpy.random.default_rng(0).integers(self.vocabulary, size=SAMPLE_TOKENS))
            self.sampling = False

    def layer(self, x, index, cos, sin):
        self.index = index
        return super().layer(x, index, cos, sin)

    def greatest_pairs(self, k):
        if self.architecture != "llama":
            raise ValueError("tbq4x is done for pairs of neighbours only")
        energies = (k * k).reshape(*k.shape[:-1], -1, 2).sum(axis=(0, 3))  # (kv_heads, head_dim / 2)
        chosen = numpy.argsort(-energies, axis=-1, kind="stable")[:, : self.head_dim // 16]
        kept = numpy.zeros_like(energies, dtype=bool)
        numpy.put_along_axis(kept, chosen, True, axis=-1)
        return numpy.repeat(kept, 2, axis=-1)

    def attend(self, q, k, v):
        if self.sampling:
            self.kept.append(self.greatest_pairs(k))
            return super().attend(q, k, v)
        if self.key_type == "tbq4x":
            kept = self.kept[self.index]
            k = numpy.where(kept, through_int8(numpy.where(kept, k, 0)), tbq4(numpy.where(kept, 0, k)))
        else:
            k = FORMATS[self.key_type](k)
        return super().attend(q, k, FORMATS[self.value_type](v))
