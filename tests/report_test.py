#!/usr/bin/python3
"""Opens reports in a headless Chromium and holds what is drawn against what windlass says.

A GPT-2 XL plan on four devices, packs of layers, a plan that does not fit, a measured run, two plans side by
side, names that try to be markup, and a timeline of 100,000 tasks. By hand, with pictures: --pictures FOLDER
"""

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import browser

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
READY = "window.windlassReport && windlassReport.timelines.length > 0 && windlassReport.timelines[0].frames > 0"
failures = []


def check(what, condition):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


def near(a, b, share=1e-6):
    return abs(a - b) <= share * max(abs(a), abs(b), 1e-300)


def windlass(*arguments, code=0, output=True):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=600)
    if done.returncode != code:
        raise AssertionError(f"windlass {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout if output else None


class Case:
    def __init__(self, name, folder):
        self.name = name
        self.plan = os.path.join(folder, name + ".json")
        self.page = os.path.join(folder, name + ".html")

    def report(self, *more):
        windlass("report", self.plan, "-o", self.page, *more)
        return self


def open_page(page, case, theme=None):
    page.messages()
    page.open(case.page)
    page.wait(READY)
    if theme and page.run("return document.documentElement.dataset.theme") != theme:
        page.click("#theme")


def check_page(page, case, fits=True):
    """What holds for every page: its numbers are those of `windlass simulate`, and all of it is drawn."""
    name = case.name
    open_page(page, case)
    said = json.loads(windlass("simulate", case.plan, "--json", code=0 if fits else 2))
    data = page.run("const {timeline, ...rest} = windlassReport.data.plans[0]; return rest")
    check(f"{name}: fits", data["fits"] == fits)
    words = page.run("return document.querySelector('#verdict').textContent")
    check(f"{name}: verdict", words.startswith("Fits:" if fits else "Does not fit:") and words == data["verdict"])
    if fits:
        check(f"{name}: step time", near(data["step_time"], said["step_time_s"]))
        for part in ("compute", "recompute", "communication", "swap", "update", "bubble"):
            drawn = page.run("return [...document.querySelectorAll('#time .bar')[0].querySelectorAll('[data-part]')]"
                             ".filter(n => n.dataset.part === arguments[0]).map(n => [Number(n.dataset.seconds), "
                             "n.getBoundingClientRect().width / n.parentNode.getBoundingClientRect().width])", part)
            seconds = said["breakdown"][part + "_s"]
            check(f"{name}: time of {part}", near(drawn[0][0], seconds) if drawn else seconds == 0)
            if drawn and seconds > 0.05 * data["step_time"]:
                check(f"{name}: bar of {part}", abs(drawn[0][1] - seconds / data["step_time"]) < 0.02)
    peaks = {memory["name"]: memory["peak_bytes"] for memory in said["memories"]}
    drawn = page.run("return [...document.querySelectorAll('[data-chart=memory]')].map(n => [n.dataset.memory, "
                     "Number(n.querySelector('[data-peak]').dataset.peak), n.querySelectorAll('[data-part]').length])")
    check(f"{name}: memories are drawn", len(drawn) > 0)
    for memory, peak, parts in drawn:
        check(f"{name}: peak of {memory}", peaks[memory] == peak and parts > 0)
    for memory in data["memories"]:
        highest = max(sum(memory["curve"][part][i] for part in
                          ("weights", "gradients", "optimizer", "activations", "other"))
                      for i in range(len(memory["curve"]["times_ns"]))) * memory["curve"]["unit"]
        check(f"{name}: curve of {memory['name']}", abs(highest - memory["peak"]) <= 5 * memory["curve"]["unit"])
        check(f"{name}: at the peak of {memory['name']}", sum(memory["at_peak"].values()) == memory["peak"])
    check(f"{name}: tasks", page.run("return windlassReport.data.plans[0].timeline.tasks") == said["tasks"])
    check(f"{name}: something is drawn on the timeline", page.run(
        "const c = document.querySelector('#timeline canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i+1] << 8 | d[i+2]); return seen.size") > 3)
    check(f"{name}: strategies are marked", page.run("return document.querySelectorAll('#frontier [data-name]').length") ==
          1 + sum(1 for row in data["baselines"] if not row["why"]))
    check(f"{name}: knees of the frontier", page.run("return document.querySelectorAll('#frontier .knee').length") == len(data["frontier"]))
    check_methods(page, name, data)
    check(f"{name}: layers", page.run("return document.querySelectorAll('#strategy tbody tr').length") == len(data["layers"]))
    check(f"{name}: links", page.run("return document.querySelectorAll('#links tbody tr').length") == len(data["links"]))
    check_whole(page, case)


def check_methods(page, name, data):
    """Throughput against batch: a line for each method that fits, and why there is none."""
    if "methods" not in data:
        check(f"{name}: why there are no methods", data["no_methods"] in page.run("return document.querySelector('#throughput').textContent"))
        return
    drawn = {method["name"]: method for method in data["methods"]["list"] if method["points"]}
    lines = page.run("return [...document.querySelectorAll('[data-method-line]')].map(n => [n.dataset.methodLine, "
                     "(n.getAttribute('d').match(/[ML]/g) || []).length, n.getTotalLength()])")
    check(f"{name}: lines of methods", {line[0]: line[1] for line in lines} == {key: len(method["points"]) for key, method in drawn.items()})
    check(f"{name}: rows of methods", page.run("return document.querySelectorAll('#throughput tbody tr').length") == 1 + len(data["methods"]["list"]))
    for method in drawn.values():
        check(f"{name}: {method['name']} ends at its largest batch", max(point[0] for point in method["points"]) == method["largest"])


def check_advice(cases):
    """The page has what `windlass advise` says."""
    with open(cases["xl"].page, encoding="utf-8") as file:
        data = json.loads(file.read().split('id="data">', 1)[1].split("</script>", 1)[0])["plans"][0]["methods"]
    said = json.loads(windlass("advise", "gpt2-xl", "--on", "4x3090", "--methods", "recompute", "offload", "--json"))
    check("advice: the same base", data["base"] == "data-parallel")
    for method in said["methods"]:
        own = next(entry for entry in data["list"] if entry["name"] == method["method"])
        rates = {point["batch"]: point["samples_per_s"] for point in method["points"] if point["fits"]}
        check(f"advice: {own['name']}", own["largest"] == method["largest_batch"] and
              all(near(rate, rates[batch]) for batch, rate, _ in own["points"] if batch in rates))


def check_whole(page, case):
    """Nothing is loaded, nothing is complained about, charts have words, nothing hangs over the edge."""
    name = case.name
    check(f"{name}: loads nothing", page.run("return performance.getEntriesByType('resource').length") == 0)
    check(f"{name}: charts have words", page.run(
        "return [...document.querySelectorAll('svg[role=img], canvas, .bar')].every(n => n.getAttribute('aria-label'))"))
    with open(case.page, encoding="utf-8") as file:
        text = file.read()
    for found in re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text):
        check(f"{name}: refers to {found}", found.startswith("#") or found == "data:,")
    for width in (390, 1280):
        page.size(width, 844)
        time.sleep(0.2)
        check(f"{name}: {width} wide", page.run("return Math.max(innerWidth, document.documentElement.scrollWidth)") <= width)
        if width == 390:
            check(f"{name}: tables are cut off on a phone", page.run(
                "return [...document.querySelectorAll('.scroll')].filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.getAttribute('aria-label'))") == [])
    page.wait(READY)
    check(f"{name}: console", page.messages() == [])


