"""A headless Chromium, driven through the WebDriver protocol with what Python itself has."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request


def missing():
    """What keeps a browser from being driven here; empty if nothing does."""
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            return f"{program} is missing (packages chromium and chromium-driver)"
    return ""


class Browser:
    def __init__(self, width=1280, height=900, dark=False, timeout=60):
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="windlass-browser-")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        port = None
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                port = line.strip().rstrip(".").split()[-1]
                break
        self.address = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--disable-background-networking", "--no-first-run",
                     f"--user-data-dir={self.profile}", f"--window-size={width},{height}"]
        if dark:
            arguments.append("--force-dark-mode")
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments}}}})
        self.session = "/session/" + made["sessionId"]
        self.size(width, height)

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def do(self, method, path, body=None):
        return self.call(method, self.session + path, body)

    def size(self, width, height):
        """Of the page itself, as a phone or a desktop has it."""
        self.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}})

    def open(self, path):
        self.do("POST", "/url", {"url": "file://" + os.path.abspath(path)})

    def run(self, script, *arguments):
        """The value of a function body in the page."""
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script, *arguments):
        """The same, of what it hands to the function that is its last argument."""
        return self.do("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def wait(self, script, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run("return " + script):
                return
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {script}")

    def find(self, selector):
        return next(iter(self.do("POST", "/element", {"using": "css selector", "value": selector}).values()))

    def show(self, selector):
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)

    def click(self, selector):
        self.show(selector)
        self.do("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, keys):
        self.show(selector)
        self.do("POST", f"/element/{self.find(selector)}/value", {"text": keys})

    def drag(self, selector, by):
        self.show(selector)
        element = {"element-6066-11e4-a52e-4f735466cecf": self.find(selector)}
        self.do("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [
            {"type": "pointerMove", "origin": element, "x": 0, "y": 0, "duration": 0},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "origin": "pointer", "x": by, "y": 0, "duration": 100},
            {"type": "pointerUp", "button": 0}]}]})

    def touch(self, selector):
        self.show(selector)
        element = {"element-6066-11e4-a52e-4f735466cecf": self.find(selector)}
        self.do("POST", "/actions", {"actions": [{"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": [
            {"type": "pointerMove", "origin": element, "x": 0, "y": 0, "duration": 0},
            {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]}]})

    def messages(self):
        """What the console says, but for what the browser says of itself."""
        return [entry["message"] for entry in self.do("POST", "/se/log", {"type": "browser"})
                if entry["level"] in ("WARNING", "SEVERE")]

    def picture(self, path, whole=True):
        parameters = {"format": "png"}
        if whole:
            width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
            parameters.update(captureBeyondViewport=True,
                              clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        shot = self.do("POST", "/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": parameters})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        try:
            self.do("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(20)
            shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
