#!/usr/bin/env python3
"""Writes blocks.bin: blocks of every tensor type and the floats that the PyPI package `gguf` decodes them to.

Run in a virtual environment with `pip install gguf numpy`. The result depends on nothing but this file.

    file:   "TRQG" | types u32 | per type: type u32 | rows u32 | values per row u32 | bytes per row u32 | rows | floats
    NaN:    written as 0x7fc00000, since its sign and payload depend on the CPU
"""
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Type: offsets of its f16 scale and minimum within a block (None: it has none).
SCALES = {
    T.Q4_0: (0, None), T.Q4_1: (0, 2), T.Q5_0: (0, None), T.Q5_1: (0, 2), T.Q8_0: (0, None),
    T.Q2_K: (80, 82), T.Q3_K: (108, None), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208, None),
    T.IQ4_NL: (0, None), T.IQ4_XS: (0, None), T.MXFP4: (None, None),
    T.F32: (None, None), T.F16: (None, None), T.BF16: (None, None),
}
# +0, -0, the smallest and largest subnormals, 1, -1, +-65504, infinities, quiet and signalling NaN
EXTREME_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFD01]
EXTREME_EXPONENTS = [0, 1, 2, 3, 127, 128, 253, 254, 255]


def put_half(block: np.ndarray, offset: int | None, bits: int) -> None:
    if offset is not None:
        block[offset:offset + 2] = [bits & 0xFF, bits >> 8]


def tame(rng: np.random.Generator) -> int:
    """The bits of a scale as real files have them, of either sign."""
    return int(np.float16(rng.normal() * 0.01).view(np.uint16))


def quantized_blocks(kind: T, rng: np.random.Generator) -> np.ndarray:
    size = GGML_QUANT_SIZES[kind][1]
    scale, minimum = SCALES[kind]
    blocks = []
    for _ in range(4):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        put_half(block, scale, tame(rng))
        put_half(block, minimum, tame(rng))
        blocks.append(block)
    for fill in (0x00, 0xFF):  # all codes and sub-scales at their bounds
        block = np.full(size, fill, dtype=np.uint8)
        put_half(block, scale, 0x3801)
        put_half(block, minimum, 0xB9FF)
        blocks.append(block)
    if kind == T.MXFP4:
        for exponent in EXTREME_EXPONENTS:
            block = rng.integers(0, 256, size, dtype=np.uint8)
            block[0] = exponent
            blocks.append(block)
        return np.stack(blocks)
    for index, half in enumerate(EXTREME_HALVES):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        put_half(block, scale, half)
        put_half(block, minimum, EXTREME_HALVES[(index * 5 + 2) % len(EXTREME_HALVES)])
        blocks.append(block)
    return np.stack(blocks)


def blocks_of(kind: T, rng: np.random.Generator) -> np.ndarray:
    if kind in (T.F16, T.BF16):
        random = rng.integers(0, 1 << 16, 116, dtype=np.uint16)
        return np.concatenate([random, np.array(EXTREME_HALVES, dtype=np.uint16)]).view(np.uint8).reshape(2, -1)
    if kind == T.F32:
        return rng.normal(size=64).astype(np.float32).view(np.uint8).reshape(2, -1)
    return quantized_blocks(kind, rng)


def main() -> None:
    rng = np.random.Generator(np.random.PCG64(20240229))
    out = [b"TRQG", struct.pack("<I", len(SCALES))]
    for kind in sorted(SCALES):
        rows = np.ascontiguousarray(blocks_of(kind, rng))
        with np.errstate(all="ignore"):
            floats = np.ascontiguousarray(dequantize(rows, kind), dtype=np.float32)
        bits = floats.view(np.uint32).copy()
        bits[np.isnan(floats)] = 0x7FC00000
        out.append(struct.pack("<IIII", kind, rows.shape[0], floats.shape[1], rows.shape[1]))
        out.append(rows.tobytes())
        out.append(bits.astype("<u4").tobytes())
    pathlib.Path(__file__).with_name("blocks.bin").write_bytes(b"".join(out))


if __name__ == "__main__":
    main()