def contrast(page, foreground, background):
    return page.run("""
      const of = text => { const n = document.createElement('i'); n.style.color = text; document.body.append(n);
        const c = getComputedStyle(n).color.match(/[\\d.]+/g).map(Number); n.remove(); return c; };
      const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const style = getComputedStyle(document.documentElement);
      const [a, b] = [...arguments].map(n => light(of(style.getPropertyValue(n).trim()).slice(0, 3)));
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);""", foreground, background)


def check_theme(page, case):
    open_page(page, case)
    for _ in range(2):
        before = page.run("return [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor, "
                          "windlassReport.timelines[0].frames]")
        page.click("#theme")
        page.wait(f"windlassReport.timelines[0].frames > {before[2]}")
        after = page.run("return [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]")
        check("the theme changes", after[0] != before[0] and after[1] != before[1])
        for text in ("--ink", "--muted", "--accent", "--good", "--bad"):
            check(f"contrast of {text} in {after[0]}", contrast(page, text, "--card") >= 4.5)
        for part in ("forward", "backward", "recompute", "update", "communication", "swap", "other"):
            check(f"contrast of {part} in {after[0]}", contrast(page, f"--c-{part}", "--card") >= 3)
    check("theme: console", page.messages() == [])


def view(page):
    return page.run("const v = windlassReport.timelines[0].view; return [v.from, v.to, windlassReport.timelines[0].end]")


