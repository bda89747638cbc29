"""Cache events: callers without a token, web pages, malformed frames and posts, floods, and reports for other pods."""

import json
import random
import struct
import time

import zeromq
from lab import attack, digest, free_port, until
from wire import Engine, ask, connect, post_head, read_answer

SEED = 20240517


def push_router(lab, token=None, pod_tokens=False):
    """A router that sidecars report to, for the pods `a` and `b`; and the address that they post to."""
    engines = [lab.own(Engine()) for _ in range(2)]
    address = f"127.0.0.1:{free_port()}"
    own = (lambda name: {"event_token_digest": digest(f"token-{name}")}) if pod_tokens else (lambda name: {})
    config = {
        "listen": {"events": {"address": address, **({"token_digest": digest(token)} if token else {})}},
        "event_sources": [{"name": "sidecars", "kind": "push"}],
        "models": [{"name": "m", "tokenizer": "bytes", "block_size": 4}],
        "pods": [engine.pod(name=name, events=["sidecars"], **own(name)) for name, engine in zip("ab", engines)],
    }
    return lab.serve(config, pods=2), address


def post(address, path, body, **headers):
    return ask(address, "POST", path, {"content-type": "application/json", **headers}, body)


def blocks(router, pod):
    """How many blocks of a pod the index has."""
    line = f'wornpath_pod_blocks{{pod="{pod}"}} '
    page = router.get("/metrics").text
    return next((int(float(row[len(line) :])) for row in page.splitlines() if row.startswith(line)), 0)


REPORT = {"pod": "a", "stored": [{"hashes": [11, 12], "tokens": list(range(8)), "block_size": 4}]}


@attack("reports without the token, with another pod's token, and by web pages")
def access(lab):
    router, address = push_router(lab, token="secret", pod_tokens=True)
    paths = ["register", "stored", "evicted", "sync", "digest", "bye", "nothing"]
    for path in paths:
        for key in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"authorization": "Bearer "}):
            status = post(address, f"/events/{path}", REPORT, **key).status
            lab.check(status == 401, f"/events/{path} with {key} gave {status}")
        for token in ("secret", "token-b"):
            status = post(address, f"/events/{path}", REPORT, authorization=f"Bearer {token}").status
            lab.check(
                status in (400, 403, 404), f"/events/{path} for the pod `a` with the token `{token}` gave {status}"
            )
    lab.check(blocks(router, "a") == 0, "a report without permission was applied")
    lab.check(
        post(address, "/events/stored", REPORT, authorization="Bearer token-a").status == 200,
        "the pod's own token is refused",
    )
    until("its blocks count", lambda: blocks(router, "a") == 2)
    open_router, here = push_router(lab)
    for headers in [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{here}"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": None},
    ]:
        answer = post(here, "/events/stored", REPORT, **headers)
        lab.check(answer.status in (400, 403, 415), f"a page with {headers} gave {answer.status}")
        lab.check(not answer.header("access-control-allow-origin"), f"{headers} is allowed to pages")
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        status = ask(here, method, "/events/stored", {"content-type": "application/json"}, b"{}").status
        lab.check(status in (400, 404, 405), f"{method} gave {status}")
    status = post(here, "/events/stored", {**REPORT, "pod": "nobody"}).status
    lab.check(status == 404, f"a report about an unknown pod gave {status}")
    lab.check(blocks(open_router, "a") == 0, "what a page sent was applied")


