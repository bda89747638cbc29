"""Goes through the dashboard as a person would, in a real browser, while requests come in.

usage: dashboard.py views ADMIN CLIENT CONTROL [IMAGES]
       dashboard.py token ADMIN
       dashboard.py gone ADMIN CLIENT PROCESS
       dashboard.py many ADMIN CLIENT CONTROL
       dashboard.py operate ADMIN CLIENT [IMAGES]
       dashboard.py 256 ADMIN CLIENT CONTROL [IMAGES]
       dashboard.py incident ADMIN CLIENT CONTROL [IMAGES]
       dashboard.py slow ADMIN CLIENT CONTROL [IMAGES]
       dashboard.py demo ADMIN [IMAGES]

Prints a line for everything it has seen; with a folder for images, pictures of the views are left there.
"""

import json
import random
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import incident
import operating
import scenes
import slow
from browser import Browser
from visit import DESKTOP, PHONE, Visit, post, stream

VIEWS = ["fleet", "index", "decisions", "profiles", "batches", "events", "setup"]
BAD_PROFILE = "filter: [healthy, model]\nscore:\n  - least_lode: {weight: 1}\npick: max_score\n"


class Traffic:
    """Chats that share long beginnings, from a few threads, until it is told to stop."""

    def __init__(self, client, threads=16, key=None, send=post):
        self.client, self.key, self.send, self.over, self.failures = client, key, send, threading.Event(), []
        self.threads = [threading.Thread(target=self.chat, args=(number,)) for number in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def chat(self, number):
        """Some subjects are asked about more than others; chapters are shared, questions are new."""
        chance = random.Random(number)
        house = "You are the assistant of a library, patient and exact. " * 8
        while not self.over.is_set():
            subject = min(int(chance.expovariate(0.5)), 9)
            book = f"Book {subject}: " + "the story goes on and on, and something happens in it. " * (6 + 3 * subject)
            chapter = f"Chapter {chance.randrange(6)}: " + "here it is told in detail. " * 14
            question = "".join(chance.choice("abcdefgh ") for _ in range(chance.randrange(100, 700)))
            body = {"model": "m", "max_tokens": 12, "messages": [
                {"role": "system", "content": house + book}, {"role": "user", "content": f"{chapter}{question}?"}]}
            try:
                self.send(f"{self.client}/v1/chat/completions", body, key=self.key)
            except (urllib.error.URLError, OSError) as error:
                self.failures.append(str(error))
            self.over.wait(chance.random() / 10)


def submit_batch(client):
    """A batch that takes a while, by the interface for clients."""
    shared = "A long beginning that every line of this batch has. " * 20
    lines = [json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": f"{shared} Topic {number % 12} has a chapter of its own here. Item {number}."}]}})
        for number in range(8000)]
    edge = "edge-of-a-form"
    form = (f'--{edge}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{edge}\r\ncontent-disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n').encode()
    form += "\n".join(lines).encode() + f"\r\n--{edge}--\r\n".encode()
    file = post(f"{client}/v1/files", form, f"multipart/form-data; boundary={edge}")
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"name": "nightly"}}
    return post(f"{client}/v1/batches", wanted)["id"]


def fleet(visit, browser):
    browser.until("four pods are up", lambda: browser.text().count("breaker closed") == 4)
    before = browser.until("requests are counted", visit.rate)
    browser.until("the rate moves by itself", lambda: visit.rate() not in (None, before))
    browser.until("hits are compared", lambda: "%" in browser.text(".tile:nth-child(3) .figures b"))
    browser.until("cache events are live", lambda: browser.text("tbody").count("live") == 4)
    browser.until("predicted and actual hits are shown", lambda: browser.js("document.querySelectorAll('.pair').length") == 4)
    told = browser.text(".tile:nth-child(2) figcaption")
    assert "last 2 min" in told and "highest" in told, f"the chart has no scale: {told}"
    past(visit, browser)
    # Text and bar may be of two drawings only if the page is drawn in between: both are read at once.
    loads = browser.js("[...document.querySelectorAll('td[data-label=Load]')].map(cell => [Number(cell.querySelector('span').innerText),"
                       " Number(cell.querySelector('.bar').style.getPropertyValue('--share'))])")
    most = max(16, *(load for load, _ in loads))
    assert all(abs(share - load / most) < 0.01 for load, share in loads), f"one request is no full bar: {loads}"
    visit.shown("fleet, with rates that move by themselves")


