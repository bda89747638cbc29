"""A headless Chromium, driven by its DevTools protocol: just what the dashboard's test needs.

Everything that the page logs, every exception and every request is kept, so that a test can say that there was none.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

import websocket

NAMES = ["chromium-headless-shell", "chromium", "google-chrome", "chrome-headless-shell"]


def find():
    """The first Chromium there is, or none."""
    named = os.environ.get("WORNPATH_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Use it in a `with`: the process and its files go with it."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        arguments = [
            find(), "--headless", "--remote-debugging-port=0", "--remote-allow-origins=*", "--no-first-run",
            "--no-default-browser-check", "--disable-extensions", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={self.folder}", "about:blank",
        ]
        if os.geteuid() == 0:
            arguments.insert(1, "--no-sandbox")
        # Some are started by a script, and all have children: they are one group, and go together.
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # What was killed may still be on its way out.
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self):
        port_file = os.path.join(self.folder, "DevToolsActivePort")
        self.until("Chromium listens", lambda: os.path.exists(port_file) and open(port_file).read().count("\n") > 0, 30)
        port = open(port_file).readline().strip()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=60, suppress_origin=True)
        self.number, self.complaints, self.requested = 0, [], []
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Sends a command and waits for its result."""
        self.number += 1
        number = self.number
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                detail = told["exceptionDetails"]
                self.complaints.append(detail.get("exception", {}).get("description") or detail["text"])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(str([argument.get("value") for argument in told["args"]]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requested.append(told["request"]["url"])

    def js(self, expression):
        """The value of an expression in the page; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def text(self, selector="main"):
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def until(self, what, is_so, seconds=20):
        """Waits until something is so, and returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = is_so()
            if value:
                return value
            time.sleep(0.05)
        shown = self.text() if hasattr(self, "socket") else ""
        raise AssertionError(f"not within {seconds} s: {what}\nthe page shows:\n{shown}")

    def open(self, url):
        self.call("Page.navigate", url=url)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 500)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def click(self, selector):
        """Presses the middle of an element with a real mouse."""
        place = self.until(f"{selector} is there", lambda: self.js(
            f"(() => {{ const el = document.querySelector({json.dumps(selector)}); if (!el) return null;"
            " el.scrollIntoView({block: 'center'}); const box = el.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"))
        for kind in ["mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def point(self, selector):
        """Moves the mouse over an element."""
        place = self.js(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    def key(self, name, modifiers=0):
        codes = {"Tab": 9, "Escape": 27, "Enter": 13, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"Enter": "\r"}.get(name, "")
        for kind in ["keyDown", "keyUp"]:
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name], modifiers=modifiers, **more)

    def write(self, selector, text):
        self.js(f"(() => {{ const el = document.querySelector({json.dumps(selector)}); el.focus(); el.value = {json.dumps(text)}; }})()")

    def picture(self, path):
        shot = self.call("Page.captureScreenshot", format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
