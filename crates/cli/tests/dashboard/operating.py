"""What an operator does: asks the next morning why requests were refused, drains a pod, reads what a change would do."""

import json
import time
import urllib.error
import urllib.request

import axe
from browser import Browser
from visit import DESKTOP, PHONE, Visit, post

PODS = [f"pod-{number}" for number in range(4)]
VIEWS = ["fleet", "fleet/pod-1", "index", "decisions", "decisions?status=503", "profiles", "batches", "events", "setup"]


def ask(admin, path, method="POST"):
    request = urllib.request.Request(f"{admin}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def refused(client, times):
    """So many requests that no pod can take."""
    for number in range(times):
        try:
            post(f"{client}/v1/completions", {"model": "m", "prompt": f"at night {number}", "max_tokens": 1})
        except urllib.error.HTTPError as error:
            assert error.code == 503, error
        else:
            raise AssertionError("it was answered")


def why_503(visit, browser, admin):
    """From the front page to the reason in two clicks."""
    browser.open(f"{admin}/")
    browser.until("failures are told", lambda: "no pod could take it" in browser.text(".failures"))
    told = browser.text(".failures")
    assert "503" in told and "3 ×" in told, told
    browser.click(".failures a")
    browser.until("the requests are listed", lambda: browser.js("document.querySelectorAll('tbody tr').length") == 3)
    assert browser.js("document.querySelector('#filter-status').value") == "503", "the filter is shown"
    browser.click("tbody a")
    told = browser.until("the reason is told", lambda: "None of the 4 pods could take it" in browser.text(".panel") and browser.text(".panel"))
    for pod in PODS:
        assert pod in told, f"no {pod} in {told}"
    assert told.count("draining") == 4 and told.count("dropped by healthy") == 4, told
    visit.picture("why-503")
    visit.shown("why a request got 503, pod by pod, in two clicks")
    return browser.js("location.href")


def shared_link(visit, link):
    with Browser() as other:
        other.open(link)
        other.until("the link opens the same", lambda: "None of the 4 pods could take it" in other.text(".panel"))
        assert other.js("document.querySelector('#filter-cause').value") == "no_pod", "with the same filters"
    visit.shown("a link to it opens the same elsewhere")


def filters(visit, browser):
    rows = lambda: browser.js("document.querySelectorAll('[data-key=rows] tbody tr').length")
    choose = lambda name, value: browser.js(
        f"(field => {{ field.value = {json.dumps(value)}; field.dispatchEvent(new Event('change')); }})(document.querySelector('#filter-{name}'))")
    browser.click(".panel .chip")
    browser.until("it closes", lambda: browser.js("document.querySelector('.panel') === null"))
    fields = browser.js("[...document.querySelectorAll('.filters input')].map(field => field.value.length)")
    assert fields == [19, 19], f"an incident is a range of time: {fields}"
    browser.js("location.hash = '#decisions?cause=no_pod&status=503'")
    choose("status", "200")
    browser.until("nothing is both", lambda: "No request is like that" in browser.text())
    choose("cause", "")
    browser.until("answered requests are listed", lambda: rows() > 3)
    choose("pod", "pod-1")
    browser.until("of one pod", lambda: rows() and browser.js("[...document.querySelectorAll('tbody td[data-label=Pod] span')].every(one => one.innerText === 'pod-1')"))
    assert browser.js("location.hash") == "#decisions?pod=pod-1&status=200", browser.js("location.hash")
    later = int(time.time()) + 3600
    browser.js(f"location.hash = '#decisions?from={later}'")
    browser.until("none is of the future", lambda: "No request is like that" in browser.text())
    browser.click('.filters .chip')
    browser.until("all are listed again", lambda: rows() > 3)
    visit.shown("decisions by model, tenant, pod, status, reason and time")


def pod(visit, browser, admin):
    visit.go("fleet")
    browser.click('tr[data-key="pod-1"] a')
    browser.until("the pod has a page", lambda: browser.text("h1") == "pod-1")
    browser.until("its decisions are listed", lambda: browser.js("document.querySelectorAll('[data-key=decisions] tbody tr').length") > 0)
    browser.until("its prefixes too", lambda: browser.js("document.querySelectorAll('[data-key=prefixes] tbody tr').length") > 0)
    for wanted in ["checked", "zmq://", "Confidence"]:
        assert wanted in browser.text(), wanted
    visit.picture("pod")
    state = lambda: browser.text("#pod-state")
    browser.click('[data-key="drain"]')
    browser.until("it asks first", lambda: "It gets no new requests" in browser.text(".confirm"))
    browser.key("Escape")
    browser.until("Escape takes it back", lambda: browser.js("document.querySelector('.confirm') === null"))
    assert state() == "up", "nothing was done"
    browser.click('[data-key="drain"]')
    browser.click(".confirm .do")
    began = time.monotonic()
    browser.until("it drains", lambda: state() == "draining")
    assert time.monotonic() - began < 2, "the page shows it within 2 s"
    browser.click('[data-key="resume"]')
    browser.click(".confirm .do")
    browser.until("it is up again", lambda: state() == "up", 30)
    ask(admin, "/pods/pod-2/drain")
    began = time.monotonic()
    visit.go("fleet")
    browser.until("what others do is seen too", lambda: "pod-2 is draining" in browser.text(".concerns"))
    assert time.monotonic() - began < 2, "within 2 s"
    ask(admin, "/pods/pod-2/resume")
    browser.js("location.hash = '#fleet/pod-3'")
    browser.click('[data-key="remove"]')
    browser.click(".confirm .do")
    browser.until("it is gone", lambda: "There is no pod of this name" in browser.text())
    visit.go("fleet")
    browser.until("three are left", lambda: "3 of 3 up" in browser.text(), 30)
    visit.shown("a pod's page; drained, resumed and removed, each after it was asked")


def origins(visit, browser):
    browser.until("models are compared", lambda: "requests" in browser.text('[data-key="model-m"]'))
    browser.until("tokens per second are told", lambda: browser.text(".tiles.more .figures b") not in ("–", "0", ""))
    told = browser.text(".tiles.more")
    for wanted in ["between two tokens", "4xx per second", "5xx per second", "Prefill given away"]:
        assert wanted in told, f"no {wanted} in {told}"
    visit.shown("tokens per second, the time between them, errors, and figures by model")


def shadow(visit, browser):
    visit.go("profiles")
    browser.until("the shadow is compared", lambda: "round-robin" in browser.text(".shadow") and "%" in browser.text(".shadow"))
    told = browser.text(".shadow")
    assert "on the chosen pods" in told and "beside cache-aware" in told, told
    visit.picture("shadow")
    visit.shown("a shadow profile beside the one in use")


def setup(visit, browser):
    visit.go("setup")
    row = lambda key: browser.js(f"[...document.querySelectorAll('.effective tbody tr')].find(row => row.querySelector('th').innerText === '{key}')?.innerText ?? ''")
    browser.until("what the file says is told", lambda: "line" in row("explained") and "20" in row("explained"))
    assert row("stream_usage") == "", "defaults are not listed at first"
    browser.click('.effective .chip[aria-pressed="false"]')
    browser.until("then they are", lambda: "default" in row("stream_usage"))
    assert "option --batches" in row("batch.folder"), row("batch.folder")
    visit.shown("the configuration in force, and where each value comes from")


def obeys_rules(visit, browser, hashes):
    """No serious violation of accessibility rules, light and dark."""
    source = axe.source()
    if source is None:
        print("NOT SHOWN: accessibility rules, because axe-core is not installed", flush=True)
        return
    for hash in hashes:
        browser.js(f"location.hash = '#{hash}'")
        browser.until(f"{hash} is drawn", lambda: len(browser.text()) > 40)
        browser.until("nothing is awaited", lambda: "Asking…" not in browser.text())
        for scheme in ["dark", "light"]:
            browser.scheme(scheme)
            found = axe.serious(browser, source)
            assert not found, f"{hash}, {scheme}: {found}"
    visit.shown(f"no serious violation of axe's rules, light or dark: {', '.join(hashes)}")


def at_night(admin, client):
    """All pods are drained, and three requests come."""
    for name in PODS:
        ask(admin, f"/pods/{name}/drain")
    refused(client, 3)
    for name in PODS:
        ask(admin, f"/pods/{name}/resume")
    end = time.monotonic() + 30
    while any(pod["health"] != "up" for pod in ask(admin, "/pods", "GET")["pods"]):
        assert time.monotonic() < end, "the pods are not up again"
        time.sleep(0.05)


def operate(admin, images=""):
    with Browser() as browser:
        visit = Visit(browser, images)
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.open(f"{admin}/")
        browser.until("requests go on", visit.rate, 30)
        shared_link(visit, why_503(visit, browser, admin))
        filters(visit, browser)
        visit.go("fleet")
        origins(visit, browser)
        shadow(visit, browser)
        setup(visit, browser)
        obeys_rules(visit, browser, VIEWS)
        pod(visit, browser, admin)
        browser.size(*PHONE, scale=2)
        for hash in ["fleet/pod-1", "decisions?status=503", "profiles", "setup"]:
            browser.js(f"location.hash = '#{hash}'")
            browser.until(f"{hash} is drawn", lambda: len(browser.text()) > 40)
            visit.no_overflow(hash)
        assert not browser.complaints, f"the browser complains: {browser.complaints}"


def heat(visit, browser, admin, control):
    """Every pod of a large fleet at one look: three of them dead, one draining."""
    for engine in [20, 77, 201]:
        post(f"{control}/engines/{engine}/crash", b"")
    ask(admin, "/pods/pod-30/drain")
    visit.go("fleet")
    kinds = lambda kind: browser.js(f"[...document.querySelectorAll('.heat-cell.{kind}')].map(cell => cell.dataset.key)")
    browser.until("dead pods stand out", lambda: kinds("bad") == ["pod-20", "pod-77", "pod-201"], 90)
    browser.until("a draining one does", lambda: "pod-30" in kinds("warn"))
    cells = lambda: browser.js("document.querySelectorAll('.heat-cell').length")
    browser.until("every pod has a cell", lambda: cells() == 256)
    for width in [DESKTOP, PHONE]:
        browser.size(*width)
        visit.no_overflow("the heat map")
        assert cells() == 256
        box = browser.js("(box => [box.width, box.height])(document.querySelector('.heat-map').getBoundingClientRect())")
        assert box[1] <= 520, f"it fits on one screen: {box}"
    browser.size(*DESKTOP)
    concerns = browser.js("document.querySelectorAll('.concerns li').length")
    assert 4 <= concerns <= 7, f"{concerns} sentences"
    browser.js("scrollTo(0, 0)")
    visit.picture("heat")
    assert browser.js("document.querySelectorAll('.heat-cell[tabindex=\"0\"]').length") == 1, "the map is one stop of the Tab key"
    browser.js("document.querySelector('.heat-cell[tabindex=\"0\"]').focus()")
    for key in ["ArrowRight", "ArrowDown", "ArrowUp"]:
        browser.key(key)
    assert browser.js("document.activeElement.dataset.key") == "pod-1", "arrows move along the cells"
    obeys_rules(visit, browser, ["fleet"])
    browser.click('.heat .chip:nth-child(2)')
    browser.until("another figure can be shown", lambda: "KV cache used" in browser.text(".heat .legend"))
    browser.click('.heat-cell[data-key="pod-200"]')
    browser.until("a cell opens the pod's page", lambda: browser.text("h1") == "pod-200")
    visit.shown("256 pods on one screen, each with a page")


def fleet_of_256(admin, control, images=""):
    with Browser() as browser:
        visit = Visit(browser, images)
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.open(f"{admin}/")
        browser.until("requests go on", visit.rate, 60)
        heat(visit, browser, admin, control)
        assert not browser.complaints, f"the browser complains: {browser.complaints}"