def past(visit, browser):
    """The charts show what was before the page was opened, in the range that is picked."""
    browser.until("what changed is listed", lambda: "the router started" in browser.text(".changes"))
    browser.click(".ranges button:nth-child(3)")
    browser.until("an hour is shown", lambda: "last 1 h" in browser.text(".tile figcaption"))
    browser.until("its beginning is marked", lambda: browser.js("document.querySelectorAll('.lines .mark').length") >= 4)
    known = "document.querySelector('.tile .lines path').getAttribute('d').length"
    browser.until("the hour has a line", lambda: browser.js(known) > 20)
    browser.click(".ranges button:nth-child(5)")
    browser.until("a day is shown", lambda: "last 24 h" in browser.text(".tile figcaption"))
    browser.until("what was before the start is no unexplained hole", lambda: "before the router started" in browser.text(".tile .gap"))
    browser.click(".ranges button:nth-child(1)")
    browser.until("two minutes are shown again", lambda: "last 2 min" in browser.text(".tile figcaption"))


def gaps(visit, browser):
    """Every gap of a chart has its reason."""
    call = lambda name, *given: browser.js(
        f"import('/dashboard/gaps.js').then(gaps => gaps.{name}({', '.join(one if isinstance(one, str) else json.dumps(one) for one in given)}))")
    times = {"from": 1000, "step": 10, "started": 1020}
    rows = [None, None, None, {"requests": 0, "hit_rate": None}, {"requests": 4, "hit_rate": None}, {"requests": 4, "hit_rate": 0.5}]
    early, unsampled = "before the router started", "the router took no sample"
    told = call("fleetGaps", times, rows, "rates => rates.hit_rate")
    assert told == [early, early, unsampled, "no requests", "not reported by the engines", None], told
    changes = [{"at": at, "kind": kind, "pod": "a"} for at, kind in
               [(1031, "pod_added"), (1041, "pod_up"), (1061, "pod_down"), (1071, "pod_removed")]] + [{"at": 1045, "kind": "pod_down", "pod": "b"}]
    told = call("podGaps", times, [None, None, None, None, None, 0.1, None, None, None], changes, "'a'", "'gone'")
    none = "no streamed requests"
    assert told == [early, early, "not in the fleet", "starting", none, None, "down", "not in the fleet", "not in the fleet"], told
    told = call("podGaps", {**times, "started": 1}, [None, 0.2], [], "'b'", "'up'")
    assert told == [none, None], told
    assert call("commonGaps", [["down", "down", None], ["down", "x", "down"]]) == ["down", none, None]
    visit.shown("a reason for every gap in a chart")


def index(visit, browser):
    visit.go("index")
    browser.until("prefixes are drawn", lambda: browser.js("document.querySelectorAll('.run').length") >= 5)
    assert browser.js("[...document.querySelectorAll('.run')].some(run => run.innerText.includes('pods'))"), "no prefix is shared"
    browser.js("document.querySelector('.run[tabindex=\"0\"]').focus()")
    first = browser.text(".facts code")
    browser.key("ArrowDown")
    browser.until("an arrow key walks to what follows", lambda: browser.text(".facts code") not in ("", first))
    assert browser.js("document.activeElement.classList.contains('run')"), "focus goes with it"
    browser.key("ArrowUp")
    browser.until("and back", lambda: browser.text(".facts code") == first)
    browser.click('.chips button:nth-child(2)')
    browser.until("what a pod does not hold is dimmed", lambda: browser.js("document.querySelectorAll('.run.off').length") > 0)
    browser.click('.chips button:nth-child(1)')
    visit.shown("index, as an icicle that keys walk along")


