"""The program windlass_run_training as a service that survives its own end."""

import json
import pathlib
import struct
import subprocess
import threading

import numpy

PATIENCE = 900  # seconds after which a model hangs
TYPES = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64, "I32": numpy.int32, "BOOL": numpy.bool_}


def write_safetensors(path, tensors):
    """The format in a few lines: a length, a JSON header, bytes."""
    names = {numpy.dtype(v): k for k, v in TYPES.items()}
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(numpy.ascontiguousarray(tensor).tobytes())


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = numpy.frombuffer(data[8 + size + begin:8 + size + end], TYPES[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


class Service:
    def __init__(self, program, threads=1):
        self.command, self.process = [program, str(threads)], None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process.stderr.close()
            self.process = None

    def run(self, request):
        """Results by strategy, each as the program said, with "file"; or {"error", "message"}. The key None:
        the model as a whole was refused."""
        results, left = {}, list(request["strategies"])
        while left:
            count = len(results)
            out = pathlib.Path(request["out"]) / str(count)
            out.mkdir()
            died = self.ask({**request, "strategies": left, "out": str(out)}, results, out)
            if died is None:
                break
            results[died] = {"error": "crash", "message": self.last_words}
            if died is None or died not in left:
                results[None] = results.pop(died)
                break
            left = left[left.index(died) + 1:]
        return results

    def ask(self, request, results, out):
        """The strategy that ended the process, or None."""
        if self.process is None:
            self.start()
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        running = ""
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            for text in self.process.stdout:
                line = json.loads(text)
                if "begin" in line:
                    running = line["begin"]
                elif "end" in line:
                    results[line["end"]] = line
                    if line["end"] is not None:
                        line["out"] = str(out)
                        line["file"] = str(out / f"{request['strategies'].index(line['end'])}.safetensors")
                elif "model" in line:
                    return None
        except BrokenPipeError:
            pass
        finally:
            watchdog.cancel()
        code = self.process.wait()
        self.last_words = f"ended with {code}: {self.process.stderr.read()[-300:]}"
        self.process = None
        return running
