"""A hostile engine: endless answers, headers for browsers, doubled lengths, redirects, and lies about itself."""

import socket
import threading
import time

from lab import attack, in_parallel
from wire import COMPLETION, Engine, connect, post_head, read_body, read_head, respond

TIMEOUTS = {"first_byte": "2s", "unstreamed": "2s", "between_bytes": "1s", "total": "3s", "connect": "1s"}


def hostile(lab, answer, **more):
    """An engine that answers so, and a router in front of it."""
    engine = lab.own(Engine(answer))
    return engine, lab.serve({"pods": [engine.pod(name="hostile")], **more})


FOR_BROWSERS = [
    "set-cookie: a=b",
    "Set-Cookie: c=d; Path=/",
    'alt-svc: h3=":443"',
    "strict-transport-security: max-age=1",
    'clear-site-data: "*"',
    "access-control-allow-origin: *",
    "access-control-allow-credentials: true",
    "access-control-expose-headers: x",
    "Access-Control-Allow-Headers: *",
    "access-control-anything-new: 1",
    "x-wornpath-pod: forged",
    "x-wornpath-reason: forged",
    "x-wornpath-degraded: forged",
    "connection: x-engine, keep-alive",
    "keep-alive: timeout=100",
    "proxy-authenticate: Basic",
    "trailer: set-cookie",
    "upgrade: h2c",
]


@attack("cookies, rules for browsers and forged headers in answers")
def headers(lab):
    head = {"text": ""}
    engine, router = hostile(lab, lambda received: respond(COMPLETION, headers=head["text"]))
    for line in FOR_BROWSERS:
        for status in ("200", "401", "500"):
            head["text"] = f"{line}\r\nx-engine: kept\r\n"
            engine.answer = lambda received, status=status: respond(COMPLETION, f"{status} X", head["text"])
            answer = router.post()
            name = line.split(":")[0].lower()
            found = [
                value
                for known, value in answer.headers
                if known == name and not (name == "connection" and value == "close")
            ]
            lab.check(not found and answer.status != 0, f"{line} with {status} reached the client: {found}")


# Answers that no client may get as a good one: the status must not be 200, or the body must end as broken.
MALFORMED = [
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 40\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ncontent-length: 2x\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "HTTP/1.1 200 OK\r\nbad header\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nx : y\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nx: a\r\n folded\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/9.9 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.1 99 X\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.1 9999 X\r\ncontent-length: 2\r\n\r\n{}",
    "HTTP/1.1\r\n\r\n",
    "SSH-2.0-OpenSSH_9.6\r\n",
    "\x15\x03\x01\x00\x02\x02\x28",
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "HTTP/1.1 200 OK\r\n" + "x: y\r\n" * 2000 + "content-length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nx: " + "y" * 2_000_000 + "\r\ncontent-length: 2\r\n\r\n{}",
]


@attack("lengths twice or as lists, broken chunks and heads that are none")
def malformed(lab):
    bad = [
        lab.own(Engine(lambda received, text=text: lambda stream: stream.sendall(text.encode("latin-1"))))
        for text in MALFORMED
    ]
    pods = [engine.pod(name=f"pod-{number}", model=f"model-{number}") for number, engine in enumerate(bad)]
    router = lab.serve({"pods": pods, "timeouts": TIMEOUTS}, pods=len(pods))
    answers = in_parallel(
        lambda number: router.post(body={"model": f"model-{number}", "prompt": "a"}), range(len(pods))
    )
    for text, answer in zip(MALFORMED, answers):
        held = answer.status in (0, 502, 504) or answer.status == 200 and not answer.is_whole
        lab.check(held, f"{text[:80]!r} gave {answer.status} {answer.text[:60]!r}")
        lab.check(
            len([1 for name, _ in answer.headers if name == "content-length"]) <= 1,
            f"{text[:80]!r}: two lengths reached the client",
        )
    lab.check(all(engine.requests for engine in bad), "an engine was not called: the check is blind")


# Answers with a second one behind, which the next request on the connection would get.
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
EVIL = b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"evil"}'
DOUBLED = [
    OK + EVIL,
    b"HTTP/1.1 204 No Content\r\n\r\n" + EVIL,
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 50\r\n\r\n" + EVIL,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + EVIL,
    b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + OK,
    b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n" + OK,
]


@attack("a second answer behind the first, for the next client")
def doubled(lab):
    engine, router = hostile(lab, None, timeouts=TIMEOUTS, breaker={"failures": 1000})
    for text in DOUBLED:
        for _ in range(3):
            engine.answer = lambda received, text=text: text
            router.post(body={"model": "m", "prompt": "first"})
            engine.answer = lambda received: respond({"for": received.json()["prompt"]})
            for number in range(3):
                answer = router.post(body={"model": "m", "prompt": f"mine {number}"})
                lab.check("evil" not in answer.text, f"{text[:60]!r}: the next client got {answer.text[:60]!r}")
    answer = router.post(body={"model": "m", "prompt": "last"})
    lab.check(answer.json() == {"for": "last"}, f"the last client got {answer.text[:60]!r}")


