#!/usr/bin/python3
"""Runs "windlass serve" as its page and as its enemies would: answers, headers, bounds, random garbage, slow
clients, clients that go away; then drives the page from the keyboard in a headless Chromium.

Everything happens on this host alone. WINDLASS_THOROUGH=1: all of it. By hand, with pictures: --pictures FOLDER
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import browser

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
THOROUGH = os.environ.get("WINDLASS_THOROUGH", "0") not in ("", "0")
SMALL = {"model": "gpt2:layers=2,hidden=64,heads=2,vocab=512", "machine": "4x3090", "batch": 8, "seq": 64, "seconds": 0.5}
failures = []


def check(what, condition):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.address = re.search(r"http://\S+", self.process.stdout.readline()).group(0)
        self.port = int(self.address.rstrip("/").rsplit(":", 1)[1])
        self.token = re.search(r'"token":"(\w+)"', self.get("/")[2]).group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            check("ends by Ctrl-C", self.process.wait(60) == 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            check("ends by Ctrl-C in time", False)

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def post(self, question, session="test", **headers):
        """(status, what was said, seconds to each line)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        body = question if isinstance(question, (bytes, str)) else json.dumps(question)
        begin = time.monotonic()
        connection.request("POST", "/plan", body, {"Content-Type": "application/json", "X-Windlass-Token": self.token,
                                                   "X-Windlass-Session": session, **headers})
        answer = connection.getresponse()
        if answer.status != 200:
            return answer.status, answer.read().decode("utf-8", "replace"), []
        said, times = [], []
        for line in answer:
            if line.strip():
                said.append(json.loads(line))
                times.append(time.monotonic() - begin)
        connection.close()
        return answer.status, said, times

    def raw(self, text, patience=30):
        """What comes back for bytes, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience) as connection:
            try:
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
                return answer
            except TimeoutError:
                raise
            except OSError:
                return b""

    def children(self):
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    if int(file.read().rsplit(")", 1)[1].split()[1]) == self.process.pid:
                        found.append(int(name))
            except OSError:
                pass
        return found

    def idle(self, seconds=10):
        """Whether all searches have ended, some of them only just."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.children():
            time.sleep(0.05)
        return not self.children()

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1))

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def check_answers(server):
    status, said, times = server.post(SMALL)
    check("answers", status == 200 and len(said) >= 3)
    check("the command comes first", said[0] == {"command": "windlass plan gpt2:layers=2,hidden=64,heads=2,vocab=512 "
                                                 "--batch 8 --seq 64 --on 4x3090 --time-limit 0.5"})
    plans = [line["plan"] for line in said if "plan" in line]
    check("plans get better", all(a["step_time"] >= b["step_time"] for a, b in zip(plans, plans[1:])))
    check("the last one has what a user would have done", len(plans[-1]["baselines"]) > 5)
    check("it says when it is done", said[-1].get("done") and said[-1]["fits"] and plans[-1]["fits"])
    done = subprocess.run([PROGRAM, *said[0]["command"].split()[1:], "--json"], capture_output=True, text=True, timeout=100)
    found = json.loads(done.stdout)
    check(f"the command gives what is shown: {found['step_time_s']} {plans[-1]['step_time']}",
          done.returncode == 0 and plans[-1]["step_time"] <= found["step_time_s"] * 1.25)
    print(f"first answer after {times[1]:.2f} s (not judged)")

    # Rules are kept: what is not allowed does not occur.
    status, said, _ = server.post({**SMALL, "memory": "40MiB", "off": ["recompute", "offload", "zero", "pp", "tp"]})
    last = [line["plan"] for line in said if "plan" in line][-1]
    check("what is not allowed does not occur", last["degrees"]["recomputed_bytes"] == 0 and
          last["degrees"]["zero"] == 0 and last["degrees"]["tp"] == 1 and last["degrees"]["pp"] == 1)
    status, said, _ = server.post({**SMALL, "machine": "1x3090", "memory": "100KiB"})
    check("what does not fit is an answer", said[-1]["fits"] is False and not said[1]["plan"]["fits"])

    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 500, "n_positions": 64}
    machine = json.loads(subprocess.run([PROGRAM, "machine", "show", "4x3090", "--json"],
                                        capture_output=True, text=True, timeout=60, check=True).stdout)
    machine["name"] = "my box"
    status, said, _ = server.post({"model_file": {"name": "config.json", "text": json.dumps(config)}, "batch": 4,
                                   "machine_file": {"name": "box.json", "text": json.dumps(machine)}, "seconds": 0.5})
    check("files can be sent along", status == 200 and said[-1].get("fits") and said[1]["plan"]["machine"] == "my box")
    check("and are named in the command", said[0]["command"].startswith("windlass plan config.json --batch 4 --on box.json"))
    for question, word in (({**SMALL, "model": "nonsense"}, "no model of the zoo"), ({**SMALL, "machine": "4x9999"}, "4x9999"),
                           ({"model_file": {"name": "x", "text": "{\"a\": "}, "machine": "4x3090"}, "config.json"),
                           ({**SMALL, "machine_file": {"name": "x", "text": "{}"}}, "machine.json"),
                           ({**SMALL, "memory": "lots"}, "--memory")):
        status, said, _ = server.post(question)
        check(f"{question}: {said}", status == 200 and word in said[-1].get("error", ""))
    # More memory or time than a page may use ends that search and nothing else.
    status, said, _ = server.post({**SMALL, "model": "mlp:layers=2000,hidden=65536", "machine": "8xa100-80g*8", "seconds": 0.5})
    check(f"a giant is answered: {str(said)[:200]}", status == 200)
    check("nothing is left", server.idle())