@attack("keeping sidecars out with connections that send nothing, half a head or no token")
def lockout(lab):
    router, address = push_router(lab, token="secret")
    kinds = [b"POST /events/stored HTTP/1.1\r\nx: ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    for kind in kinds:
        streams = [connect(address) for _ in range(2200)]
        for stream in streams:
            try:
                stream.sendall(kind)
            except OSError:
                pass  # Closed to make room.
        started = time.monotonic()
        status = post(address, "/events/register", {"pod": "a"}, authorization="Bearer secret").status
        took = time.monotonic() - started
        lab.check(
            status == 200 and took < 3,
            f"beside 2,200 connections with {kind[:20]!r} a sidecar got {status} after {took:.1f} s",
        )
        for stream in streams:
            stream.close()
    lab.check(router.is_serving(), "clients are not served")


def odd_reports():
    """Reports that are none, or that lie."""
    plain = REPORT["stored"][0]
    huge = (1 << 64) - 1
    for stored in [
        {"hashes": list(range(100_000)), "tokens": [], "block_size": 4},
        {"hashes": [1], "tokens": [1] * 100_000, "block_size": 4},
        {"hashes": [1], "tokens": [], "block_size": 0},
        {"hashes": [1], "tokens": [1], "block_size": 4_294_967_295},
        {"hashes": [1], "tokens": [1], "block_size": 4_294_967_296},
        {"hashes": [1], "tokens": [-1], "block_size": 4},
        {"hashes": [huge, -1, "0x" + "f" * 64, "zz", ""], "tokens": [1] * 20, "block_size": 4},
        {"hashes": [1, 1, 1, 1], "tokens": [1] * 16, "block_size": 4, "parent": 1},
        {**plain, "parent": "x" * 100_000},
        {**plain, "tier": "x" * 100_000},
        {**plain, "lora": "x" * 100_000, "salt": "y" * 100_000},
    ]:
        yield "/events/stored", json.dumps({"pod": "a", "stored": [stored]})
    yield "/events/stored", json.dumps({"pod": "a", "stored": [plain] * 20_000})
    yield "/events/stored", '{"pod": "a", "stored": [' + '{"hashes": [' * 50_000
    yield "/events/stored", "[" * 200_000
    yield "/events/sync", json.dumps({"pod": "a", "active": list(range(100_000))})
    yield "/events/evicted", json.dumps({"pod": "a", "evicted": list(range(100_000))})
    yield (
        "/events/digest",
        json.dumps({"pod": "a", "tiers": {str(number): {"count": huge, "xor": huge} for number in range(5000)}}),
    )
    yield "/events/register", json.dumps({"pod": "a", "epoch": huge, "sequence": huge})
    yield "/events/register", json.dumps({"pod": "a" * 1_000_000})
    yield "/internal/sync", json.dumps({"worker_id": "a", "active_hashes": ["x"]})
    for text in (
        "",
        "null",
        "{}",
        "\0",
        '{"pod": 1}',
        '{"pod": "a", "pod": "b"}',
        '{"pod": "a", "epoch": -1}',
        '{"pod": "a", "epoch": 1e400}',
    ):
        yield "/events/stored", text


@attack("posted reports that are broken, endless or full of lies, and a seeded mutation of each")
def posts(lab):
    router, address = push_router(lab)
    bystander = lab.bystander(router)
    seeded = random.Random(SEED)
    statuses = (200, 400, 404, 413, 503)
    for path, text in odd_reports():
        answer = post(address, path, text.encode())
        lab.check(answer.status in statuses, f"{path} with {text[:60]} gave {answer.status}")
    plain = json.dumps(REPORT).encode()
    for _ in range(1000):
        answer = post(
            address,
            seeded.choice(["/events/stored", "/events/sync", "/events/digest", "/events/evicted", "/events/register"]),
            mutated(seeded, plain),
        )
        lab.check(answer.status in statuses, f"a mutation (seed {SEED}) gave {answer.status}")
    for length in (33 << 20, 1 << 40):
        with connect(address, timeout=5) as stream:
            stream.sendall(post_head("/events/sync", length, {"host": address}))
            try:
                for _ in range(36):
                    stream.sendall(b" " * (1 << 20))
            except OSError:
                pass  # It has refused already.
            status = read_answer(stream).status
            lab.check(status in (0, 413), f"a report of {length} bytes gave {status}")
    lab.check(router.process.is_alive() and router.memory("VmHWM") < 500, f"{router.memory('VmHWM'):.0f} MiB")
    lab.check(blocks(router, "b") == 0, "reports about one pod have changed another")
    bystander.report(lab, slowest=3)


def mutated(seeded, data):
    """Bytes with a few changes: flips, cuts, repetitions, insertions."""
    data = bytearray(data)
    for _ in range(seeded.randint(1, 4)):
        at = seeded.randrange(len(data)) if data else 0
        kind = seeded.randrange(5)
        if kind == 0 and data:
            data[at] ^= 1 << seeded.randrange(8)
        elif kind == 1 and data:
            data[at] = seeded.choice([0, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xDD, 0xDF, 0xFF])
        elif kind == 2:
            del data[at : at + seeded.randint(1, 8)]
        elif kind == 3:
            data[at:at] = data[at : at + seeded.randint(1, 16)]
        else:
            data[at:at] = seeded.randbytes(seeded.randint(1, 8))
    return bytes(data)


def publishing_router(lab, *talks, **more):
    """A router whose pod `evil` publishes what `talk` sends, and whose pod `good` publishes one batch."""
    evil = [lab.own(zeromq.Publisher(talk, **more)) for talk in talks]

    def behave(stream):
        stream.sendall(zeromq.numbered(0, zeromq.batch(zeromq.stored([1, 2], list(range(32))))))
        zeromq.hold(stream)

    good = lab.own(zeromq.Publisher(behave))
    pods = [
        lab.own(Engine()).pod(name=f"evil-{number}", events=[f"zmq://{one.address}"]) for number, one in enumerate(evil)
    ]
    pods.append(lab.own(Engine()).pod(name="good", events=[f"zmq://{good.address}"]))
    config = {"models": [{"name": "m", "tokenizer": "bytes", "block_size": 16}], "pods": pods}
    return evil, lab.serve(config, pods=len(pods))


@attack("3,000 seeded mutations of batches, and streams of frames with a broken one")
def frames(lab):
    seeded = random.Random(SEED)
    sent = {"batches": 0, "streams": 0}
    events = [zeromq.stored([5, 6, 7], list(range(48))), ["BlockRemoved", [5], "GPU"], ["AllBlocksCleared"]]
    by_name = {
        "type": "BlockStored",
        "block_hashes": [8],
        "parent_block_hash": None,
        "token_ids": list(range(16)),
        "block_size": 16,
    }
    payloads = [zeromq.batch(*events), zeromq.batch(by_name), zeromq.batch(events[0], by_name, events[1])]

    def mutate_batches(stream):
        while sent["batches"] < 3000:
            sequence = seeded.choice([sent["batches"], 0, 1, (1 << 64) - 1, seeded.getrandbits(64)])
            stream.sendall(zeromq.numbered(sequence, mutated(seeded, seeded.choice(payloads))))
            sent["batches"] += 1
        zeromq.hold(stream)

    def mutate_frames(stream):
        # One broken frame among good ones: the router closes the connection, or waits for the rest of a frame that seems
        # longer; then this end closes it. Either way the router connects again after a while.
        stream.settimeout(0.3)
        good = [zeromq.numbered(number, payloads[0]) for number in range(20)]
        good[seeded.randrange(20)] = mutated(seeded, good[0])
        sent["streams"] += 1
        stream.sendall(b"".join(good))
        zeromq.hold(stream)

    _, router = publishing_router(lab, mutate_batches, *[mutate_frames] * 16)
    bystander = lab.bystander(router)
    until("all of them are sent", lambda: sent["batches"] >= 3000 and sent["streams"] >= 40, 20)
    until("the other pod's events are applied", lambda: blocks(router, "good") == 2)
    for _ in range(sent["batches"] + sent["streams"]):
        lab.check(router.process.is_alive(), f"the router has ended (seed {SEED})")
    lab.check(router.memory("VmHWM") < 500, f"{router.memory('VmHWM'):.0f} MiB")
    bystander.report(lab, slowest=3)


LONG = b"\x02" + struct.pack(">Q", 1 << 62)
HANDSHAKES = {
    "nothing": b"",
    "no ZeroMQ": b"HTTP/1.1 200 OK\r\n\r\n" * 10,
    "version 2": b"\xff" + bytes(7) + b"\x01\x7f\x01\x00" + bytes(52),
    "encryption": zeromq.GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32),
    "half a greeting": zeromq.GREETING[:20],
    "another kind": zeromq.GREETING + zeromq.ready(b"REP"),
    "no kind": zeromq.GREETING + zeromq.frame(b"\x05READY", 4),
    "a property without end": zeromq.GREETING + zeromq.frame(b"\x05READY\xffx" + b"\xff" * 4, 4),
    "an error": zeromq.GREETING + zeromq.frame(b"\x05ERROR\x04evil", 4),
    "a frame without end": zeromq.GREETING + zeromq.ready() + LONG,
    "a message of many frames": zeromq.GREETING + zeromq.ready() + zeromq.frame(b"x", 1) * 100_000,
    "a message of many bytes": zeromq.GREETING + zeromq.ready() + zeromq.frame(b"x" * (4 << 20), 1) * 12,
    "flags that are none": zeromq.GREETING + zeromq.ready() + b"\xff\xff" * 100,
    "commands without end": zeromq.GREETING + zeromq.ready() + zeromq.frame(b"\x04PING\x00\x00", 4) * 20_000,
    "no frames": zeromq.GREETING + zeromq.ready() + zeromq.frame(b"") * 10_000,
    "deep nesting": zeromq.GREETING + zeromq.ready() + zeromq.numbered(0, b"\x91" * 1_000_000),
    "a list of four billion": zeromq.GREETING + zeromq.ready() + zeromq.numbered(0, b"\xdd\xff\xff\xff\xff"),
    "a map of four billion": zeromq.GREETING + zeromq.ready() + zeromq.numbered(0, b"\x93\xc0\xdf\xff\xff\xff\xff"),
    "text of four billion bytes": zeromq.GREETING
    + zeromq.ready()
    + zeromq.numbered(0, b"\x93\xc0\xdb\xff\xff\xff\xff"),
}


