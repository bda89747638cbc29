"""Request smuggling: bytes that a proxy in front and the router, or the router and an engine, could cut differently.

Each variant is one TCP connection. It carries a request to `/v1/completions?case=N`, in whose bytes or behind which a
second one to `/v1/smuggled?case=N` is hidden. An engine must get exactly the first, or nothing.
"""

from lab import attack, in_parallel
from wire import Engine, exchange

BODY = b'{"prompt":"a"}'
# Refused: nothing reaches an engine. One: the request does. AtMostOne: both are safe.
REFUSED, ONE, AT_MOST_ONE = "refused", "one", "at most one"

HOP_BY_HOP = ("transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect", "proxy-connection")


def hidden(case):
    """The request that must never arrive."""
    return f"POST /v1/smuggled?case={case} HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{{}}".encode()


def with_heads(case):
    """A plain body, and headers that say otherwise; what follows is hidden behind the body."""
    line = f"POST /v1/completions?case={case} HTTP/1.1\r\nhost: h\r\n".encode()
    return lambda head: line + head.encode("latin-1") + b"\r\n\r\n" + BODY


LENGTH = f"content-length: {len(BODY)}"

# Headers of a request whose body is BODY, without anything behind it.
HEADS = [
    (ONE, LENGTH),
    (ONE, f"{LENGTH}\r\nx-a: b"),
    (ONE, f"{LENGTH}\r\nconnection: close"),
    (ONE, f"{LENGTH}\r\nexpect: 100-continue"),
    (ONE, f"{LENGTH}\r\nconnection: x-a\r\nx-a: b"),
    (ONE, f"{LENGTH}\r\nte: trailers\r\nconnection: te"),
    (
        ONE,
        f"{LENGTH}\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA",
    ),
    (ONE, f"{LENGTH}\r\nx-empty:"),
    (ONE, f"{LENGTH}\r\nkeep-alive: 5\r\nproxy-connection: keep-alive"),
    (AT_MOST_ONE, f"{LENGTH}\r\n{LENGTH}"),
    (AT_MOST_ONE, "content-length: +14"),
    (AT_MOST_ONE, "content-length: 14, 14"),
    (AT_MOST_ONE, "content-length:14 "),
    (AT_MOST_ONE, "content-length: 0000000000000014"),
    (AT_MOST_ONE, f"{LENGTH}\r\nhost: other"),
    (REFUSED, "Content-Length : 14"),
    (REFUSED, "Content-Length\t: 14"),
    (REFUSED, "content-length: 1e1"),
    (REFUSED, "content-length: -1"),
    (REFUSED, "content-length: 0x0e"),
    (REFUSED, "content-length: 14 14"),
    (REFUSED, "content-length: 99999999999999999999"),
    (REFUSED, "content-length: 18446744073709551630"),
    (REFUSED, "content-length: 14;q=1"),
    (REFUSED, "content-length: 13\r\ncontent-length: 14"),
    (REFUSED, "content-length: 14\r\ncontent-length: 13"),
    (REFUSED, "content-length: 13, 14"),
    (REFUSED, "content-length: 17179869184"),
    (REFUSED, "content-length: \x0b14"),
    (REFUSED, "transfer-encoding: gzip"),
    (REFUSED, "transfer-encoding: chunked, identity"),
    (REFUSED, "transfer-encoding: identity, gzip"),
    (REFUSED, "transfer-encoding:\x0bchunked"),
    (REFUSED, "transfer-encoding\x00: chunked"),
    (REFUSED, "bad header"),
    (REFUSED, "x y: z"),
    (REFUSED, ": empty"),
    (REFUSED, "x-a: \x01b"),
    (REFUSED, f"{LENGTH}\r\nx-a : b"),
    (REFUSED, f" folded: yes\r\n{LENGTH}"),
    (REFUSED, f"x-a: b\r\n folded\r\n{LENGTH}"),
    (REFUSED, f"x-a: b\r\n\tfolded\r\n{LENGTH}"),
    (REFUSED, f"{LENGTH}\r\ncontent-encoding: gzip"),
]

# Two headers that contradict each other, and a body that ends differently by each. TE.CL: a reader of the length takes
# the chunks for a body of four bytes. CL.TE: a reader of chunks takes what is behind `0` for the next request.
TRANSFER_ENCODINGS = [
    "transfer-encoding: chunked",
    "Transfer-Encoding: chunked",
    "transfer-encoding: Chunked",
    "transfer-encoding: xchunked",
    "transfer-encoding: identity",
    "transfer-encoding: chunked, identity",
    "transfer-encoding: identity, chunked",
    "transfer-encoding: chunked, chunked",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "transfer-encoding: identity\r\ntransfer-encoding: chunked",
    "transfer-encoding:\tchunked",
    "transfer-encoding:  chunked",
    "transfer-encoding: chunked ",
    'transfer-encoding: "chunked"',
    "transfer-encoding: chunked;x=1",
    "transfer-encoding: x, chunked",
    "transfer-encoding : chunked",
    " transfer-encoding: chunked",
    "x: y\r\n transfer-encoding: chunked",
    "x: y\ntransfer-encoding: chunked",
    "transfer-encoding\r\n : chunked",
    "transfer-encoding: chunk\xe9d",
]