def decisions(visit, browser):
    visit.go("decisions")
    latest = lambda: browser.text("tbody tr th")
    first = browser.until("decisions are listed", latest)
    browser.until("new ones come by themselves", lambda: latest() != first)
    browser.point("tbody tr:nth-child(3)")
    browser.until("the list is held while the pointer is on it", lambda: "held" in browser.text())
    held = latest()
    time.sleep(2.5)
    assert latest() == held, "rows move away under the pointer"
    browser.point("h1")
    browser.until("and goes on afterwards", lambda: latest() != held)
    browser.js("document.querySelector('tbody .link').focus()")
    address = browser.js("document.activeElement.hash")
    browser.key("Enter")
    browser.until("an explanation opens", lambda: "Step" in browser.text(".panel"))
    assert browser.js("location.hash") == address, "it has an address of its own"
    browser.until("the focus goes to it", lambda: browser.js("document.activeElement.className") == "panel")
    assert browser.js(f"document.querySelector('tr.open a')?.hash === {json.dumps(address)}"), "its row stays"
    told = browser.text(".panel")
    for wanted in ["Filter", "healthy", "Score", "Pick", "→", "Calls", "predicted"]:
        assert wanted in told, f"no {wanted} in {told}"
    assert browser.js("document.querySelectorAll('.panel .stack .part').length") >= 4, "scores are bars"
    browser.key("Escape")
    browser.until("Escape closes it", lambda: browser.js("document.querySelector('.panel') === null"))
    browser.until("the focus goes back", lambda: browser.js("document.activeElement.hash") == address)
    browser.js(f"location.hash = {json.dumps(address)}")
    browser.until("its address opens it", lambda: "Step" in browser.text(".panel"))
    browser.click(".panel .chip")
    browser.until("it closes", lambda: browser.js("document.querySelector('.panel') === null"))
    browser.js("document.activeElement.blur()")
    browser.click('.chip[aria-pressed="false"]')
    browser.until("the list can be stopped", lambda: "paused" in browser.text())
    browser.click('.chip[aria-pressed="true"]')
    visit.shown("decisions, and the explanation of one")


def profiles(visit, browser):
    visit.go("profiles")
    browser.until("a graph is drawn", lambda: browser.js("document.querySelectorAll('.graph .box').length") >= 5)
    words = browser.text(".graph")
    for wanted in ["prepare", "slots", "filter", "score", "pick", "tokenize", "block_hash", "healthy"]:
        assert wanted in words, f"no {wanted} in {words}"
    assert browser.js("document.querySelectorAll('.graph .wire').length") >= 3
    browser.js("document.querySelector('.graph .box').focus()")
    browser.key("Enter")
    browser.until("its wires light up", lambda: browser.js("document.querySelectorAll('.wire.on').length") > 0)
    visit.shown("the profile as a graph")


def batches(visit, browser, client):
    visit.go("batches")
    assert "wornpath batch submit" in browser.text(), "an empty view says what to do"
    batch = submit_batch(client)
    browser.until("the batch comes", lambda: batch in browser.text())
    done = lambda: browser.js("Number(document.querySelector('[role=progressbar]')?.getAttribute('aria-valuenow') ?? 0)")
    first = browser.until("lines are answered", done)
    browser.until("more by themselves", lambda: done() > first)
    browser.until("time left and plan are told", lambda: "left" in browser.text() and "of prefill saved" in browser.text())
    assert browser.js("document.querySelectorAll('.shares li').length") == 4, "the plan has four pods"
    work = browser.text(".shares.work")
    assert work.count("tokens of") == 4 and work.count(" s,") + work.count("min,") + work.count("ms,") == 4, f"bars are by work: {work}"
    told = browser.text(".card .facts")
    for wanted in ["Tenant", "Created", "Started", "Expires", "nightly"]:
        assert wanted in told + browser.text(".card h2"), f"no {wanted} in {told}"
    forest = browser.until("the forest is drawn", lambda: browser.js("[...document.querySelectorAll('.forest .run')].map(run => run.getAttribute('aria-label'))"))
    assert [f"pod-{pod} computes" in " ".join(forest) for pod in range(4)] == [True] * 4, f"every pod has its part: {forest}"
    # Eight thousand lines that begin alike, on twelve topics: every pod has the beginning, and topics below it.
    assert sum("share their first" in label for label in forest) >= 12, forest
    nested = browser.js("Math.max(...[...document.querySelectorAll('.forest .run')].map(run => Number(run.style.getPropertyValue('--row'))))")
    assert nested >= 2, f"topics stand below what all share, in row {nested}"
    browser.js("document.querySelector('.forest .run[tabindex=\"0\"]').focus()")
    browser.key("ArrowDown")
    browser.until("an arrow key walks down the forest", lambda: "share their first" in browser.text(".forest [aria-live]"))
    assert "the first is line" in browser.text(".forest [aria-live]")
    assert not re.search(r"the (\S+) of \1 groups", browser.text(".forest")), browser.text(".forest")
    visit.shown("a batch, its progress, its plan and its prefix forest")