def check_zoom(page, case):
    open_page(page, case)
    start = view(page)
    check("the whole step is in view", start[0] == 0 and start[1] == start[2])
    page.click("#timeline button[aria-label='Zoom in']")
    zoomed = view(page)
    check("a button zooms", near(zoomed[1] - zoomed[0], start[2] / 2))
    page.type("#timeline canvas", "++")
    keyed = view(page)
    check("a key zooms", keyed[1] - keyed[0] < zoomed[1] - zoomed[0])
    page.drag("#timeline canvas", -200)
    dragged = view(page)
    check("dragging pans", dragged[0] > keyed[0] and near(dragged[1] - dragged[0], keyed[1] - keyed[0]))
    page.type("#timeline canvas", "\ue012")
    check("an arrow pans", view(page)[0] < dragged[0])
    page.type("#timeline canvas", "nn")
    told = page.run("return [document.querySelector('#timeline .told').textContent, document.querySelector('#live').textContent, "
                    "windlassReport.timelines[0].picked.index]")
    check("keys go through tasks, and they are read out", told[1] and told[0].split(" - ")[0] in told[1])
    page.type("#timeline canvas", "0")
    check("0 shows all", view(page) == start)
    page.run("document.querySelector('[data-chart=memory] svg').focus()")
    page.type("[data-chart=memory] svg", "\ue007")
    memory = page.run("return windlassReport.data.plans[0].memories[0]")
    tip = page.run("return document.querySelector('#tip').textContent")
    check("the peak is told", "peak, " in tip and memory["largest"][0]["name"] in tip)
    page.touch("[data-chart=memory] svg")
    check("a touch asks what is alive, and it stays", page.run("return [document.querySelector('#tip').hidden, document.querySelector('#tip').textContent]")[0] is False)
    page.touch("h1")
    check("until the next touch", page.run("return document.querySelector('#tip').hidden"))
    check("zoom: console", page.messages() == [])


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def check_large(page, case, folder):
    """100,000 tasks on 20 tracks: a frame looks at each pixel of the tracks once, and calls the canvas a few times a track."""
    with open(case.page, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split('id="data">', 1)
    data, after = rest.split("</script>", 1)
    data = json.loads(data)
    tracks, slices = 20, 5000
    track = base64.b64encode(b"".join(varint(i % 7) + varint(100 + i % 50) + varint(i % 3 + 1) + varint(0)
                                      for i in range(slices))).decode()
    end = sum(i % 7 + 100 + i % 50 for i in range(slices))
    data["plans"][0]["timeline"] = {
        "quantum_ns": 10, "end": end, "tasks": tracks * slices, "slices": tracks * slices,
        "kinds": ["forward", "backward", "swap-in"], "labels": [[0, "a"], [1, "b"], [2, "c"]],
        "tracks": [{"team": f"gpu{i // 4}", "lane": f"lane {i}", "slices": slices, "data": track} for i in range(tracks)]}
    large = Case("large", folder)
    with open(large.page, "w", encoding="utf-8") as file:
        file.write(before + 'id="data">' + json.dumps(data).replace("<", "\\u003c") + "</script>" + after)
    begin = time.monotonic()
    open_page(page, large)
    opened = time.monotonic() - begin
    check("large: all slices are read", page.run("return windlassReport.timelines[0].tracks.reduce((n, t) => n + t.count, 0)") == tracks * slices)
    # From the whole step down to some tasks, and along it.
    measured = page.run_async("""
      const done = arguments[arguments.length - 1], timeline = windlassReport.timelines[0], proto = CanvasRenderingContext2D.prototype;
      const kept = {}; let calls = 0, most = 0, steps = 0, drawing = 0;
      for (const name of Object.getOwnPropertyNames(proto)) {
        const plain = Object.getOwnPropertyDescriptor(proto, name).value;
        if (typeof plain !== 'function' || name === 'constructor') continue;
        kept[name] = plain;
        proto[name] = function (...a) { calls++; return plain.apply(this, a); };
      }
      const begin = performance.now(); let frames = 0;
      const step = () => {
        calls = 0;
        timeline.set(frames * 1000, timeline.end / (1 + frames * frames / 10) + frames * 1000);
        const start = performance.now();
        timeline.draw();
        drawing += performance.now() - start;
        most = Math.max(most, calls);
        steps = Math.max(steps, timeline.steps);
        if (++frames < 60) return requestAnimationFrame(step);
        Object.assign(proto, kept);
        done({ most, steps, rate: 1000 * frames / (performance.now() - begin), frame: drawing / frames });
      };
      step();""")
    width = page.run("return windlassReport.timelines[0].strip.width")
    rows = page.run("return windlassReport.timelines[0].strip.height")
    # A piece, a name and up to one label in 60 pixels with its clipping for each track; the axis beside.
    check(f"large: {measured['most']} calls a frame", measured["most"] <= rows * (3 + 7 * width / 60) + 80)
    check(f"large: {measured['steps']} steps a frame", 0 < measured["steps"] <= rows * (width + 1))
    check("large: a frame is of what is in view", rows <= tracks)
    check("large: console", page.messages() == [])
    print(f"100,000 tasks: open in {opened:.2f} s, pan at {measured['rate']:.0f} frames/s, {measured['frame']:.1f} ms a frame (not judged: times); "
          f"at most {measured['most']} calls and {measured['steps']} steps a frame")


def check_tall(page, case, folder):
    """Tracks of hundreds of devices: the canvas stays as high as what is seen, the rest is scrolled to, also by keys."""
    tall = Case("tall", folder)
    with open(case.page, encoding="utf-8") as file:
        before, rest = file.read().split('id="data">', 1)
    data, after = rest.split("</script>", 1)
    data = json.loads(data)
    timeline = data["plans"][0]["timeline"]
    timeline["tracks"] = [{**timeline["tracks"][0], "team": f"gpu{i}"} for i in range(400)]
    with open(tall.page, "w", encoding="utf-8") as file:
        file.write(before + 'id="data">' + json.dumps(data).replace("<", "\\u003c") + "</script>" + after)
    open_page(page, tall)
    check("tall: height of the canvas", page.run("return windlassReport.timelines[0].canvas.height") <= 600)
    page.type("#timeline canvas", "\ue015" * 60)
    page.wait("windlassReport.timelines[0].top > 500")
    check("tall: the track that is chosen is in view", page.run(
        "const t = windlassReport.timelines[0], r = t.rows.find(r => r.track === t.picked.track);"
        "return t.tracks.indexOf(r.track) === 59 && r.y >= t.top && r.y + 24 <= t.top + t.seen"))
    check_whole(page, tall)


def make_cases(folder):
    cases = {name: Case(name, folder) for name in ("xl", "pipeline", "packs", "misfit", "measured", "hostile", "both")}
    xl = ["gpt2-xl", "--batch", "8", "--on", "4x3090"]
    windlass("plan", *xl, "--search", "grid", "--time-limit", "20", "-o", cases["xl"].plan)
    windlass("simulate", "gpt2-xl", "--batch", "64", "--on", "8xa100-80g", "--dtype", "bf16", "--strategy",
             "1f1b:stages=8,micro=1", "--save", cases["pipeline"].plan, code=0)
    windlass("plan", "gpt2-xl", "--batch", "8", "--on", "4x1080ti", "--search", "harmony", "--time-limit", "20",
             "-o", cases["packs"].plan)
    windlass("simulate", *xl, "--strategy", "data-parallel", "--memory", "10GiB", "--save", cases["misfit"].plan, code=2)
    small = ["gpt2:layers=2,hidden=32,heads=2,vocab=256", "--seq", "16", "--batch", "4"]
    windlass("plan", *small, "--on", "local", "--devices", "1", "-o", cases["measured"].plan)
    run = os.path.join(folder, "run.jsonl")
    with open(run, "w", encoding="utf-8") as file:
        file.write(windlass("train", cases["measured"].plan, "--steps", "4", "--json"))
    cases["xl"].report()
    for name in ("pipeline", "packs", "misfit"):
        cases[name].report()
    cases["measured"].report("--run", run)
    make_hostile(cases["hostile"], folder, small)
    windlass("report", cases["xl"].plan, "--compare", cases["misfit"].plan, "-o", cases["both"].page)
    return cases


EVIL = "</script><script>window.evil=1</script><img src=x onerror=window.evil=1>\u2028'\"&{{data}}"


def make_hostile(case, folder, small):
    path = os.path.join(folder, "<img src=x onerror=window.evil=1>&.json")
    windlass("simulate", *small, "--on", "4x3090", "--strategy", "data-parallel", "--save", case.plan)
    with open(case.plan, encoding="utf-8") as file:
        plan = json.load(file)
    plan["strategy"]["name"] = EVIL
    plan["provenance"]["method"] = EVIL
    plan["provenance"]["windlass"] = EVIL
    plan["prediction"]["termination"] = EVIL
    with open(path, "w", encoding="utf-8") as file:
        json.dump(plan, file)
    case.plan = path
    run = os.path.join(folder, "evil.jsonl")
    side = {"step_time_s": 1.0, "devices": [{"name": EVIL, "peak_bytes": 1, "limit_bytes": 2}], "host": {"peak_bytes": 3},
            "tasks": {EVIL + "_s": 1.0}, "links": [{"name": EVIL, "bytes": 5}]}
    with open(run, "w", encoding="utf-8") as file:
        file.write(json.dumps({"predicted": side, "measured": side}) + "\n")
    case.report("--run", run)


def check_hostile(page, case):
    open_page(page, case)
    check("hostile: nothing of it runs", page.run("return window.evil === undefined && document.images.length === 0 && "
                                                  "document.scripts.length === 2"))
    check("hostile: it is shown as text", EVIL[:30] in page.run("return document.body.innerText"))
    check_whole(page, case)


def check_measured(page, case):
    open_page(page, case)
    run = page.run("return windlassReport.data.run")
    check("measured: steps", len(run["steps"]) == 4)
    cells = page.run("return [...document.querySelectorAll('#run tbody tr:first-child td')].map(n => n.textContent)")
    check("measured: both are shown", cells[0] == "step time" and len(cells) == 4 and cells[1] and cells[2])
    words = page.run("return document.querySelector('#run').textContent")
    check("measured: the load of the host", ("Other programs took" in words) == (run["other_load"] >= 0.1))
    check("measured: curves", page.run("return document.querySelectorAll('#run svg path.line').length") == 2)


def check_misfit(page, case):
    open_page(page, case)
    plan = page.run("return windlassReport.data.plans[0]")
    memory = next(memory for memory in plan["memories"] if memory["name"] == plan["failure"]["memory"])
    over = page.run("const tile = document.querySelector('.tile.bad'); return [tile.textContent, formatBytes(arguments[0])]", memory["peak"] - memory["limit"])
    check("misfit: how far over the limit", over[0].startswith(over[1]) and "over the limit" in over[0])


def check_packs(page, case):
    open_page(page, case)
    check("packs: the ops they are of", page.run("return document.querySelector('#strategy tbody tr').textContent.includes('transformer.wte to ')"))


def check_both(page, case):
    open_page(page, case)
    check("both: two timelines", page.run("return windlassReport.timelines.length") == 2)
    check("both: side by side", page.run("return [...document.querySelectorAll('#comparison table')].map(t => t.querySelectorAll('thead th').length)") == [3, 4])
    check("both: memories of both", page.run("return document.querySelectorAll('#memories [data-chart=memory]').length") >= 2)
    check_whole(page, case)


def check_errors(cases, folder):
    before = set(os.listdir(folder))
    for arguments, word in ((["report", os.path.join(folder, "none.json")], "no plan file"),
                            (["report", cases["xl"].plan, "--run", cases["xl"].plan], "windlass train --json"),
                            (["report", cases["xl"].plan, "--compare", "/nowhere"], "no plan file"),
                            (["report", cases["xl"].plan, "-o", "/nowhere/x.html"], "/nowhere")):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100)
        check(f"{arguments}: {done.returncode} {done.stderr}", done.returncode == 1 and word in done.stderr)
    check("nothing is left behind", set(os.listdir(folder)) == before)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", help="folder for pictures of every page, wide, dark and on a phone")
    options = parser.parse_args()
    if browser.missing():
        print("skipped:", browser.missing())
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        cases = make_cases(folder)
        check(f"GPT-2 XL on 8 devices takes {os.path.getsize(cases['pipeline'].page)} bytes",
              os.path.getsize(cases["pipeline"].page) < 2_000_000)
        check_errors(cases, folder)
        check_advice(cases)
        with browser.Browser() as page:
            for name in ("xl", "pipeline", "packs", "measured"):
                check_page(page, cases[name])
            check_page(page, cases["misfit"], fits=False)
            check_measured(page, cases["measured"])
            check_misfit(page, cases["misfit"])
            check_packs(page, cases["packs"])
            check_both(page, cases["both"])
            check_hostile(page, cases["hostile"])
            check_zoom(page, cases["xl"])
            check_theme(page, cases["xl"])
            check_large(page, cases["xl"], folder)
            check_tall(page, cases["xl"], folder)
            if options.pictures:
                os.makedirs(options.pictures, exist_ok=True)
                for name, case in cases.items():
                    for look, width, theme in (("wide", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light"), ("phone_dark", 390, "dark")):
                        page.size(width, 844)
                        open_page(page, case, theme)
                        time.sleep(0.5)
                        page.picture(os.path.join(options.pictures, f"{name}_{look}.png"))
    print("failed:" if failures else "all reports are as they should be", *failures, sep="\n  " if failures else "")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