@attack("handshakes and frames that are none, and lengths that the bytes do not back")
def handshakes(lab):
    def talk(text):
        def send(stream):
            stream.sendall(text)
            time.sleep(0.2)

        return send

    evil, router = publishing_router(lab, *(talk(text) for text in HANDSHAKES.values()), shake_hands=False)
    bystander = lab.bystander(router)
    until("each was connected", lambda: all(one.subscribers for one in evil))
    time.sleep(2)
    until("the other pod's events are applied", lambda: blocks(router, "good") == 2)
    for number, name in enumerate(HANDSHAKES):
        lab.check(blocks(router, f"evil-{number}") == 0, f"{name}: blocks came of it")
        lab.check(
            evil[number].subscribers < 100,
            f"{name}: the router connected {evil[number].subscribers} times in two seconds",
        )
    lab.check(router.process.is_alive() and router.memory("VmHWM") < 500, f"{router.memory('VmHWM'):.0f} MiB")
    bystander.report(lab, slowest=3)


@attack("reports of an earlier epoch, repeated ones, and ones that come out of order")
def replayed(lab):
    router, address = push_router(lab)

    def report(epoch, sequence, hashes):
        stored = {"hashes": hashes, "tokens": list(range(4 * len(hashes))), "block_size": 4}
        return post(
            address, "/events/stored", {"pod": "a", "epoch": epoch, "sequence": sequence, "stored": [stored]}
        ).status

    lab.check(post(address, "/events/register", {"pod": "a", "epoch": 10}).status == 200, "the pod cannot register")
    lab.check(
        post(address, "/events/sync", {"pod": "a", "epoch": 10, "stored": []}).status == 200, "the pod cannot sync"
    )
    report(10, 0, [11, 12])
    until("its blocks count", lambda: blocks(router, "a") == 2)
    for epoch, sequence in [(9, 0), (9, 1), (0, 0), (9, 1 << 63), (10, 0), (10, 0)]:
        report(epoch, sequence, [90 + sequence % 7, 91, 92])
        post(address, "/events/sync", {"pod": "a", "epoch": 9, "active": []})
        post(address, "/events/evicted", {"pod": "a", "epoch": 9, "evicted": [11, 12]})
    # What comes after it shows that all of that was handled.
    tokens = list(range(100, 104))
    last = {"pod": "a", "epoch": 10, "sequence": 1, "stored": [{"hashes": [13], "tokens": tokens, "block_size": 4}]}
    post(address, "/events/stored", last)
    until("the next report is applied", lambda: blocks(router, "a") != 2)
    for _ in range(6):
        lab.check(
            blocks(router, "a") == 3,
            f"{blocks(router, 'a')} blocks instead of 3: an old or repeated report was applied",
        )