def events(visit, browser):
    visit.go("events")
    browser.until("sources are listed", lambda: browser.text("tbody").count("zmq://") == 4)
    browser.until("they are live", lambda: browser.text("tbody").count("trusted as exact") == 4)
    visit.shown("event sources and their health")


def setup(visit, browser):
    visit.go("setup")
    browser.until("the file is named", lambda: "wornpath.yaml" in browser.text())
    browser.write("#pasted", BAD_PROFILE)
    browser.click('form button[type="submit"]')
    told = browser.until("the profile is refused", lambda: "line 3, column 5" in browser.text("#verdict") and browser.text("#verdict"))
    assert "least_load" in told and "^^^" in told, told
    browser.click("#verdict .link")
    chosen = browser.js("(() => { const a = document.activeElement; return a.value?.slice(a.selectionStart, a.selectionEnd); })()")
    assert chosen == "least_lode", f"the cursor goes to the problem, not to {chosen}"
    browser.write("#pasted", BAD_PROFILE.replace("lode", "load"))
    browser.click('form button[type="submit"]')
    browser.until("the corrected one is good", lambda: "Good" in browser.text("#verdict"))
    browser.js("[...document.querySelectorAll('.chip')].find(chip => chip.innerText === 'configuration').click()")
    browser.write("#pasted", "pods: [{url: ftp://a}]\n")
    browser.click('form button[type="submit"]')
    browser.until("a configuration is checked too", lambda: "line 1" in browser.text("#verdict"))
    visit.shown("a pasted profile, checked by the router")