def check_strangers(server):
    good = f"127.0.0.1:{server.port}"
    for name, headers in (("rebound name", {"Host": f"evil.example:{server.port}"}), ("no port", {"Host": "127.0.0.1"}),
                          ("other port", {"Host": "127.0.0.1:1"}), ("origin", {"Origin": "http://evil.example"}),
                          ("null origin", {"Origin": "null"}), ("site", {"Sec-Fetch-Site": "cross-site"})):
        check(f"{name}: page", server.get("/", **headers)[0] == 403)
        check(f"{name}: search", server.post(SMALL, **headers)[0] == 403)
    for host in (f"localhost:{server.port}", good):
        check(host, server.get("/", Host=host)[0] == 200)
    check("own origin", server.post({**SMALL, "model": "x"}, Origin="http://" + good)[0] == 200)
    check("no token", server.post(SMALL, **{"X-Windlass-Token": ""})[0] == 403)
    check("wrong token", server.post(SMALL, **{"X-Windlass-Token": "0" * 32})[0] == 403)
    check("a form", server.post("a=b", **{"Content-Type": "application/x-www-form-urlencoded"})[0] == 415)
    check("text", server.post(json.dumps(SMALL), **{"Content-Type": "text/plain"})[0] == 415)
    status, headers, _ = server.get("/plan", method="OPTIONS", Origin="http://evil.example",
                                    **{"Access-Control-Request-Method": "POST"})
    check("no leave for other origins", status == 403)
    for path, method, status in (("/x", "GET", 404), ("/../etc/passwd", "GET", 404), ("/plan", "GET", 405), ("/", "POST", 403),
                                 ("/", "DELETE", 405), ("/", "HEAD", 200), ("/", "BREW", 400)):
        got = server.get(path, method=method)
        check(f"{method} {path}: {got[0]}", got[0] == status)
        check(f"{method} {path}: lets nobody in", not any(key.lower().startswith("access-control") for key in got[1]))
    _, headers, text = server.get("/")
    check("headers", "frame-ancestors 'none'" in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
          and headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store")
    for found in re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text):
        check(f"refers to {found}", found.startswith("#") or found == "data:,")
    with open("/proc/net/tcp", encoding="utf-8") as file:
        bound = [line.split()[1] for line in file.readlines()[1:] if line.split()[3] == "0A" and line.split()[1].endswith(f"{server.port:04X}")]
    check(f"listens on this host alone: {bound}", bound == [f"0100007F:{server.port:04X}"])


