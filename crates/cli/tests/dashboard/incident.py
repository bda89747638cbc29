"""After an incident: a tenant flooded its quota and a pod died, and the page is opened when all is over."""

import json
import time
import urllib.request

from browser import Browser
from visit import DESKTOP, PHONE, Visit, post


def health(admin, pod):
    with urllib.request.urlopen(f"{admin}/pods", timeout=30) as answer:
        return next(one["health"] for one in json.load(answer)["pods"] if one["name"] == pod)


def until(what, is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def pod_dies(admin, control):
    post(f"{control}/engines/2/crash", b"")
    until("the pod is down", lambda: health(admin, "pod-2") == "down")
    time.sleep(2)
    post(f"{control}/engines/2/restart", b"")
    until("the pod is up", lambda: health(admin, "pod-2") == "up")


def look(admin, images=""):
    with Browser() as browser:
        visit = Visit(browser, images)
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.open(f"{admin}/")
        browser.until("requests go on", visit.rate, 30)
        browser.click(".ranges .chip:nth-child(2)")
        browser.until("what changed is told", lambda: browser.text(".changes"))
        if browser.text(".changes .chip"):
            browser.click(".changes .chip")
        told = browser.until("the pod's return is told", lambda: "pod-2 up" in browser.text(".changes") and browser.text(".changes"))
        assert "pod-2 down" in told, told
        told = browser.until("failures are told", lambda: "429" in browser.text(".failures") and browser.text(".failures"))
        assert "tenant quota exceeded" in told and "for flood" in told, told
        refused = lambda tenant: browser.text(f'[data-key="tenant-{tenant}"] td[data-label="4xx/s"] small')
        browser.until("tenants are compared", lambda: refused("flood"))
        assert refused("flood") != "0 in all" and refused("acme") == "0 in all", [refused("flood"), refused("acme")]
        for scheme in ["light", "dark"]:
            browser.scheme(scheme)
            for name, size, scale in [("incident", DESKTOP, 1), ("phone-incident", PHONE, 2)]:
                browser.size(*size, scale=scale)
                browser.js("scrollTo(0, 0)")
                visit.no_overflow("the page after an incident")
                visit.picture(name if scheme == "light" else f"{name}-dark")
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.click('.failures li[data-key^="429"] a')
        browser.until("the requests of the flood are listed", lambda: browser.js(
            "document.querySelectorAll('[data-key=rows] tbody tr').length > 3 &&"
            " [...document.querySelectorAll('[data-key=rows] td[data-label=Model] small')].every(one => one.innerText.startsWith('flood'))"))
        browser.click("tbody a")
        browser.until("the reason is told", lambda: "tenant quota exceeded" in browser.text(".panel") and "flood" in browser.text(".panel"))
        assert not browser.complaints, f"the browser complains: {browser.complaints}"
        visit.shown("a page that is opened after an incident: the flood of a tenant, and the pod that died")
