#!/usr/bin/python3
"""Runs what README.md and docs/ tell their readers to type, and holds what is printed against what stands there.

A block of code with lines "$ command" is a transcript: each is run, and the lines below it must be printed in this order ("..."
stands for any). "```python NAME" is a file. What is measured on this host, or found by a search against the clock, is run and not compared.
The tutorial runs in an empty folder; README's first screen in another one, with a module of the test's own, as a newcomer would do it. Links
must lead somewhere.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

from event_reader import read_events

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.abspath(os.environ.get("WINDLASS_PROGRAM", "build/release/windlass"))
THOROUGH = os.environ.get("WINDLASS_THOROUGH", "0") not in ("", "0")
failures = []
ran = 0


def check(what, condition):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def blocks(text):
    """(what stands behind the fence, lines)"""
    return [(head.strip(), body.splitlines()) for head, body in re.findall(r"^```(.*)\n([\s\S]*?)^```$", text, re.M)]


def transcripts(lines):
    """(command, lines that follow it)"""
    found = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


known = {}  # what pages say twice is run once


def run(command, folder, expected=0):
    global ran
    if command in known:
        return known[command]
    ran += 1
    words = shlex.split(command, comments=True)
    words[0] = {"windlass": PROGRAM, "python3": sys.executable}[words[0]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900)
    check(f"{command}: exit {done.returncode}\n{done.stderr}", done.returncode == expected)
    if not is_measured(command):
        known[command] = done.stdout + done.stderr
    return done.stdout + done.stderr


def compare(command, printed, expected):
    """Lines in order; after "..." anything may come before the next one."""
    lines, at, free = printed.splitlines(), 0, False
    for line in expected:
        if line == "..." or line.strip() == "...":
            free = True
            continue
        while free and at < len(lines) and line.strip() not in lines[at]:
            at += 1
        here = lines[at] if at < len(lines) else "(the end)"
        if line.strip() not in here or (not free and line.rstrip() != here.rstrip()):
            check(f"{command}\n  is said to print: {line}\n  but prints:       {here}", False)
            return
        at, free = at + 1, False


def is_measured(command):
    """On this host, or by a search that a clock ends."""
    words = command.split()
    return words[0] != "windlass" or "local" in words or words[1] in ("train", "compare", "report", "explain", "check", "export") or (
        words[1] == "plan" and "pase" not in words)


def is_long(command):
    return command.split()[1] == "compare"


def run_page(name, folder):
    for head, lines in blocks(read(name)):
        if head.startswith("python "):
            script, text = head.split()[1], "\n".join(lines) + "\n"
            check(f"{name}: {script} is as in examples/tutorial", read("examples/tutorial/" + script) == text)
            with open(os.path.join(folder, script), "w", encoding="utf-8") as file:
                file.write(text)
        for command, expected in transcripts(lines):
            # Parts of the demonstration, shortened.
            if command.endswith("...") or " local --memory 1MiB" in command or not command.startswith(("windlass ", "python3 ")):
                continue
            if command.startswith("windlass") and is_long(command) and not THOROUGH:
                continue
            text = "\n".join(expected)
            printed = run(command, folder, 2 if "does not fit: out of memory" in text or "no plan fits" in text else 0)
            if command.startswith("windlass") and not is_measured(command):
                compare(command, printed, expected)


# What a newcomer has: a module, an example of its input, and data. What they read is README alone.
NEWCOMER = """
import sys, torch
from torch import nn
sys.argv = ["data.py"]
{writer}
def save_file(tensors, path):
    save_safetensors(path, **tensors)

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.GRU(16, 24, batch_first=True)
        self.columns = nn.Sequential(nn.Conv1d(16, 24, 3, padding=1), nn.BatchNorm1d(24), nn.GELU())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(48, 4))

    def forward(self, image):
        rows = self.rows(image)[0][:, -1]
        return self.head(torch.cat((rows, self.columns(image).mean(2)), 1))

torch.manual_seed(0)
model, example = Mine(), torch.randn(2, 16, 16)
images, labels = torch.randn(256, 16, 16), torch.randint(0, 4, (256,))
"""


def run_newcomer():
    writer = read("examples/tutorial/data.py").split("if __name__")[0]
    readme = blocks(read("README.md"))
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "mine.py"), "w", encoding="utf-8") as file:
            file.write(NEWCOMER.format(writer=writer) + "\n".join(line for head, lines in readme if head == "python" for line in lines))
        run("python3 mine.py", folder)
        for _, lines in readme:
            for line in lines:
                if line.startswith("windlass "):
                    run(line, folder)
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            check("a newcomer's report", "Fits: net.onnx trains" in file.read())


def check_links():
    for name in ["README.md", "CONTRIBUTING.md"] + ["docs/" + name for name in sorted(os.listdir(os.path.join(ROOT, "docs"))) if name.endswith(".md")]:
        text = read(name)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            whole = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            check(f"{name}: {target} is not there", os.path.exists(os.path.join(ROOT, whole)))
            if anchor and whole.endswith(".md") and os.path.exists(os.path.join(ROOT, whole)):
                heads = [re.sub(r"[^a-z0-9 -]", "", head.lower()).strip().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", read(whole), re.M)]
                check(f"{name}: {target} has no such heading", anchor in heads)


def check_events(board, lines):
    """What TensorBoard reads is what the log says."""
    names = [name for name in os.listdir(board) if "tfevents" in name]
    check("one file of events", len(names) == 1)
    version, events = read_events(os.path.join(board, names[0]))
    check("version of events", version == "brain.Event:2")
    losses = {step: values["loss/train"] for step, values in events if "loss/train" in values}
    check("a loss for each step", sorted(losses) == [line["step"] for line in lines])
    for line in lines:
        check(f"loss of step {line['step']} in the events", abs(losses.get(line["step"], 0) - line["loss"]) <= 1e-6 * abs(line["loss"]))


def main():
    check_links()
    with tempfile.TemporaryDirectory() as folder:
        try:
            import torch  # noqa: F401
            import onnx  # noqa: F401
            run_page("docs/tutorial.md", folder)
            log = os.path.join(folder, "log.jsonl")
            with open(log, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
            check("a line of the log for each step", len(lines) == 40)
            check_events(os.path.join(folder, "board"), lines)
            run_newcomer()
        except ImportError as missing:
            print("the tutorial is left out:", missing)
        for name in ("README.md", "docs/four_systems.md", "docs/memory_model.md", "docs/guide.md"):
            run_page(name, folder)
    print(f"{ran} commands")
    print("failed:" if failures else "the documents say what is so", *failures, sep="\n  " if failures else "")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