@attack("a flood of blocks from one engine, and reports about blocks of another")
def flood(lab):
    sent = {"batches": 0}

    def send(stream):
        started = time.monotonic()
        while time.monotonic() - started < 4:
            number = sent["batches"]
            hashes = range(number * 1024 + 1, number * 1024 + 1025)
            # The first token is this batch's own, and so is every block behind it.
            event = zeromq.stored(hashes, range(number, number + 16 * 1024))
            stream.sendall(zeromq.numbered(number, zeromq.batch(event), topic=b"kv@good@m"))
            sent["batches"] += 1
        zeromq.hold(stream)

    _, router = publishing_router(lab, send)
    bystander = lab.bystander(router)
    until("the flood began", lambda: sent["batches"] > 5)
    time.sleep(4)
    lab.check(blocks(router, "evil-0") > 0, "no block of the flood is in the index: the check is blind")
    lab.check(blocks(router, "good") == 2, f"blocks of the other pod: {blocks(router, 'good')} instead of 2")
    lab.check(
        router.memory("VmHWM") < 512, f"{router.memory('VmHWM'):.0f} MiB after {sent['batches']} batches of 1024 blocks"
    )
    bystander.report(lab, slowest=3)


def throttles(router, pod):
    """How often reading a pod's events was paused, by the metrics."""
    start = f'wornpath_pod_event_throttled_total{{pod="{pod}"}} '
    page = router.operate("GET", "/metrics").body.decode()
    return float(next(line for line in page.splitlines() if line.startswith(start))[len(start) :])