def endless(piece, pause=0.0):
    """Sends a piece again and again, until the router closes."""

    def send(stream):
        stream.settimeout(10)
        started = time.monotonic()
        try:
            while time.monotonic() - started < 15:
                stream.sendall(piece)
                time.sleep(pause)
        except OSError:
            pass

    return send


def begun(head, piece, pause=0.0):
    def send(stream):
        stream.sendall(head)
        endless(piece, pause)(stream)

    return send


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BLOCK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
ENDLESS = {
    "a head without end": endless(b"x" * 4096),
    "headers without end": begun(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 500),
    "a body without end": begun(CHUNKED, BLOCK),
    "a line without end": begun(CHUNKED, BLOCK, 0.001),
    "a body that trickles": begun(CHUNKED, b"1\r\nx\r\n", 0.1),
    "a head that trickles": begun(b"HTTP/1.1 200 OK\r\nx: ", b"x", 0.1),
    "a body that stops": begun(CHUNKED + b"5\r\nhello\r\n", b"", 0.5),
    "nothing": endless(b"", 0.5),
    "100 Continue without end": endless(b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "empty lines without end": endless(b"\r\n" * 1000),
}


@attack("answers without end, or without progress")
def without_end(lab):
    bad = {name: lab.own(Engine(lambda received, send=send: send)) for name, send in ENDLESS.items()}
    good = lab.own(Engine())
    config = {
        "pods": [good.pod(name="good", model="good")]
        + [engine.pod(name=name, model=name) for name, engine in bad.items()],
        "timeouts": TIMEOUTS,
        "retries": {"share": 0, "per_second": 0},
    }
    router = lab.serve(config, pods=len(bad) + 1)
    bystander = lab.bystander(router, make=lambda number: {"model": "good", "prompt": f"question {number}"})

    def send(name):
        started = time.monotonic()
        with connect(router.address) as stream:
            stream.settimeout(8)
            body = b'{"model":"%s","prompt":"a","stream":true}' % name.encode()
            stream.sendall(post_head("/v1/completions", len(body), {"connection": "close"}) + body)
            received = 0
            try:
                while time.monotonic() - started < 12:
                    piece = stream.recv(1 << 16)
                    if not piece:
                        break
                    received += len(piece)
            except OSError:
                pass
        lab.check(
            time.monotonic() - started < 7,
            f"{name}: lasted {time.monotonic() - started:.1f} s (total 3 s), {received} bytes",
        )

    threads = [threading.Thread(target=send, args=(name,)) for name in ENDLESS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bystander.report(lab, slowest=3)
    lab.check(router.memory("VmHWM") < 400, f"{router.memory('VmHWM'):.0f} MiB")


@attack("redirects to the router's network, and to itself")
def redirects(lab):
    victim = lab.own(Engine())
    engine, router = hostile(lab, None)
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"):
        for target in (
            f"http://{victim.address}/secret",
            "//169.254.169.254/latest/meta-data/",
            f"http://{router.address}/v1/completions",
        ):
            engine.answer = lambda received, status=status, target=target: respond(
                {}, status, f"location: {target}\r\n"
            )
            before = len(engine.requests)
            answer = router.post()
            held = (
                answer.status == int(status[:3])
                and answer.header("location") == target
                and len(engine.requests) == before + 1
            )
            lab.check(held, f"{status} to {target} gave {answer.status}")
    lab.check(not victim.requests, "the router followed a redirect")


class Liar(Engine):
    """An engine whose answers to the router's own probes are hostile."""

    page = b""

    def _answer_one(self, reader, stream):
        head = read_head(reader)
        if head is None:
            return False
        read_body(reader, head[1])
        self.page(stream) if callable(self.page) else stream.sendall(self.page)
        return not callable(self.page)


LIES = {
    "no JSON": respond(b"<html>"),
    "deep JSON": respond(b"[" * 100_000),
    "many models": respond({"data": [{"id": f"model-{number}"} for number in range(20_000)]}),
    "many adapters": respond({"data": [{"id": f"l{number}", "parent": "m"} for number in range(100_000)]}),
    "long names": respond({"data": [{"id": "x" * 1_000_000}]}),
    "names of metrics": respond({"data": [{"id": 'm"} 1\nforged{a="'}]}),
    "names that are none": respond({"data": [{"id": 7}, {"id": None}, 5, {"id": {"a": 1}}]}),
    "a metrics page that is none": respond(b"vllm:num_requests_running{" * 100_000),
    "odd numbers": respond(
        b"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1e308\nvllm:kv_cache_usage_perc Inf\n" * 1000
    ),
    "block sizes": respond(b'vllm:cache_config_info{block_size="0"} 1\nvllm:cache_config_info{block_size="-16"} 1\n'),
    "endless": begun(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", BLOCK),
    "hanging": endless(b"", 0.5),
}


@attack("lies in answers to the router's own probes and scrapes")
def probes(lab):
    good = lab.own(Engine())
    liars = {name: lab.own(Liar()) for name in LIES}
    for name, liar in liars.items():
        liar.page = LIES[name]
    pods = [{"url": f"http://{liar.address}", "name": name, "events": ["auto"]} for name, liar in liars.items()]
    router = lab.serve({"pods": [good.pod(name="good"), *pods], "models": [{"name": "m", "tokenizer": "bytes"}]})
    bystander = lab.bystander(router)
    time.sleep(3)
    lab.check(router.process.is_alive(), "the router has ended")
    bystander.report(lab, slowest=3)
    most = router.memory("VmHWM")
    lab.check(most < 400, f"{most:.0f} MiB")
    for path in ("/metrics", "/v1/models", "/health", "/ready"):
        started = time.monotonic()
        answer = router.get(path, timeout=5)
        lab.check(
            time.monotonic() - started < 3,
            f"{path} took {time.monotonic() - started:.1f} s (limit 3 s) beside pods that lie",
        )
        forged = any(line.startswith("forged") for line in answer.text.splitlines())
        lab.check(answer.status == 200 and not forged, f"{path} gave {answer.status} {answer.text[:100]!r}")
        lab.check(len(answer.body) < 20_000_000, f"{path} has {len(answer.body)} bytes")
    for name in LIES:
        lab.check(router.process.is_alive(), name)
    pods = router.operate("GET", "/pods")
    lab.check(pods.status == 200 and len(pods.json()["pods"]) == len(LIES) + 1, f"/pods gave {pods.status}")


# Where an engine says that it publishes its cache events.
SOURCES = [
    "tcp://127.0.0.2:{port}",
    "tcp://[::ffff:127.0.0.2]:{port}",
    "tcp://2130706434:{port}",
    "tcp://0x7f000002:{port}",
    "tcp://127.2:{port}",
    "tcp://127.0.0.1:1@127.0.0.2:{port}",
    "tcp://*:{port}@127.0.0.2:{port}",
    "tcp://169.254.169.254:80",
    "tcp://0.0.0.0.:{port}",
    "ipc:///tmp/x",
    "file:///etc/passwd",
    "tcp://" + "x" * 100_000 + ":{port}",
    "tcp://\r\nx:{port}",
    "tcp://:{port}",
    "",
]


@attack("event sources of an engine at addresses that are not allowed")
def event_sources(lab):
    victim = socket.create_server(("127.0.0.2", 0))
    victim.settimeout(0.1)
    port = victim.getsockname()[1]
    pods = [lab.own(Engine()).pod(name="good")]
    for number, source in enumerate(SOURCES):
        named = source.format(port=port)
        page = respond({"0": {"publisher": "zmq", "endpoint": named, "replay_endpoint": named, "topic": ""}})
        liar = lab.own(Liar())
        liar.page = page
        pods.append({"url": f"http://{liar.address}", "name": f"liar-{number}", "model": "liar", "events": ["auto"]})
    models = [{"name": name, "tokenizer": "bytes"} for name in ("m", "liar")]
    config = {"pods": pods, "models": models, "pod_addresses": ["127.0.0.1/32"]}
    router = lab.serve(config)
    time.sleep(2.5)
    try:
        victim.accept()
        lab.check(False, "the router connected to an address that is not allowed")
    except TimeoutError:
        pass
    for source in SOURCES:
        lab.check(router.process.is_alive(), source[:60])
    lab.check(router.is_serving(), "the router does not answer any more")
    troubles = router.operate("GET", "/pods").text
    lab.check("127.0.0.2" in troubles or "127.0.0.2" in router.log(), "no source was tried: the check is blind")
    victim.close()


@attack("an address of a pod that is not allowed")
def addresses(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "pod_addresses": ["127.0.0.1/32"]})
    for url in [
        "http://127.0.0.2:80",
        "http://169.254.169.254",
        "http://[::1]:80",
        "http://[::ffff:169.254.169.254]:80",
        "http://0.0.0.0:80",
        "http://2130706434:80",
        "http://0x7f000002:80",
        "http://0177.0.0.2:80",
        "http://10.0.0.1:80",
        "http://224.0.0.1:80",
        "ftp://127.0.0.1:80",
        "file:///etc/passwd",
        "http://user:secret@127.0.0.1:80",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
    ]:
        answer = router.operate("POST", "/pods", {"url": url, "name": "evil", "model": "evil"})
        if answer.status == 200:
            # A spelling that only the system resolves is checked when it is connected.
            called = router.post(body={"model": "evil", "prompt": "a"})
            lab.check(called.status != 200, f"{url} was added and called")
            router.operate("DELETE", "/pods/evil")
        else:
            lab.check(answer.status in (400, 422), f"{url} gave {answer.status} {answer.text[:80]}")
    lab.check(router.is_serving(), "the router does not answer any more")