def keyboard(visit, browser):
    """Everything that can be pressed is reached by tabbing, in the order of the page, and can be seen to be."""
    visit.go("fleet")
    browser.js("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(12):
        browser.key("Tab")
        reached.append(browser.js("document.activeElement.getAttribute('href') ?? document.activeElement.id"))
        if reached[-1] == "#setup":
            break
    wanted = [f"#{view}" for view in VIEWS]
    assert [one for one in reached if one in wanted][-7:] == wanted, f"tabbing reaches {reached}"
    outline = browser.js("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "focus can be seen"
    browser.key("Enter")
    browser.until("Enter opens the view", lambda: browser.js("location.hash") == "#setup")
    visit.shown("everything by keyboard")


def phone(visit, browser):
    browser.size(*PHONE, scale=2)
    for view in VIEWS:
        # By its address, and not by a click, which would scroll to what it clicks.
        browser.js(f"location.hash = '#{view}'")
        visit.is_open(view)
        browser.until(f"{view} has content", lambda: len(browser.text()) > 40)
        visit.no_overflow(view)
        left, right = browser.js("(({left, right}) => [left, right])(document.querySelector('nav a[aria-current]').getBoundingClientRect())")
        assert 0 <= left and right <= PHONE[0], f"the tab of {view} is at {left} to {right}"
    visit.go("decisions")
    browser.click("tbody .link")
    browser.until("an explanation opens on the phone", lambda: "Step" in browser.text(".panel"))
    visit.no_overflow("an explanation")
    browser.click(".panel .chip")
    browser.size(*DESKTOP)
    visit.shown("every view at 390 pixels, none wider than the screen")


def dark(visit, browser):
    light = browser.js("getComputedStyle(document.body).backgroundColor")
    browser.scheme("dark")
    night = browser.js("getComputedStyle(document.body).backgroundColor")
    brightness = lambda colour: sum(int(part) for part in colour[4:-1].split(",")[:3])
    assert brightness(light) > 600 and brightness(night) < 150, f"{light} and {night}"
    visit.go("fleet")
    visit.lines_can_be_seen()
    browser.scheme("light")
    visit.lines_can_be_seen()
    visit.shown("dark where it is wanted")


def killed(visit, browser, control):
    visit.go("fleet")
    post(f"{control}/engines/2/crash", b"")
    browser.until("a pod that is killed turns down", lambda: "pod-2 is down" in browser.text(".concerns"), 30)
    assert browser.js("document.querySelector('tr.down th').innerText").startswith("pod-2")
    browser.until("the fleet counts three", lambda: "3 of 4 up" in browser.text())
    visit.picture("pod-down")
    post(f"{control}/engines/2/restart", b"")
    browser.until("it comes back", lambda: "4 of 4 up" in browser.text(), 30)
    visit.shown("a pod that is killed, and that comes back")


def check_silence(browser, admin):
    host = urllib.parse.urlsplit(admin).netloc
    browser.js("1")
    elsewhere = {url for url in browser.requested if urllib.parse.urlsplit(url).netloc not in (host, "")}
    assert not elsewhere, f"the page asked elsewhere: {elsewhere}"
    assert not browser.complaints, f"the browser complains: {browser.complaints}"
    assert any(url.endswith("/live") for url in browser.requested), "requests are seen at all"


def views(admin, client, control, images=""):
    with Browser() as browser, Traffic(client) as traffic:
        visit = Visit(browser, images)
        browser.size(*DESKTOP)
        browser.scheme("light")
        browser.open(f"{admin}/")
        fleet(visit, browser)
        gaps(visit, browser)
        index(visit, browser)
        decisions(visit, browser)
        profiles(visit, browser)
        events(visit, browser)
        setup(visit, browser)
        keyboard(visit, browser)
        phone(visit, browser)
        dark(visit, browser)
        batches(visit, browser, client)
        killed(visit, browser, control)
        check_silence(browser, admin)
        visit.shown("no complaint of the browser, and no request to another host")
    assert not traffic.failures, f"clients were failed: {traffic.failures[:3]}"


def token(admin):
    with Browser() as browser:
        visit = Visit(browser, "")
        browser.open(f"{admin}/")
        browser.until("it asks for the token", lambda: "asks for a token" in browser.text())
        assert "pod-0" not in browser.text()
        # A browser tells of answers such as 401 itself; this one was asked for.
        assert all("401" in complaint for complaint in browser.complaints), browser.complaints
        browser.write("#token", "wrong")
        browser.click('form button[type="submit"]')
        time.sleep(0.5)
        browser.until("a wrong one opens nothing", lambda: "asks for a token" in browser.text())
        browser.until("it says that it is wrong", lambda: "refused this token" in browser.text("#wrong"))
        browser.write("#token", "secret")
        browser.click('form button[type="submit"]')
        browser.until("the right one does", lambda: browser.text().count("breaker closed") == 4)
        visit.go("setup")
        browser.write("#pasted", BAD_PROFILE)
        browser.click('form button[type="submit"]')
        browser.until("and goes with every question", lambda: "line 3" in browser.text("#verdict"))
        visit.shown("a token is asked for and kept")


if __name__ == "__main__":
    def gone(admin, client, process):
        with Traffic(client, threads=2):
            scenes.gone(admin, int(process))

    def many(admin, client, control):
        with Traffic(client, threads=2) as traffic:
            scenes.many(admin, control)
        assert not traffic.failures, f"clients were failed: {traffic.failures[:3]}"

    def operate(admin, client, images=""):
        operating.at_night(admin, client)
        with Traffic(client, threads=4):
            operating.operate(admin, images)

    def large_fleet(admin, client, control, images=""):
        with Traffic(client):
            operating.fleet_of_256(admin, control, images)

    def after_incident(admin, client, control, images=""):
        with Traffic(client, threads=4, key="acme-key", send=stream):
            with Traffic(client, threads=16, key="flood-key"):
                time.sleep(3)
            incident.pod_dies(admin, control)
            # Pictures are of a page that is opened ten minutes later.
            time.sleep(600 if images else 0)
            incident.look(admin, images)

    def slow_pod(admin, client, control, images=""):
        with Traffic(client, threads=6, send=stream) as traffic:
            slow.look(admin, control, images)
        assert not traffic.failures, f"clients were failed: {traffic.failures[:3]}"

    {"256": large_fleet, "slow": slow_pod, "incident": after_incident, "operate": operate, "views": views, "token": token, "gone": gone, "many": many, "demo": scenes.demo}[sys.argv[1]](*sys.argv[2:])