def garbage(server, seed):
    rng = random.Random(seed)
    host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    known = host + f"X-Windlass-Token: {server.token}\r\nContent-Type: application/json\r\n".encode()
    noise = rng.randbytes(rng.choice((1, 10, 1000, 20000)))
    body = json.dumps({**SMALL, rng.choice(list(SMALL)): rng.choice((None, -1, [], {}, "x" * 3000, 1e400))}).encode()
    kinds = [
        lambda: noise,
        lambda: b"GET / HTTP/1.1\r\n" + host + noise,
        lambda: b"GET /" + noise + b" HTTP/1.1\r\n" + host + b"\r\n",
        lambda: b"GET / HTTP/1.1\r\n" + host + b"A: " + b"b" * rng.randrange(1, 100000) + b"\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\n" + host + b"A: b\r\n" * rng.randrange(1, 10000) + b"\r\n",
        lambda: b"GET / HTTP/1.1\r\n" + host + b"Range: bytes=" + b"0-1," * rng.randrange(1, 2000) + b"2-3\r\n\r\n",
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Content-Length: %d\r\n\r\n" % rng.choice((0, 5, 10**6, 10**18, 2**64 - 1)) + noise,
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Content-Length: -1\r\n\r\n" + noise,
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Transfer-Encoding: chunked\r\n\r\n" + noise,
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + noise,
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Content-Length: %d\r\n\r\n" % len(noise) + noise,
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1] + rng.randbytes(1),
        lambda: b"POST /plan HTTP/1.1\r\n" + known + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(noise) + noise,
        lambda: b"POST /plan HTTP/1.1\r\n" + host + b"Content-Type: multipart/form-data; boundary=" + b"x" * 100 + b"\r\nContent-Length: 20000\r\n\r\n" + noise,
        lambda: b"GET / HTTP/1.1\r\nHost: " + noise.replace(b"\n", b"") + b"\r\n\r\n",
        lambda: b"PUT / HTTP/9.9\r\n\r\n" * 100,
    ]
    return rng.choice(kinds)()


def check_garbage(server):
    count = 10_000 if THOROUGH else 800
    rounds = []
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        for part in range(3):
            list(pool.map(lambda seed: server.raw(garbage(server, seed)), range(part * count // 3, (part + 1) * count // 3)))
            rounds.append(server.memory())
    check("still answers", server.get("/")[0] == 200)
    check(f"memory after each third of the garbage: {rounds} kB", rounds[2] < rounds[0] + 16_000)
    # A body that is larger than it may be, and one that never ends.
    large = b"POST /plan HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-Windlass-Token: %s\r\nContent-Type: application/json\r\n" % (
        server.port, server.token.encode())
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(server.raw, [large + b"Content-Length: 50000000\r\n\r\n" + b"[" * 50_000_000] * (20 if THOROUGH else 4)))
        list(pool.map(server.raw, [large + b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"[" * 0x8000 + b"\r\n"] * 20))
        list(pool.map(server.raw, [b"GET / HTTP/1.1\r\nA: " + b"b" * 50_000_000] * (20 if THOROUGH else 4)))
    check(f"memory after large bodies: {server.memory()} kB, {rounds} before", server.memory() < rounds[0] + 40_000)
    print(f"memory: {rounds} kB during garbage, {server.memory()} kB after large bodies")
    check("no search is left", server.idle())


def check_slow(server):
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(50)]
    for connection in slow:
        connection.sendall(b"GET / HTT")
    begin = time.monotonic()
    check("others are served meanwhile", server.get("/")[0] == 200)
    ended = 0
    while time.monotonic() < begin + 25 and ended < len(slow):
        time.sleep(1)
        ended = 0
        for connection in slow:
            try:
                connection.sendall(b"x")
            except OSError:
                ended += 1
    check(f"slow clients are let go: {ended} of {len(slow)}", ended == len(slow))
    for connection in slow:
        connection.close()
    check("afterwards", server.get("/")[0] == 200)


def check_leaving(server):
    def begin(session):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/plan", json.dumps({"model": "gpt2-xl", "machine": "4x3090", "batch": 8, "seconds": 30}), {
            "Content-Type": "application/json", "X-Windlass-Token": server.token, "X-Windlass-Session": session})
        answer = connection.getresponse()
        return connection, answer

    files = server.files()
    for _ in range(3):
        connection, answer = begin("leaves")
        check("a search begins", answer.status == 200 and "command" in json.loads(answer.readline()))
        check("as a process", len(server.children()) == 1)
        answer.close()
        connection.close()
        check("who goes away takes the search along", server.idle())
    # A newer question of a session ends the older one.
    old = begin("same")
    json.loads(old[1].readline())
    status, said, _ = server.post(SMALL, session="same")
    check("a newer question is answered", status == 200 and said[-1].get("done"))
    check("and the older one has ended", not any(b'"done"' in line for line in old[1]))
    # As many at a time as were allowed, others wait and are told.
    running = [begin(f"many {i}") for i in range(2)]
    check("two at a time", [answer.status for _, answer in running] == [200, 200])
    status, said, _ = server.post(SMALL, session="third")
    check(f"the third is told: {status}", status == 503 and "other searches" in said)
    check("no more processes than searches", len(server.children()) == 2)
    for connection, answer in running:
        answer.close()
        connection.close()
    check("all end", server.idle())
    time.sleep(0.5)
    check(f"files are closed: {files} before, {server.files()} now", server.files() <= files + 2)
    left = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("windlass-serve-")]
    check(f"folders are gone: {left}", not left)


