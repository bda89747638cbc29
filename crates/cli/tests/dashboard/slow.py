"""A pod that answers, but thirteen times as slowly as its peers."""

import json
import time
import urllib.request

from browser import Browser
from visit import DESKTOP, PHONE, Visit

TIMES = ["first_token", "inter_token"]


def set_faults(control, engine, faults):
    request = urllib.request.Request(f"{control}/engines/{engine}/faults", json.dumps(faults).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def metric(admin, line):
    """The value of a line of the metrics page."""
    with urllib.request.urlopen(f"{admin}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(found.rsplit(" ", 1)[1]) for found in lines if found.startswith(f"{line} ")), None)


def read(admin, path):
    with urllib.request.urlopen(f"{admin}{path}", timeout=30) as answer:
        return json.load(answer)


def look(admin, control, images=""):
    with Browser() as browser:
        visit = Visit(browser, images)
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.open(f"{admin}/")
        cells = lambda: browser.js("[...document.querySelectorAll('td[data-label=\"First token\"] span')].map(cell => cell.innerText)")
        browser.until("every pod is measured", lambda: len(cells()) == 4 and "–" not in cells(), 60)
        set_faults(control, 1, {"slow": 13})
        began = time.monotonic()
        told = browser.until("the slow pod is named", lambda: "pod-1 is slow" in browser.text(".concerns") and browser.text(".concerns"), 60)
        seconds = time.monotonic() - began
        # Its peers have more to do now, and one of them may be slow as well while the machine is busy.
        assert "half of its peers take" in told, told
        browser.until("its row says so", lambda: browser.text('tr[data-key="pod-1"] td[data-label=State]').startswith("slow"))
        browser.until("its line stands out", lambda: browser.js("document.querySelectorAll('[data-key=speeds] .lines path.warn').length") >= 1)
        peers = browser.js("document.querySelectorAll('[data-key=first_token] .lines path').length")
        assert peers == 4, f"{peers} pods have a line"
        browser.until("it is called the slowest", lambda: "pod-1, the slowest" in browser.text("[data-key=speeds]"))
        browser.until("it is among what changed", lambda: "pod-1 slow" in browser.text(".changes"))
        slow = [metric(admin, f'wornpath_pod_slow{{pod="pod-1",time="{time}"}}') for time in TIMES]
        assert sorted(slow) == [0, 1], slow
        told = next(pod["speed"]["slow"] for pod in read(admin, "/pods")["pods"] if pod["name"] == "pod-1")
        described = read(admin, "/openapi.json")["components"]["schemas"]
        assert told and set(told) == set(described["SlowPod"]["properties"]), told
        times = read(admin, "/history")["pods"]["series"]
        assert times and all(set(pod) == set(described["PodTimes"]["properties"]) for pod in times), times
        assert metric(admin, 'wornpath_pod_first_token_seconds_count{pod="pod-1"}') > 3
        if images:
            time.sleep(40)
        visit.picture("slow-pod")
        browser.js("location.hash = '#fleet/pod-1'")
        browser.until("its page says so", lambda: "pod-1 is slow" in browser.text(".pod-page"))
        browser.until("with its own chart", lambda: browser.js("document.querySelector('.pod-page .lines path')?.getAttribute('d').length ?? 0") > 20)
        assert "slow" in browser.text(".changes"), browser.text(".changes")
        browser.size(*PHONE)
        visit.no_overflow("the page of a slow pod")
        browser.js("location.hash = '#fleet'")
        browser.until("the fleet is shown", lambda: browser.text(".pods"))
        visit.no_overflow("the fleet with a slow pod")
        set_faults(control, 1, {})
        browser.until("it is slow no longer", lambda: "pod-1 no longer slow" in browser.text(".changes"), 90)
        browser.until("and wants no look any more", lambda: "pod-1 is slow" not in browser.text(".concerns"))
        assert not browser.complaints, f"the browser complains: {browser.complaints}"
        visit.shown(f"a pod that is 13 times slower than its peers, named after {seconds:.0f} s")
