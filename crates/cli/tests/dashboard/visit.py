"""A visitor of the dashboard."""

import json
import os
import shutil
import subprocess
import time
import urllib.request

DESKTOP, PHONE = (1360, 860), (390, 844)


def post(url, body, kind="application/json", key=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, body, {"content-type": kind, **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def stream(url, body, key=None):
    """A streamed answer, read to its end."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps({**body, "stream": True}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def luminance(colour):
    """How bright `rgb(…)` is, by WCAG."""
    parts = [int(part) / 255 for part in colour[4:-1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class Visit:
    def __init__(self, browser, images):
        self.browser, self.images = browser, images

    def shown(self, what):
        print(f"shown: {what}", flush=True)

    def go(self, view):
        self.browser.click(f'nav a[href="#{view}"]')
        self.is_open(view)

    def is_open(self, view):
        self.browser.until(f"{view} is open", lambda: self.browser.js(
            f"document.querySelector('nav a[aria-current]').hash === '#{view}' && document.querySelector('main > [data-key={view}]') !== null"))

    def picture(self, name):
        if self.images:
            os.makedirs(self.images, exist_ok=True)
            time.sleep(0.6)
            path = os.path.join(self.images, f"dashboard-{name}.png")
            self.browser.picture(path)
            # A third of the bytes, without a visible difference.
            if shutil.which("pngquant"):
                subprocess.run(["pngquant", "--force", "--ext", ".png", "--speed", "1", "--strip", path], check=True)

    def lines_can_be_seen(self):
        """Every line of a chart has at least 3:1 against what it is drawn on."""
        colours = self.browser.js("[...document.querySelectorAll('.tile .lines path')].map(line =>"
                                  " [getComputedStyle(line).stroke, getComputedStyle(line.closest('.tile')).backgroundColor])")
        assert len(colours) >= 6, colours
        for pair in colours:
            (dark, light) = sorted(luminance(colour) for colour in pair)
            assert (light + 0.05) / (dark + 0.05) >= 3, f"{pair} cannot be told apart"

    def no_overflow(self, view):
        over = self.browser.js("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{view} is {over} pixels wider than the screen"

    def rate(self):
        """What the page says of requests a second; none if it says nothing."""
        said = self.browser.text(".tile .figures b")
        return said if said not in ("–", "0", "") else None
