"""What needs a stage of its own: a router that goes, a large fleet, the demo."""

import json
import os
import signal
import time
import urllib.request

from browser import Browser
from visit import DESKTOP, PHONE, Visit, post


def gone(admin, process):
    """Stops the router, lets it go on, and kills it."""
    with Browser() as browser:
        visit = Visit(browser, "")
        browser.size(*DESKTOP)
        browser.open(f"{admin}/")
        browser.until("requests are counted", visit.rate)
        dimmed = lambda: browser.js("getComputedStyle(document.querySelector('main > [data-key]:last-child')).opacity") < "0.6"
        assert not dimmed()
        os.kill(process, signal.SIGSTOP)
        try:
            told = browser.until("it says that it is not connected", lambda: browser.text(".lost"))
            assert "Not connected since" in told and "fallen silent" in told, told
            assert dimmed(), "old figures look as if they were new"
            browser.js("location.hash = '#index'")
            told = browser.until("a view that cannot be filled says why", lambda: "Not known" in browser.text() and browser.text())
            assert "Looking at the caches" not in told, told
            browser.js("location.hash = '#fleet'")
        finally:
            os.kill(process, signal.SIGCONT)
        browser.until("it goes on by itself", lambda: not browser.text(".lost") and not dimmed() and visit.rate(), 30)
        browser.until("the seconds that are missing say why", lambda: browser.js("document.querySelector('.tile .gap[title=\"the router took no sample\"]') !== null"))
        os.kill(process, signal.SIGKILL)
        told = browser.until("a router that is killed is told of", lambda: "does not answer" in browser.text(".lost") and browser.text(".lost"))
        visit.shown(f"a router that does not answer: {told}")


def many(admin, control):
    """Twenty-four pods, one of which dies."""
    with Browser() as browser:
        visit = Visit(browser, "")
        browser.size(*DESKTOP)
        browser.open(f"{admin}/")
        rows = lambda: browser.js("[...document.querySelectorAll('.pods tbody tr')].map(row => row.dataset.key)") or []
        browser.until("all are listed", lambda: len(rows()) == 24)
        rate = "(Number(document.querySelector('.pods tbody tr td[data-label=\"Requests/s\"] span').innerText) || 0)"
        browser.until("the busiest stands first", lambda: browser.js(rate) > 0)
        post(f"{control}/engines/20/crash", b"")
        browser.until("a pod is down", lambda: "pod-20 is down" in browser.text(".concerns"), 60)
        browser.until("it stands before all others", lambda: rows()[0] == "pod-20")
        browser.js("document.querySelector('#find').focus()")
        browser.call("Input.insertText", text="POD-1")
        browser.until("some can be found by name", lambda: sorted(rows()) == sorted(["pod-1", *(f"pod-{number}" for number in range(10, 20))]))
        assert browser.js("document.activeElement.value") == "POD-1", "what is written stays"
        height = browser.js("Math.max(...[...document.querySelectorAll('.pods tbody tr')].map(row => row.offsetHeight))")
        assert height < 45, f"a row of many is {height} pixels high"
        visit.go("index")
        browser.until("prefixes are drawn", lambda: browser.js("document.querySelectorAll('.run').length") > 1)
        assert browser.js("document.querySelectorAll('#holder option').length") == 25, "pods are chosen from a list"
        browser.js("(field => { field.value = 'pod-20'; field.dispatchEvent(new Event('change')); })(document.querySelector('#holder'))")
        browser.until("what a dead pod does not hold is dimmed", lambda: browser.js("document.querySelectorAll('.run.off').length") > 0)
        most = browser.js("Math.max(...[...document.querySelectorAll('.run')].map(run => Number(run.style.getPropertyValue('--held'))))")
        assert most == 1, f"what most pods hold has the strongest colour, not {most}"
        browser.size(*PHONE)
        for view in ["fleet", "index"]:
            visit.go(view)
            visit.no_overflow(view)
        visit.shown("twenty-four pods: what wants a look first, then the busiest, and a field to find others")


def demo(admin, images=""):
    """From the first line that the demo prints, through its show, to what it serves afterwards."""
    with Browser() as browser:
        visit = Visit(browser, images)
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.open(f"{admin}/")
        browser.until("the show is live", visit.rate)
        if images:
            policy = lambda: json.load(urllib.request.urlopen(f"{admin}/decisions?last=1"))["decisions"][0]["profile"]
            browser.until("the second policy has its turn", lambda: policy() == "cache-aware", 300)
            time.sleep(35)
        browser.until("all four pods are up", lambda: "4 of 4 up" in browser.text(), 60)
        visit.picture("fleet")
        browser.size(*PHONE, scale=2)
        visit.no_overflow("fleet")
        visit.picture("phone-fleet")
        browser.size(*DESKTOP)
        browser.scheme("dark")
        visit.picture("fleet-dark")
        browser.scheme("light")
        visit.go("batches")
        browser.until("the batch has ended", lambda: "240 of 240 lines" in browser.text() and "completed" in browser.text(), 300)
        browser.until("it is folded", lambda: browser.js("document.querySelector('.forest') === null"))
        browser.click(".fold")
        browser.until("and opens", lambda: browser.text(".forest"))
        browser.js("document.querySelector('.forest .run[tabindex=\"0\"]').focus()")
        browser.key("ArrowDown")
        visit.picture("batches")
        visit.go("fleet")
        time.sleep(5)
        browser.until("requests go on after the show", visit.rate)
        visit.go("index")
        browser.until("prefixes are drawn", lambda: browser.js("document.querySelectorAll('.run').length") >= 5)
        visit.picture("index")
        visit.go("profiles")
        browser.until("a graph is drawn", lambda: browser.js("document.querySelectorAll('.graph .box').length") >= 5)
        browser.click(".graph .box.slot")
        visit.picture("profiles")
        visit.go("decisions")
        browser.click("tbody .link")
        browser.until("a decision is explained", lambda: "predicted_ttft" in browser.text(".panel"))
        visit.picture("decision")
        browser.size(*PHONE, scale=2)
        visit.no_overflow("an explanation")
        browser.js("scrollTo(0, 0)")
        visit.picture("phone-decision")
        assert not browser.complaints, f"the browser complains: {browser.complaints}"
        visit.shown("the demo, from its first line on")
