"""Bodies: too long, encoded, nested, slow, stalled, and those of tenants that may send none."""

import time

from lab import TINY_TOKENIZER, attack, bearer, in_parallel, tenants, until
from wire import Engine, connect, exchange, post_head, read_answer

MIB = 1 << 20


def head(length, key="", path="/v1/completions"):
    """The head of a request with a body of this length, by a tenant."""
    return post_head(path, length, {"authorization": f"Bearer {key}"} if key else {})


def status_of(stream):
    return read_answer(stream).status


@attack("bodies that are too long, in lengths, in chunks and without end")
def too_long(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "limits": {"body": "1MiB"}})
    for length in (MIB + 1, 16 * MIB, 1 << 40, (1 << 64) - 1):
        with connect(router.address) as stream:
            stream.sendall(head(length))
            status = status_of(stream)
            lab.check(status in (400, 413, 431), f"a length of {length} gave {status} before the body came")
    for size in (1 << 10, 64 << 10, 1 << 20):
        with connect(router.address) as stream:
            stream.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
            try:
                for _ in range(4 * MIB // size):
                    stream.sendall(b"%x\r\n" % size + b" " * size + b"\r\n")
            except OSError:
                pass  # It has refused already.
            status = status_of(stream)
            lab.check(status in (413, 0), f"chunks of {size} without end gave {status}")
    lab.check(not engine.requests, "a body beyond the limit reached the engine")
    lab.check(router.is_serving() and router.memory("VmHWM") < 300, f"{router.memory('VmHWM'):.0f} MiB")


@attack("encoded bodies: bombs that only an engine would unpack")
def encoded(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    for coding in (
        "gzip",
        "br",
        "zstd",
        "deflate",
        "compress",
        "GZIP",
        "identity, gzip",
        "gzip, identity",
        "x-gzip",
        "aes128gcm",
    ):
        answer = router.post(headers={"content-encoding": coding})
        lab.check(answer.status == 415, f"{coding} gave {answer.status}")
    twice = post_head("/v1/completions", 2, {"content-encoding": "identity", "Content-Encoding": "gzip"}) + b"{}"
    lab.check(b" 415 " in exchange(router.address, twice)[:20], "the second of two encodings is not seen")
    lab.check(not engine.requests, "an encoded body reached the engine")
    lab.check(router.is_serving() and len(engine.requests) == 1, "a plain body does not reach it: the check is blind")


@attack("nested, broken and odd JSON")
def nested(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "breaker": {"failures": 1}})
    depth = 100_000
    broken = [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"a"',
        b"{'a':1}",
        b'{"a":1}}',
        b'{"a":1}{"b":2}',
        b'{"a":NaN}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\x01"}',
        b'{"a":01}',
        b'{"model":1}',
        b'{"model":["m"]}',
        b"[" * depth,
        b'{"a":' * depth,
        b'{"prompt":' + b"[" * depth + b"]" * depth + b"}",
        b'{"messages":[{"content":' + b'[{"a":' * depth + b"1" + b"}]" * depth + b"}]}",
        b'{"prompt":"' + b"\\u0000" * depth,
        b"\xff" * 1000,
    ]
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"):
        answers = in_parallel(lambda body, path=path: router.post(path, body), broken)
        for body, answer in zip(broken, answers):
            lab.check(answer.status == 400, f"{path} with {body[:40]!r}… ({len(body)} bytes) gave {answer.status}")
    lab.check(
        not engine.requests, f"broken JSON reached the engine: {[request.body[:40] for request in engine.requests[:3]]}"
    )
    lab.check(router.is_serving(), "refusals of bad requests have opened a breaker")
    long_number = b'{"model":"m","prompt":"a","x":' + b"9" * 500_000 + b"}"
    many_names = b'{"model":"m","prompt":"a"' + b"".join(b',"%d":1' % number for number in range(200_000)) + b"}"
    for body in (long_number, many_names):
        started = time.monotonic()
        answer = router.post(body=body)
        lab.check(
            answer.status in (200, 400) and time.monotonic() - started < 5,
            f"{body[:40]!r}… took {time.monotonic() - started:.1f} s",
        )


NUMBERS = [
    "-1",
    "0",
    "2147483648",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "1e308",
    "1e400",
    "-1e400",
]
NUMBERS += ["0.5", "-0", "null", '"x"', '"9999999999999999999999"', "[]", "{}", "true", "[" * 100 + "]" * 100]
NUMERIC = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "min_tokens",
    "priority",
    "seed",
    "stream",
]


