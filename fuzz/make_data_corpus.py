#!/usr/bin/env python3
"""Writes the seed corpus of the data and safetensors fuzz targets: fuzz/corpus/data/ and
fuzz/corpus/safetensors/. Usage: make_data_corpus.py [FOLDER]
"""

import json
import struct
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "corpus"
WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def write(target, name, content):
    path = FOLDER / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def safetensors(name, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write("safetensors", name, struct.pack("<Q", len(text)) + text + data)


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def checkpoint(name, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor, dtype, shape in tensors:
        size = WIDTHS[dtype]
        for length in shape:
            size *= length
        header[tensor] = entry(dtype, shape, end, end + size)
        end += size
    safetensors(name, header, bytes(end))


def headers():
    checkpoint("two_tensors", [("a", "F32", [2, 2]), ("b", "BF16", [])])
    checkpoint("all_types", [(dtype, dtype, [0, 7] if dtype == "I16" else [1]) for dtype in WIDTHS])
    safetensors("overlap", {"a": entry("I8", [2], 0, 2), "b": entry("I8", [2], 1, 3)}, bytes(3))
    safetensors("overflow", {"a": entry("F64", [2**32, 2**32], 0, 0)}, b"")
    safetensors("empty", {}, b"")
    # The model that the target knows.
    layer = "model.layers.0."
    experts = [(f"{layer}block_sparse_moe.experts.{i}.w{k}.weight", "BF16", [2, 2])
               for i in range(2) for k in (1, 2, 3)]
    matrices = [(f"{layer}self_attn.{p}_proj.weight", "F32", [2, 2]) for p in "qkvo"]
    norms = [(f"{layer}{n}_layernorm.weight", "F32", [2]) for n in ("input", "post_attention")]
    mixtral = [("model.embed_tokens.weight", "F32", [4, 2]), ("lm_head.weight", "F32", [4, 2]),
               ("model.norm.weight", "F16", [2]), (f"{layer}block_sparse_moe.gate.weight", "F32", [2, 2]),
               *experts, *matrices, *norms]
    checkpoint("mixtral", mixtral)
    checkpoint("mixtral_without_prefix", [(name.removeprefix("model."), *rest) for name, *rest in mixtral])


def data():
    write("data", "text", bytes([0, 8, 0]) + b"Some text that is longer than a sample.")
    write("data", "tokens_16", bytes([1, 6, 0]) + struct.pack("<20H", *range(0, 6000, 300)))
    write("data", "tokens_32", bytes([2, 7, 0]) + struct.pack("<12I", *range(12)))
    write("data", "cifar", bytes([3, 0, 0]) + (bytes([7]) + bytes(3072)) * 2)
    labels = struct.pack(">II", 0x801, 3) + bytes([1, 2, 3])
    begin = bytes([4, 0, len(labels)]) + labels
    write("data", "mnist", begin + struct.pack(">IIII", 0x803, 3, 2, 2) + bytes(12))
    write("data", "mnist_overflow", begin + struct.pack(">IIII", 0x803, *[2**32 - 1] * 3))


headers()
data()