LINES = [
    (REFUSED, "POST /v1/completions?case=N HTTP/1.2"),
    (REFUSED, "POST /v1/completions?case=N HTTP/9"),
    (REFUSED, "POST /v1/completions?case=N"),
    (REFUSED, "POST  /v1/completions?case=N HTTP/1.1"),
    (REFUSED, "POST /v1/completions?case=N  HTTP/1.1"),
    (REFUSED, "POST /v1/comp letions?case=N HTTP/1.1"),
    (REFUSED, "PO ST /v1/completions?case=N HTTP/1.1"),
    (REFUSED, "P\x00ST /v1/completions?case=N HTTP/1.1"),
    (REFUSED, " POST /v1/completions?case=N HTTP/1.1"),
    (REFUSED, "POST v1/completions?case=N HTTP/1.1"),
    (REFUSED, "POST /v1/completions?case=N http/1.1"),
    (REFUSED, "POST /v1/completions?case=N HTTP/1.1 x"),
    (REFUSED, "PRI * HTTP/2.0"),
    (REFUSED, "\x16\x03\x01"),
    (REFUSED, "CONNECT h:80 HTTP/1.1"),
    (AT_MOST_ONE, "POST http://other/v1/completions?case=N HTTP/1.1"),
    (AT_MOST_ONE, "POST http://h@other:80/v1/completions?case=N HTTP/1.1"),
    (AT_MOST_ONE, "POST /v1/completions?case=N#x HTTP/1.1"),
    (AT_MOST_ONE, "\r\nPOST /v1/completions?case=N HTTP/1.1"),
    (AT_MOST_ONE, "POST /v1/completions?case=N HTTP/1.0"),
    (AT_MOST_ONE, "TRACE /v1/completions?case=N HTTP/1.1"),
    (AT_MOST_ONE, "OPTIONS * HTTP/1.1"),
]