KEYS = {"tab": "\ue004", "enter": "\ue007", "down": "\ue015", "space": " ", "left": "\ue012", "all": "\ue009a\ue000", "end": "\ue010"}


def check_page(page, server, pictures):
    def answered(more=0):
        page.wait(f"window.windlassReport && windlassReport.asked.answers > {more} && !windlassReport.asked.running", 60)
        return page.run("return windlassReport.asked.answers")

    def value(selector, what="textContent"):
        return page.run(f"return document.querySelector(arguments[0]).{what}", selector)

    def press(keys):
        page.do("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": [
            {"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]}]})

    small = "#model=gpt2%3Alayers%3D2%2Chidden%3D64%2Cheads%3D2%2Cvocab%3D512&machine=4x3090&batch=8&seq=64&seconds=1"
    page.do("POST", "/url", {"url": server.address + small})
    before = answered()
    check("page: an answer", value("#verdict").startswith("Fits:"))
    check("page: ids are of one element each", page.run("const ids = [...document.querySelectorAll('[id]')].map(n => n.id); return new Set(ids).size === ids.length"))
    check("page: memory methods", page.run("return document.querySelectorAll('#throughput [data-method-line]').length") > 2)
    check("page: the command", value("#command") == "windlass plan gpt2:layers=2,hidden=64,heads=2,vocab=512 --batch 8 --seq 64 --on 4x3090 --time-limit 1")
    for chart in ("#time .bar", "[data-chart=memory] svg", "#timeline canvas", "#frontier svg"):
        check(f"page: {chart}", page.run("return document.querySelectorAll(arguments[0]).length", chart) > 0)
    # With the keyboard alone: from the model on to the batch, and another number into it.
    page.run("document.querySelector('#model').focus()")
    seen = []
    for _ in range(12):
        press([KEYS["tab"]])
        seen.append(page.run("return document.activeElement.id"))
        if seen[-1] == "batch":
            break
    check(f"page: the batch is reached: {seen}", seen[-1] == "batch")
    press(["\ue015"] * 4)
    before = answered(before)
    check(f"page: batch 4: {value('#command')}", "--batch 4 " in value("#command"))
    check("page: samples", page.run("return windlassReport.data.plans[0].samples") == 4)
    for _ in range(20):
        press([KEYS["tab"]])
        if page.run("return document.activeElement.id") == "may-recompute":
            break
    press([KEYS["space"]])
    before = answered(before)
    check("page: a method is ruled out", "--fix recompute=off" in value("#command"))
    page.run("document.querySelector('#share').focus()")
    press([KEYS["left"]] * 2)
    before = answered(before)
    check("page: a limit by arrow keys", "--memory '90%'" in value("#command"))
    # The address holds the question.
    address = page.run("return location.href")
    page.do("POST", "/url", {"url": "about:blank"})
    page.do("POST", "/url", {"url": address})
    answered()
    check("page: the slider too", page.run("return [document.querySelector('#share').value, document.querySelector('#share').className]") == ["90", ""])
    check("page: the address holds the question", "--batch 4 " in value("#command") and "--memory '90%' --fix recompute=off" in value("#command"))
    # A mistake is told, and the page goes on.
    page.run("const n = document.querySelector('#model'); n.value = 'nonsense'; n.focus()")
    press([KEYS["enter"]])
    page.wait("document.querySelector('#status').className === 'bad'", 20)
    check("page: a mistake is told", "no model of the zoo" in value("#said"))
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 500, "n_positions": 64,
                       "x": "<img src=x onerror=window.evil=1>"}, file)
        before = page.run("return windlassReport.asked.answers")
        page.do("POST", f"/element/{page.find('#model_file')}/value", {"text": config})
        answered(before)
        check("page: a config.json", value("#command").startswith("windlass plan config.json --batch 4"))
    check("page: nothing of it runs", page.run("return window.evil === undefined && document.images.length === 0"))
    for width in (390, 1280):
        page.size(width, 844)
        time.sleep(0.3)
        check(f"page: {width} wide", page.run("return Math.max(innerWidth, document.documentElement.scrollWidth)") <= width)
    check(f"page: controls have names", page.run("return [...document.querySelectorAll('#controls input, #controls select')].every(n => n.labels.length || n.getAttribute('aria-label'))"))
    # A page elsewhere: nothing comes of what it tries.
    page.do("POST", "/url", {"url": "data:text/html,<p>elsewhere"})
    page.run("window.result = null; fetch(arguments[0] + 'plan', {method: 'POST', body: '{}', headers: {'Content-Type': 'text/plain'}})"
             ".then(() => { window.result = 'read'; }, () => { window.result = 'refused'; })", server.address)
    page.wait("window.result")
    check("page: elsewhere", page.run("return window.result") == "refused")
    page.messages()
    page.do("POST", "/url", {"url": server.address + small})
    answered()
    check(f"page: console", page.messages() == [])
    if pictures:
        os.makedirs(pictures, exist_ok=True)
        page.do("POST", "/url", {"url": server.address})
        page.do("POST", "/refresh", {})
        answered()
        for look, width in (("wide", 1280), ("phone", 390)):
            page.size(width, 844)
            time.sleep(0.5)
            page.picture(os.path.join(pictures, f"what_if_{look}.png"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", help="folder for pictures of the page, wide and on a phone")
    options = parser.parse_args()
    for arguments, word in ((["--port", "x"], "--port"), (["--port", "70000"], "--port"), (["--host", "nowhere.invalid", "--port", "0"], "cannot listen")):
        done = subprocess.run([PROGRAM, "serve", *arguments], capture_output=True, text=True, timeout=60)
        check(f"{arguments}: {done.returncode} {done.stderr}", done.returncode == 1 and word in done.stderr)
    with Server() as server:
        taken = subprocess.run([PROGRAM, "serve", "--port", str(server.port)], capture_output=True, text=True, timeout=60)
        check("a port that is taken", taken.returncode == 1 and "taken" in taken.stderr)
        for part in (check_answers, check_strangers, check_leaving, check_garbage, check_slow):
            begin = time.monotonic()
            part(server)
            print(f"{part.__name__}: {time.monotonic() - begin:.1f} s")
        if browser.missing():
            print("no browser:", browser.missing())
        else:
            with browser.Browser() as page:
                check_page(page, server, options.pictures)
    print("failed:" if failures else "the what-if page holds", *failures, sep="\n  " if failures else "")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
