#!/usr/bin/python3
"""Whether importing an ONNX file keeps its mathematics.

Small models are exported by PyTorch, with and without its constant folding, and run by windlass's
slow reference interpreter: as the file has them, with fusion, and with parameters restored. All
must agree with what PyTorch computes, to 1e-4 of the largest value of each output. Restored, the
parameters are as many as PyTorch has; fused, the ops are those that the case names.

Arguments choose cases by the beginning of their names; without any, each case has one of its files, folded and not
by turns, and all with WINDLASS_THOROUGH (make test-slow).
"""

import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import parity_cases
    from export_torchvision import EXPORT_ERRORS, reached_parameters, write_onnx
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOLERANCE = 1e-4

# How the importer is asked to read the file.
READINGS = [["--as-exported", "--no-fuse"], ["--as-exported"], []]


def randomize(module):
    """Values that no initialiser has, so that nothing is equal by accident."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(generator=generator)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2, generator=generator)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0


def export(case, module, path, opset, folding):
    options = {}
    if case.axes:
        names = [f"in{i}" for i in range(len(case.inputs))]
        options = {"input_names": names, "dynamic_axes": dict(zip(names, case.axes))}
    write_onnx(module, case.inputs, path, opset, folding, **options)


def dimensions(case):
    inputs = case.run or case.inputs
    return [f"{name}={inputs[i].shape[axis]}"
            for i, axes in enumerate(case.axes) for axis, name in axes.items()]


def run_reference(program, path, folder, flags):
    result = subprocess.run([program, *flags, path, folder], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(result.stderr.strip())
    parameters, ops, *shapes = result.stdout.splitlines()
    shapes = [[int(size) for size in line.split()] for line in shapes]
    return {
        "parameters": int(parameters),
        "ops": {kind: int(count) for kind, count in (op.split("=") for op in ops.split())},
        "outputs": [numpy.fromfile(folder / f"output.{i}").reshape(shape)
                    for i, shape in enumerate(shapes)],
    }


def compare_outputs(expected, found):
    if len(expected) != len(found):
        raise AssertionError(f"{len(found)} outputs, expected {len(expected)}")
    for i, (want, have) in enumerate(zip(expected, found)):
        if want.shape != have.shape:
            raise AssertionError(f"output {i} is {have.shape}, expected {want.shape}")
        if not numpy.isfinite(have).all():
            raise AssertionError(f"output {i} is not finite")
        error = abs(want - have).max() / max(abs(want).max(), 1e-6)
        if error > TOLERANCE:
            raise AssertionError(f"output {i} differs by {error:.2g} of its largest value")


def compare_structure(case, flags, parameters, found):
    if "--no-fuse" not in flags:
        for kind, count in case.ops.items():
            if found["ops"].get(kind, 0) != count:
                raise AssertionError(f"{found['ops'].get(kind, 0)} ops {kind}, expected {count}")
    if not flags and found["parameters"] != parameters:
        raise AssertionError(f"{found['parameters']} parameters, expected {parameters}")


def check(case, program, folder, turn=None):
    """Returns what failed, a line each; of one of the files of the case, if it is `turn`'s."""
    torch.manual_seed(0)
    module = case.make()
    randomize(module)
    module.train(case.mode == "train")
    inputs = case.run or case.inputs
    for i, tensor in enumerate(inputs):
        tensor.contiguous().numpy().tofile(folder / f"input.{i}")
    outputs = module(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    expected = [t.detach().double().numpy() for t in outputs]
    parameters = sum(p.numel() for p in reached_parameters(outputs))
    failures = []
    files = list(itertools.product(case.opsets, [True, False]))
    for opset, folding in files if turn is None else [files[turn % len(files)]]:
        path = folder / "model.onnx"
        label = f"{case.name} at opset {opset}{'' if folding else ' unfolded'}"
        try:
            export(case, module, path, opset, folding)
        except EXPORT_ERRORS as error:
            failures.append(f"{label}: PyTorch cannot export it: {str(error).splitlines()[0]}")
            continue
        # Networks are read to be trained: a batch norm of evaluation that the exporter has not folded away
        # (PyTorch 2 leaves it if folding is off) takes the statistics of the batch.
        if case.mode != "train" and b"BatchNormalization" in path.read_bytes():
            continue
        for flags in READINGS:
            if not flags and not case.restorable:
                continue
            try:
                found = run_reference(program, path, folder, flags + dimensions(case))
                compare_outputs(expected, found["outputs"])
                compare_structure(case, flags, parameters, found)
            except AssertionError as error:
                failures.append(f"{' '.join([label, *flags])}: {error}")
    return failures


def main():
    program = os.environ.get("WINDLASS_RUN_REFERENCE", "build/release/bin/windlass_run_reference")
    chosen = [c for c in parity_cases.all_cases()
              if len(sys.argv) == 1 or c.name.startswith(tuple(sys.argv[1:]))]
    failures = []
    whole = sys.argv[1:] or "WINDLASS_THOROUGH" in os.environ
    for number, case in enumerate(chosen):
        with tempfile.TemporaryDirectory(prefix="windlass-") as folder:
            found = check(case, program, pathlib.Path(folder), None if whole else number)
        print(f"{case.name}: {'FAILED' if found else 'agrees'}", flush=True)
        for failure in found:
            print(f"  {failure}", flush=True)
        failures += found
    print(f"{len(chosen)} models, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
