"""Headers that a client forges: those that only the router may send, engine priorities, and heads beyond the limits."""

import json

from lab import attack, bearer, tenants
from wire import Engine, exchange

# Removed from every request; values that would mean something to an engine.
FORGED = [
    ("x-wornpath-pod", "forged"),
    ("X-Wornpath-Pod", "forged"),
    ("x-wornpath-reason", "forged"),
    ("x-wornpath-degraded", "forged"),
    ("x-data-parallel-rank", "3"),
    ("X-Data-Parallel-Rank", "3"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "keep-alive"),
    ("proxy-authenticate", "Basic"),
    ("proxy-authorization", "Basic Zm9yZ2Vk"),
    ("te", "trailers"),
    ("trailer", "x-a"),
    ("upgrade", "websocket"),
    ("authorization", "Bearer forged"),
    ("x-api-key", "forged"),
    ("api-key", "forged"),
    ("cookie", "session=forged"),
]


@attack("headers that only the router may send, and keys of the client")
def forged(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    for name, value in FORGED:
        answer = router.post(headers={name: value})
        lab.check(
            answer.status == 200 and not engine.last().values(name.lower()), f"{name}: {value} reached the engine"
        )
    for named in ("x-wornpath-pod, x-mine", "X-Mine", "close, x-mine", "x-mine,,", "x-mine;q=1, x-mine"):
        router.post(headers={"connection": f"close, {named}", "x-mine": "1"})
        lab.check(not engine.last().values("x-mine"), f"connection: {named} does not remove it")
    router.post(headers={"host": "other.example", "x-mine": "1"})
    lab.check(
        engine.last().values("host") == [engine.address], f"host {engine.last().values('host')} reached the engine"
    )
    lab.check(engine.last().values("x-mine") == ["1"], "ordinary headers do not pass: the check is blind")
    answer = router.post()
    shown = [name for name, _ in answer.headers if name.startswith("x-wornpath")]
    lab.check(not shown and engine.address not in str(answer.headers), f"the answer reveals the pod: {answer.headers}")


@attack("request ids that would break a log, a header or a table")
def request_ids(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    for given in [
        "",
        " ",
        "a b",
        "a\tb",
        "x" * 129,
        "\xe9",
        "a\x7fb",
        '"}\\u0000{"',
        "%0d%0aset-cookie: a=b",
        "../../etc/passwd",
    ]:
        answer = router.post(headers={"x-request-id": given})
        if answer.status == 400:
            lab.check(True, "")
            continue
        [sent] = engine.last().values("x-request-id")
        is_plain = 1 <= len(sent) <= 128 and all("!" <= letter <= "~" for letter in sent)
        lab.check(
            answer.status == 200 and is_plain and answer.header("x-request-id") == sent, f"{given!r} became {sent!r}"
        )
        lab.check(answer.header("set-cookie") is None, f"{given!r} sets a cookie")


# The range of the tenant, the header, the field as JSON, and the priority that the engine gets; "refused" means 400.
PRIORITIES = [
    (None, None, "-100", None),
    (None, "-100", None, None),
    (None, "-100", "-100", None),
    (None, " -100 ", "5", None),
    (None, "x", "-100", None),
    (None, None, '"-100"', "refused"),
    (None, None, "-1.5", "refused"),
    (None, None, "[-100]", "refused"),
    (None, None, "-1e3", "refused"),
    (None, None, "-99999999999999999999", "refused"),
    ("2..8", None, "-100", 2),
    ("2..8", None, "100", 8),
    ("2..8", None, "null", 2),
    ("2..8", None, None, 2),
    ("2..8", "-9", None, 2),
    ("2..8", "-9", "7", 2),
    ("2..8", "6", "-100", 6),
    ("2..8", "-9223372036854775808", None, 2),
    ("2..8", "-99999999999999999999", None, 2),
    ("2..8", "", "-100", 2),
    ("2..8", None, "true", "refused"),
    ("2..8", None, '{"a": -100}', "refused"),
]
# Other spellings of the field, and fields that occur twice.
SPELLED = [
    '"\\u0070riority": -100',
    '"priority": 5, "priority": -100',
    '"priority": -100, "\\u0070riority": 5',
    '"prio\\u0072ity" : -100',
]
# Paths where engines have the field, and one that is none of an API that the router knows.
PRIORITY_PATHS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/pooling",
    "/v1/unknown",
]


@attack("overtaking other tenants by the engine priority")
def priority(lab):
    engine = lab.own(Engine())
    ranges = {None: "none", "2..8": "some"}
    listed = tenants("none") + tenants("some", engine_priority="2..8")
    router = lab.serve({"pods": [engine.pod()], "tenants": listed})
    for path in PRIORITY_PATHS:
        for allowed, header, field, expected in PRIORITIES:
            headers = {**bearer(ranges[allowed]), "content-type": "application/json"}
            if header is not None:
                headers["x-vllm-priority"] = header
            more = "" if field is None else f', "priority": {field}'
            check_priority(lab, router, engine, path, headers, more, expected)
        for name, expected in [("none", None), ("some", range(2, 9))]:
            for more in SPELLED:
                headers = {**bearer(name), "content-type": "application/json"}
                check_priority(lab, router, engine, path, headers, ", " + more, expected)
    for header in ("x-override-priority", "X-VLLM-Priority"):
        router.post(headers={**bearer("none"), header: "-100"})
        lab.check(not engine.last().values(header.lower()), f"{header} reached the engine")


def check_priority(lab, router, engine, path, headers, more, expected):
    """Sends a body with more fields, and compares the priority that reaches the engine. A stricter answer is fine."""
    before = len(engine.requests)
    body = '{"model": "m", "prompt": "a", "input": "a", "messages": [{"role": "user", "content": "a"}]' + more + "}"
    answer = router.post(path, body.encode(), headers)
    tried = f"{path} with {more!r} and {headers.get('x-vllm-priority')!r}"
    if answer.status != 200:
        lab.check(answer.status == 400 and len(engine.requests) == before, f"{tried} gave {answer.status}")
        return
    sent = engine.last()
    pairs = json.loads(sent.body, object_pairs_hook=list)
    found = [value for name, value in pairs if name == "priority" and value is not None]
    is_allowed = (
        not found
        if expected is None
        else len(found) == 1 and found[0] in (expected if isinstance(expected, range) else [expected])
    )
    held = not sent.values("x-vllm-priority") and is_allowed
    lab.check(held, f"{tried} reached the engine as {found} and {sent.values('x-vllm-priority')}")


@attack("heads with too many or too long headers")
def limits(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    many = "".join(f"x-{number}: y\r\n" for number in range(200))
    heads = [
        f"GET /version HTTP/1.1\r\nhost: h\r\n{many}\r\n",
        f"GET /version HTTP/1.1\r\nhost: h\r\n{'x: y' + chr(13) + chr(10)}" + "x: y\r\n" * 5000 + "\r\n",
        f"GET /version HTTP/1.1\r\nhost: h\r\nx: {'y' * 70_000}\r\n\r\n",
        f"GET /version HTTP/1.1\r\nhost: h\r\n{'x' * 70_000}: y\r\n\r\n",
        f"GET /version?{'x' * 70_000} HTTP/1.1\r\nhost: h\r\n\r\n",
        f"GET /{'x' * 1_000_000} HTTP/1.1\r\nhost: h\r\n\r\n",
        f"{'G' * 70_000} / HTTP/1.1\r\nhost: h\r\n\r\n",
        "x" * 1_000_000,
        "\r\n" * 500_000,
    ]
    for head in heads:
        answer = exchange(router.address, head.encode(), silence=2)
        lab.check(answer[:10] in (b"HTTP/1.1 4", b""), f"{head[:60]!r}… gave {answer[:60]!r}")
    lab.check(not engine.requests, "a head beyond the limits reached the engine")
    lab.check(router.is_serving(), "the router does not answer any more")
    lab.check(router.memory("VmHWM") < 300, f"{router.memory('VmHWM'):.0f} MiB")


@attack("names of models and paths that would break the metrics page")
def metrics(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    evil = 'm"} 1\nforged_total{a="b'
    for number in range(300):
        name = evil + str(number)
        router.post(body={"model": name, "prompt": "a"})
        if number < 30:
            router.post(f"/v1/{number}%22%7d%0aforged_total", b"{}")
    page = router.get("/metrics").text
    lab.check(not any(line.startswith("forged") for line in page.splitlines()), "a name adds a line to the metrics")
    lab.check(len(page) < 1_000_000, f"the metrics page has {len(page)} bytes after 300 names")
    for path in ("/metrics", "/health", "/v1/models"):
        lab.check(evil not in router.get(path).text, f"{path} shows the name of a model that does not exist")
