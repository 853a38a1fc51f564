# SPDX-License-Identifier: MIT
"""Headless Chromium, driven by its DevTools protocol over a pipe: no packages needed beside the browser itself."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"Tab": 9, " ": 32, "Enter": 13, "ArrowDown": 40}


def find():
    """The path of the browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Used as a context."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self.output = os.pipe()
        self.input, writes = os.pipe()
        # The browser reads commands from 3 and writes answers to 4.
        command = (f"exec {find()} --headless --no-sandbox --disable-gpu --no-first-run --disable-extensions "
                   f"--user-data-dir={self.profile.name} --remote-debugging-pipe about:blank 3<&{reads} 4>&{writes}")
        self.process = subprocess.Popen(["bash", "-c", command], pass_fds=(reads, writes), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(reads)
        os.close(writes)
        self.count, self.rest, self.events, self.session = 0, b"", [], None
        target = next(one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.output)
        os.close(self.input)
        self.profile.cleanup()

    def ask(self, method, **parameters):
        """The result of a command. Events that arrive before it are kept in self.events."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.input, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.rest += part
        first, self.rest = self.rest.split(b"\0", 1)
        return json.loads(first)

    def show(self, file, width=1280, height=900, dark=False, scripts=True, fragment=""):
        """Opens a file and waits until it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        for url in ("about:blank", f"{Path(file).resolve().as_uri()}{fragment}"):  # a new fragment alone would load nothing
            self.events.clear()
            self.ask("Page.navigate", url=url)
            while not any(event["method"] == "Page.loadEventFired" for event in self.events):
                self.events.append(self.receive())

    def value(self, expression):
        """The value of a JavaScript expression, as JSON."""
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"])
        return done["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r" if key == "Enter" else key} if kind == "keyDown" and key in (" ", "Enter") else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code="Space" if key == " " else key,
                     windowsVirtualKeyCode=KEYS[key], **text)

    def errors(self):
        """Exceptions and requests of the page shown."""
        return [event for event in self.events if event["method"] == "Runtime.exceptionThrown" or
                (event["method"] == "Network.requestWillBeSent" and
                 not event["params"]["request"]["url"].startswith(("file:", "data:", "about:", "blob:")))]

    def picture(self, file, whole=False):
        """Writes a screenshot: of the window, or of the whole page."""
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(file).write_bytes(base64.b64decode(data))
