"""Blocks of the types that forge repacks or dequantizes, and their values by gguf-py: PYTHONPATH=gguf-py python blocks.py

A file has RANDOM blocks of any bytes whose scales are sane, their values, and then blocks with every point of the format,
each followed by the FNV-1a hash of its values. gguf-py of llama.cpp 0c1e57098 does not read Q1_0 and Q2_0: their values are
written from the definition in ggml-quants.c. `python blocks.py --sets` prints the sets in src/checkpoint/ggml/grid.rs.
"""

import pathlib
import sys

import gguf
import numpy

RANDOM = 3
# Where the halves of a block are; bytes that are not halves are any.
HALVES = {
    "Q2_K": [80, 82], "Q3_K": [108], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
    "IQ1_M": [], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [], "Q1_0": [0], "Q2_0": [0],
}
# Codes in a block, and the function that stores a code: the blocks of every code.
CODES = {"IQ2_XXS": 32, "IQ2_XS": 32, "IQ2_S": 32, "IQ3_XXS": 64, "IQ3_S": 64, "IQ1_S": 32, "IQ1_M": 32}


def store(name, block, at, code):
    """Makes a code the one at this place of a block."""
    low, high = code & 255, code >> 8
    if name == "IQ2_XXS":
        block[2 + at // 4 * 8 + at % 4] = low
    elif name == "IQ2_XS":
        block[2 + 2 * at], block[3 + 2 * at] = low, int(block[3 + 2 * at]) & 0xFE | high
    elif name == "IQ2_S":
        block[2 + at], place = low, 66 + at // 4
        block[place] = int(block[place]) & ~(3 << at % 4 * 2) & 255 | high << at % 4 * 2
    elif name == "IQ3_XXS":
        block[2 + at] = low
    elif name == "IQ3_S":
        block[2 + at], place = low, 66 + at // 8
        block[place] = int(block[place]) & ~(1 << at % 8) & 255 | high << at % 8
    elif name == "IQ1_S":
        block[2 + at] = low
        words = block[34:50].view(numpy.uint16)
        words[at // 4] = int(words[at // 4]) & ~(7 << at % 4 * 3) & 0xFFFF | high << at % 4 * 3
    elif name == "IQ1_M":
        block[at], place = low, 32 + at // 2
        block[place] = int(block[place]) & ~(7 << at % 2 * 4) & 255 | high << at % 2 * 4


def values(name, blocks, kind):
    halves = blocks[:, :2].copy().view(numpy.float16).astype(numpy.float32)
    if name == "Q1_0":
        bits = numpy.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
        return numpy.where(bits == 1, halves, -halves)
    if name == "Q2_0":
        pairs = blocks[:, 2:, None] >> numpy.array([0, 2, 4, 6], dtype=numpy.uint8) & 3
        return (pairs.reshape(len(blocks), -1).astype(numpy.float32) - 1) * halves
    return gguf.quants.dequantize(blocks, kind)


def fnv(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % (1 << 64)
    return state


def sets():
    for name in ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"]:
        kind = getattr(gguf.quants, name)
        kind.init_grid()
        points = numpy.array(kind.grid).reshape(kind.grid_shape)
        digits = sorted(set(points.ravel()))
        numbers = (numpy.searchsorted(digits, points) * len(digits) ** numpy.arange(points.shape[1])).sum(1)
        assert (numpy.diff(numbers) > 0).all()
        bits = numpy.zeros(-(-len(digits) ** points.shape[1] // 8) * 8, numpy.uint8)
        bits[numbers] = 1
        print(name, numpy.packbits(bits, bitorder="little").tobytes().hex())


if sys.argv[1:] == ["--sets"]:
    sys.exit(sets())
random = numpy.random.default_rng(2)
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    grid = getattr(getattr(gguf.quants, name, None), "grid_shape", (0, 0))
    further = -(-grid[0] // CODES[name]) if name in CODES else 0
    blocks = random.integers(0, 256, (RANDOM + further, size), dtype=numpy.uint8)
    for place in halves:
        half = random.normal(0, 1e-2, (len(blocks), 1)).astype(numpy.float16)
        blocks[:, place : place + 2] = half.view(numpy.uint8)
    if name == "IQ1_M":
        # d is a little more than 1/64: 0x2401.
        for at, nibble in enumerate([1, 0, 4, 2]):
            blocks[:, 49 + 2 * at] = blocks[:, 49 + 2 * at] & 15 | nibble << 4
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 120]
    if name == "NVFP4":
        blocks[:, :4] = [[0, 1, 127, 126], [128, 60, 255, 8], [7, 56, 33, 20]]
    for code in range(grid[0]):
        store(name, blocks[RANDOM + code // CODES[name]], code % CODES[name], code)
    made = values(name, blocks, kind).astype("<f4")
    file = blocks[:RANDOM].tobytes() + made[:RANDOM].tobytes()
    for block, numbers in zip(blocks[RANDOM:], made[RANDOM:]):
        file += block.tobytes() + fnv(numbers.tobytes()).to_bytes(8, "little")
    pathlib.Path(__file__).with_name(f"{name.lower()}.bin").write_bytes(file)