@attack("numbers that are none, or that would make a request look endless")
def numbers(lab):
    engines = [lab.own(Engine()) for _ in range(2)]
    pods = [engine.pod(name=f"pod-{number}", speed="8b-h200") for number, engine in enumerate(engines)]
    router = lab.serve({"pods": pods, "models": [{"name": "m", "tokenizer": "bytes"}]}, pods=2)
    bystander = lab.bystander(router)
    bodies = [f'{{"model":"m","prompt":"a","{field}":{number}}}' for field in NUMERIC for number in NUMBERS]
    bodies += [
        f'{{"model":"m","prompt":{prompt}}}'
        for prompt in (*NUMBERS, "[[1,2],[3]]", "[4294967296]", '["a",1]', "[-1]", "[[]]")
    ]
    bodies += [f'{{"model":{name},"prompt":"a"}}' for name in NUMBERS]
    answers = in_parallel(
        lambda body: router.post(body=body.encode(), headers={"content-type": "application/json"}), bodies
    )
    for body, answer in zip(bodies, answers):
        lab.check(answer.status in (200, 400, 404), f"{body[:80]} gave {answer.status} {answer.text[:80]}")
    bystander.report(lab, slowest=3)


# Chats that a template may not be able to render.
ODD_CHATS = [
    {"messages": []},
    {"messages": None},
    {"messages": "text"},
    {"messages": [1]},
    {"messages": [{}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": 5, "content": {"a": 1}}]},
    {"messages": [{"role": "{{ 7 * 7 }}", "content": "{% for x in range(10**9) %}x{% endfor %}"}]},
    {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ self.__init__.__globals__ }}"},
    {"messages": [{"role": "user", "content": "a"}], "chat_template": "{% include '/etc/passwd' %}"},
    {"messages": [{"role": "user", "content": "a"}], "chat_template": "{% for x in range(1000000000) %}{% endfor %}"},
    {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 'x' * 10000000000 }}"},
    {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ raise_exception('x' * 100000) }}"},
    {
        "messages": [{"role": "user", "content": "a"}],
        "chat_template": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    },
    {
        "messages": [{"role": "user", "content": "a"}],
        "chat_template_kwargs": {"messages": "x", "add_generation_prompt": [1]},
    },
    {"messages": [{"role": "user", "content": "a"}], "tools": "x"},
    {"messages": [{"role": "user", "content": "a"}] * 20_000},
]


@attack("chats and templates that cannot be rendered, and errors that name files of the machine")
def templates(lab):
    engine = lab.own(Engine())
    models = [{"name": "m", "tokenizer": str(TINY_TOKENIZER), "block_size": 16}]
    router = lab.serve({"pods": [engine.pod()], "models": models})
    bystander = lab.bystander(router)
    for chat in ODD_CHATS:
        started = time.monotonic()
        answer = router.post("/v1/chat/completions", {"model": "m", **chat})
        took = time.monotonic() - started
        lab.check(
            answer.status in (200, 400) and took < 3, f"{str(chat)[:120]} gave {answer.status} after {took:.1f} s"
        )
        named = [
            word for word in (str(TINY_TOKENIZER), str(router.folder), "/src/", ".rs:", "root:") if word in answer.text
        ]
        lab.check(not named, f"{str(chat)[:120]}: the error names {named}")
    lab.check(router.memory("VmHWM") < 400, f"{router.memory('VmHWM'):.0f} MiB")
    bystander.report(lab, slowest=3, least=5)