@attack("a flood of messages without blocks: clears, empty batches, garbage, commands")
def empty_flood(lab):
    started = {}
    payloads = {"clears": zeromq.batch(["AllBlocksCleared"]), "empty": zeromq.batch(), "garbage": b"\xc1" * 40}

    def sending(kind):
        def send(stream):
            if kind == "commands":
                flood = zeromq.frame(b"\x04PONG", 4) * 5000
            else:
                messages = (zeromq.numbered(number, payloads[kind], topic=b"kv@evil@m") for number in range(5000))
                flood = b"".join(messages)
            started[kind] = True
            while True:
                stream.sendall(flood)

        return send

    kinds = [*payloads, "commands"]
    _, router = publishing_router(lab, *map(sending, kinds))
    bystander = lab.bystander(router)
    until("the floods began", lambda: len(started) == len(kinds))
    # The first seconds may use up the bursts.
    time.sleep(3)
    before = router.cpu()
    time.sleep(4)
    share = (router.cpu() - before) / 4
    lab.check(share < 0.5, f"four floods keep {share:.2f} of a core busy")
    for number, kind in enumerate(kinds):
        until(f"the flood of {kind} is throttled", lambda: throttles(router, f"evil-{number}") > 0, 15)
    lab.check(throttles(router, "good") == 0, "the other pod was throttled")
    lab.check(blocks(router, "good") == 2, f"blocks of the other pod: {blocks(router, 'good')} instead of 2")
    bystander.report(lab, slowest=3)