# Bodies in chunks, without anything behind them.
CHUNKS = [
    (ONE, b"e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (ONE, b"7\r\n" + BODY[:7] + b"\r\n7\r\n" + BODY[7:] + b"\r\n0\r\n\r\n"),
    (AT_MOST_ONE, b"e;x=y\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (AT_MOST_ONE, b'e;x="\r\n' + BODY + b"\r\n0\r\n\r\n"),
    (AT_MOST_ONE, b"00e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (AT_MOST_ONE, b"E\r\n" + BODY + b"\r\n0;a=b\r\n\r\n"),
    (AT_MOST_ONE, b"e \r\n" + BODY + b"\r\n0\r\n\r\n"),
    (AT_MOST_ONE, b"e\r\n" + BODY + b"\r\n0\r\nx-trailer: 1\r\ncontent-length: 0\r\n\r\n"),
    (AT_MOST_ONE, b"e\r\n" + BODY + b"\r\n0\r\ntransfer-encoding: chunked\r\n\r\n"),
    (REFUSED, b"x\r\n"),
    (REFUSED, b"-1\r\n"),
    (REFUSED, b"0x0e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (REFUSED, b"\r\n"),
    (REFUSED, b"fffffffffffffffff\r\n"),
    (REFUSED, b"1000000000000000e\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (REFUSED, b"e\n" + BODY + b"\n0\n\n"),
    (REFUSED, b"e;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (REFUSED, b"e\r\n" + BODY + b"xx0\r\n\r\n"),
    (REFUSED, b"d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (REFUSED, b"f\r\n" + BODY + b"\r\n0\r\n\r\n"),
    (REFUSED, b"e"),
]


def variants():
    """`(name, expectation, bytes)` of every variant; a request is found again by its number."""
    made = []

    def add(name, expected, build):
        made.append((name, expected, build(len(made))))

    for expected, head in HEADS:
        add(f"head {head!r}", expected, lambda case, head=head: with_heads(case)(head))
    for encoding in TRANSFER_ENCODINGS:
        for order in ("{0}\r\n{1}", "{1}\r\n{0}"):

            def te_cl(case, encoding=encoding, order=order):
                chunks = b"%x\r\n" % len(hidden(case)) + hidden(case) + b"\r\n0\r\n\r\n"
                return with_heads(case)(order.format(encoding, "content-length: 4"))[: -len(BODY)] + chunks

            def cl_te(case, encoding=encoding, order=order):
                body = b"0\r\n\r\n" + hidden(case)
                return with_heads(case)(order.format(encoding, f"content-length: {len(body)}"))[: -len(BODY)] + body

            add(f"TE.CL {order.format(encoding, 'CL')!r}", AT_MOST_ONE, te_cl)
            add(f"CL.TE {order.format(encoding, 'CL')!r}", AT_MOST_ONE, cl_te)
    # A name that only some servers take for the header.
    body = b"0\r\n\r\n"
    for name in ("transfer_encoding", "x-transfer-encoding", "transfer-encoding-x"):

        def lookalike(case, name=name):
            head = f"{name}: chunked\r\ncontent-length: {len(body + hidden(case))}"
            return with_heads(case)(head)[: -len(BODY)] + body + hidden(case)

        add(f"CL.TE '{name}'", AT_MOST_ONE, lookalike)
    for expected, line in LINES:
        text = line.encode("latin-1") + f"\r\nhost: h\r\n{LENGTH}\r\n\r\n".encode() + BODY
        add(f"line {line!r}", expected, lambda case, text=text: text.replace(b"case=N", b"case=%d" % case))
    for expected, chunks in CHUNKS:
        head = "POST /v1/completions?case={} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
        add(f"chunks {chunks!r}", expected, lambda case, chunks=chunks, head=head: head.format(case).encode() + chunks)
    # Line ends of other kinds, and a body where none is announced.
    for name, text in [
        ("bare LF", "POST /v1/completions?case=N HTTP/1.1\nhost: h\ncontent-length: 14\n\n"),
        ("bare CR", "POST /v1/completions?case=N HTTP/1.1\rhost: h\rcontent-length: 14\r\r"),
        ("LF behind the head", "POST /v1/completions?case=N HTTP/1.1\r\nhost: h\r\ncontent-length: 14\r\n\n"),
        ("NUL in a value", "POST /v1/completions?case=N HTTP/1.1\r\nhost: h\r\nx: a\0b\r\ncontent-length: 14\r\n\r\n"),
        (
            "bare CR in a value",
            "POST /v1/completions?case=N HTTP/1.1\r\nhost: h\r\nx: a\rb\r\ncontent-length: 14\r\n\r\n",
        ),
    ]:
        add(name, AT_MOST_ONE, lambda case, text=text: text.replace("N", str(case), 1).encode() + BODY)
    return made


def cases_of(engine, path):
    """The numbers of the cases that arrived at a path, as often as they did."""
    return [request.target.split("case=")[-1] for request in engine.requests if request.path == path]


@attack("ambiguous lengths, encodings, chunks, lines and line ends")
def framing(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "routes": [{"profile": "round-robin"}]})
    made = variants()
    in_parallel(lambda case: exchange(router.address, made[case][2]), range(len(made)), threads=48)
    lab.check(router.is_serving(), "the router does not answer any more")
    first, second = cases_of(engine, "/v1/completions"), cases_of(engine, "/v1/smuggled")
    for case, (name, expected, _) in enumerate(made):
        arrived, smuggled = first.count(str(case)), second.count(str(case))
        held = smuggled == 0 and arrived <= 1 and (expected == AT_MOST_ONE or arrived == (expected == ONE))
        lab.check(held, f"{name}: {arrived} requests arrived instead of {expected}, and {smuggled} smuggled ones")
    lab.check(not engine.strays, f"an engine got bytes that are no request: {engine.strays[:2]}")
    for request in engine.requests:
        passed = [name for name in HOP_BY_HOP if request.values(name)]
        lab.check(not passed, f"{request.target}: {passed} reached the engine")


@attack("requests behind one that is refused or ends the connection")
def behind_a_refusal(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "limits": {"body": "1KiB"}})
    refused = [
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 2048\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n800\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-encoding: gzip\r\ncontent-length: 2048\r\n\r\n",
        b"POST /sleep HTTP/1.1\r\nhost: h\r\ncontent-length: 2048\r\n\r\n",
        b"TRACE /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 2048\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: h\r\ncontent-length: 2048\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n800\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
    ]
    # The hidden request is inside the body that was announced, so no reading makes it a request of its own.
    answers = in_parallel(lambda case: exchange(router.address, refused[case] + hidden(case)), range(len(refused)))
    smuggled = cases_of(engine, "/v1/smuggled")
    for case, answer in enumerate(answers):
        held = str(case) not in smuggled and answer.count(b"HTTP/1.1 ") <= 1
        lab.check(held, f"{refused[case]!r}: the bytes behind it were answered as a request: {answer[:200]!r}")
    two = b"".join(hidden(case).replace(b"smuggled", b"completions") for case in (100, 101))
    lab.check(
        exchange(router.address, two).count(b"HTTP/1.1 200") == 2, "two proper requests are not two: the check is blind"
    )
