#!/usr/bin/python3
"""ONNX's own backend suite (Debian: libonnx-testdata) through the importer and the reference
interpreter.

Every file ends in a result or in a refusal that says why; nothing crashes. Of the tests of single
operators (`node`) at least FLOOR compute the stored outputs from the stored inputs, and none
computes others, but for those that EXPECTED names. Whole numbers that operators take as inputs in
the suite (shapes, axes, ...) are stored in the file where the importer wants them known.

    onnx_suite_test.py [--refused] [PART...]

lists refusals by operator; parts of names choose tests. Without any it is every third one, all with WINDLASS_THOROUGH
(make test-slow).
"""

import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SUITE = pathlib.Path("/usr/share/libonnx-testdata/data")
try:
    import numpy
    import onnx
    from onnx import numpy_helper
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if not SUITE.is_dir():
    print("skipped: libonnx-testdata is not installed")
    sys.exit(77)

TOOL = os.environ.get("WINDLASS_RUN_REFERENCE", "build/release/bin/windlass_run_reference")
FLOOR = 770
# Computed otherwise on purpose.
EXPECTED = re.compile(
    # Windlass trains: dropout is on, batch norms take the statistics of the batch.
    r"test_(batchnorm_|dropout_.*_old|training_dropout"
    # Other random numbers.
    r"|bernoulli"
    # Python reads no 16-bit numbers of this type.
    r"|cast(like)?_.*BFLOAT16"
    # A mean over a window that reaches beyond the padding does not count what is there, as in PyTorch.
    r"|averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True"
    # Corners are those of whole sizes, as in PyTorch, also where a scale gives a fraction.
    r"|resize_downsample_scales_(cubic|linear)_align_corners)")
# Unsigned numbers of 16 and 32 bits are held as wider signed ones.
WIDER = {numpy.dtype("uint16"): "int32", numpy.dtype("uint32"): "int64",
         numpy.dtype("uint64"): "int64"}


def load_tensor(path):
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def stored(folder, kind, count):
    """The tensors of the first data set; None where one is missing or is no tensor."""
    found = []
    for i in range(count):
        try:
            found.append(load_tensor(folder / "test_data_set_0" / f"{kind}_{i}.pb"))
        except Exception:
            return None
    return found


def bake(model, inputs, which):
    """A copy of the model that has some of its inputs as initializers."""
    baked = onnx.ModelProto()
    baked.CopyFrom(model)
    del baked.graph.input[:]
    rest = []
    for value, array in zip(model.graph.input, inputs):
        if which(array):
            baked.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            baked.graph.input.append(value)
            rest.append(array)
    return baked, rest


def run(path, inputs):
    with tempfile.TemporaryDirectory() as folder:
        for i, array in enumerate(inputs):
            array = numpy.ascontiguousarray(array.astype(WIDER.get(array.dtype, array.dtype)))
            pathlib.Path(folder, f"input.{i}").write_bytes(array.tobytes())
        done = subprocess.run([TOOL, "--no-loss", "--as-exported", str(path), folder],
                              capture_output=True, text=True, timeout=120)
        outputs = []
        if done.returncode == 0:
            for i, line in enumerate(done.stdout.splitlines()[2:]):
                shape = [int(size) for size in line.split()]
                outputs.append(numpy.fromfile(f"{folder}/output.{i}").reshape(shape))
        return done, outputs


def same(a, b):
    if a.shape != b.shape:
        return False
    if b.dtype == object or b.dtype.kind in "US":
        return False
    wide = b.astype(numpy.float64)
    rough = 2e-2 if b.dtype == numpy.float16 else 1e-3
    return numpy.allclose(a, wide, rtol=rough, atol=1e-5, equal_nan=True)


def try_node(folder):
    """(outcome, message): ok, refused, differs or crashed."""
    path = folder / "model.onnx"
    model = onnx.load(str(path))
    names = [value.name for value in model.graph.input]
    inputs = stored(folder, "input", len(names))
    outputs = stored(folder, "output", len(model.graph.output))
    if inputs is None or outputs is None:
        done, _ = run(path, [])
        return ("refused" if done.returncode == 1 else "crashed"), done.stderr
    first = next((a for a in inputs if a.dtype.kind == "f"), inputs[0] if inputs else None)
    attempts = [lambda array: False, lambda array: array.dtype.kind in "iub",
                lambda array: array is not first, lambda array: True]
    done = None
    with tempfile.TemporaryDirectory() as temporary:
        for attempt in attempts:
            baked, rest = bake(model, inputs, attempt)
            file = pathlib.Path(temporary, "model.onnx")
            file.write_bytes(baked.SerializeToString())
            done, found = run(file, rest)
            if done.returncode not in (0, 1):
                return "crashed", f"{done.returncode}: {done.stderr}"
            if done.returncode == 0:
                good = len(found) == len(outputs) and all(map(same, found, outputs))
                return ("ok" if good else "differs"), f"{found} instead of {outputs}"
            if "depends on the data" not in done.stderr and "missing" not in done.stderr:
                break
    return "refused", done.stderr


def try_file(folder):
    """Whether a larger file is read; the message if it is not."""
    done, _ = run(folder / "model.onnx", [])
    read = done.returncode == 0 or "input.0: cannot read" in done.stderr
    if done.returncode not in (0, 1):
        return "crashed", f"{done.returncode}: {done.stderr}"
    return ("ok" if read else "refused"), done.stderr


def operators(folder):
    model = onnx.load(str(folder / "model.onnx"))
    return "+".join(sorted({node.op_type for node in model.graph.node}))[:40]


def one(folder):
    outcome, message = try_node(folder) if folder.parent.name == "node" else try_file(folder)
    if outcome == "refused" and "internal error" in message:
        outcome = "crashed"
    return folder, outcome, message


def main():
    arguments = sys.argv[1:]
    listing = "--refused" in arguments
    parts = [a for a in arguments if not a.startswith("--")]
    folders = sorted(path.parent for path in SUITE.glob("*/*/model.onnx"))
    folders = [f for f in folders if not parts or any(part in str(f) for part in parts)]
    every = 1 if parts or "WINDLASS_THOROUGH" in os.environ else 3
    folders = folders[::every]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(one, folders))
    counts = collections.Counter((f.parent.name, outcome) for f, outcome, _ in results)
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:20} {outcome:8} {count}")
    refused = collections.defaultdict(list)
    failures = []
    for folder, outcome, message in results:
        if outcome == "refused":
            refused[operators(folder)].append((folder.name, message))
            if not re.search(r"\w", message):
                failures.append(f"{folder.name}: refused without a word")
        elif outcome == "crashed" or (outcome == "differs" and not EXPECTED.match(folder.name)):
            failures.append(f"{folder.name}: {outcome}: {message[:400 if not listing else 4000]}")
    if listing:
        for name, entries in sorted(refused.items(), key=lambda entry: -len(entry[1])):
            print(f"{len(entries):4} {name}")
            for test, message in entries if parts else entries[:2]:
                print(f"       {test}: {' '.join(message.split())[-230:]}")
    matching = counts["node", "ok"]
    if not parts and matching < FLOOR // every:
        failures.append(f"{matching} node tests compute what is stored, expected {FLOOR // every}")
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
