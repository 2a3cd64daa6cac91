"""Superblocks as ggml stores them, and the numbers that its own readers make of them: python make.py libggml-base.so

Needs numpy and the gguf package (https://github.com/ggml-org/llama.cpp, gguf-py), and ggml as a shared library. A file has
RANDOM superblocks of any bytes whose halves are sane, and then NORMAL that ggml's quantizer makes of a normal distribution;
after them the numbers of all, as gguf reads them, and last the numbers that the quantizer was given.
"""

import ctypes
import pathlib
import sys

import gguf
import numpy

RANDOM, NORMAL, COLUMNS = 3, 4, 256
# Where the halves of a superblock are.
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}

library = ctypes.CDLL(sys.argv[1])
random = numpy.random.default_rng(1)
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(0, 256, (RANDOM, size), dtype=numpy.uint8)
    for place in halves:
        half = random.normal(0, 1e-3, (RANDOM, 1)).astype(numpy.float16)
        blocks[:, place : place + 2] = half.view(numpy.uint8)
    given = random.normal(0, 0.02, NORMAL * COLUMNS).astype(numpy.float32)
    made = numpy.zeros((NORMAL, size), dtype=numpy.uint8)
    quantize = getattr(library, f"quantize_row_{name.lower()[:2]}_K_ref")
    quantize(given.ctypes.data_as(ctypes.c_void_p), made.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(given.size))
    blocks = numpy.concatenate([blocks, made])
    numbers = gguf.quants.dequantize(blocks, kind)
    assert numbers.dtype == numpy.float32 and numbers.size == (RANDOM + NORMAL) * COLUMNS
    file = pathlib.Path(__file__).with_name(f"{name.lower()}.bin")
    file.write_bytes(blocks.tobytes() + numbers.astype("<f4").tobytes() + given.astype("<f4").tobytes())