@attack("stalled bodies: 120 connections of two tenants with 15.9 of 16 MiB sent, and 300 with only a head", alone=True)
def stalled(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "tenants": tenants("a", "b", "c")})
    bystander = lab.bystander(router, bearer("b"))
    sent = b'{"model":"m","prompt":"' + b"x" * int(15.9 * MIB)

    def stall(number):
        stream = connect(router.address, timeout=6)
        try:
            stream.sendall(head(16 * MIB, "key-c" if number % 3 == 0 else "key-a"))
            stream.sendall(sent)
        except OSError:
            pass  # A router that reads no more of it, or has refused it: both are fine.
        return stream

    only_heads = [connect(router.address) for _ in range(300)]
    for stream in only_heads:
        stream.sendall(head(16 * MIB, "key-a"))
    streams = in_parallel(stall, range(120), threads=120)
    most = router.memory("VmHWM")
    lab.check(most < 700, f"{most:.0f} MiB for 120 stalled bodies (limit 700)")
    answer = router.post(headers=bearer("b"), body={"model": "m", "prompt": "y" * (4 * MIB), "max_tokens": 1})
    lab.check(answer.status == 200, f"4 MiB of another tenant gave {answer.status} meanwhile")
    for stream in streams + only_heads:
        stream.close()
    bystander.report(lab, slowest=5, least=3)
    lab.check(router.is_serving(bearer("a")), "the tenant itself is not served after its connections closed")


@attack("bodies and heads that come slowly")
def slow(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "limits": {"body_time": "2s", "head_time": "2s"}})
    bystander = lab.bystander(router)

    def trickle(start, step):
        """Sends a byte at a time until the router ends it; the status and the time that it took."""
        started = time.monotonic()
        with connect(router.address) as stream:
            stream.sendall(start)
            stream.settimeout(0.1)
            while time.monotonic() - started < 10:
                try:
                    stream.sendall(step)
                    answer = stream.recv(100)
                    return int(answer.split()[1]) if answer else 0, time.monotonic() - started
                except TimeoutError:
                    continue
                except OSError:
                    return 0, time.monotonic() - started
        return None, time.monotonic() - started

    chunked = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    cases = [
        ("a body that stops", head(1000), b"", {408}),
        ("a body that trickles", head(1_000_000), b" ", {408}),
        ("a body that trickles after a megabyte", head(2_000_000) + b" " * 1_000_000, b" ", {408}),
        ("chunks that trickle", chunked, b"1\r\n \r\n", {408}),
        ("a chunk size that trickles", chunked, b"0", {408, 400}),
        ("a chunk extension without end", chunked + b"1;", b"x", {408, 400}),
        ("a head that stops", b"POST /v1/completions HTTP/1.1\r\n", b"", {408, 0}),
        ("a head that trickles", b"POST /v1/completions HTTP/1.1\r\nx: ", b"y", {408, 0}),
        ("a connection without a byte", b"", b"", {408, 0}),
    ]
    results = in_parallel(lambda case: trickle(case[1], case[2]), cases)
    for (name, _, _, expected), (status, took) in zip(cases, results):
        lab.check(status in expected and took < 8, f"{name} gave {status} after {took:.1f} s")
    lab.check(
        not engine.requests or all(b"question" in request.body for request in engine.requests),
        "a part of a body reached the engine",
    )
    bystander.report(lab, slowest=3)


@attack("bodies of tenants without a valid key or beyond their quota")
def before_reading(lab):
    def hang(stream):
        time.sleep(15)

    engine = lab.own(
        Engine(lambda received: hang if b"hang" in received.body else b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    )
    router = lab.serve({"pods": [engine.pod()], "tenants": tenants("a", quota=1) + tenants("b")})
    first = connect(router.address)
    body = b'{"model":"m","prompt":"hang"}'
    first.sendall(head(len(body), "key-a") + body)
    until("the engine has it", lambda: engine.requests)
    for name, key, path, expected in [
        ("a tenant over its quota", "key-a", "/v1/completions", 429),
        ("no key", "", "/v1/completions", 401),
        ("a wrong key", "key-c", "/v1/completions", 401),
        ("a path that is not forwarded", "key-b", "/sleep", 404),
        ("a path in another spelling", "key-b", "/v1//completions", 400),
    ]:
        for length in (10_000, 15 * MIB):
            with connect(router.address, timeout=5) as stream:
                stream.sendall(head(length, key, path))
                status = status_of(stream)
                lab.check(
                    status == expected, f"{name}, {length} bytes: {status} instead of {expected} before the body came"
                )
    lab.check(router.is_serving(bearer("b")), "another tenant is not served")
    first.close()
