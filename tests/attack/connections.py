"""Connections: more than there are descriptors for, clients that do not read, and clients that disappear."""

import socket
import struct
import time

from lab import attack, bearer, in_parallel, tenants, until
from wire import Engine, connect, post_head, respond


@attack("more idle connections than the process has descriptors")
def descriptors(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "limits": {"head_time": "1s"}}, shell="ulimit -n 128")
    idle = []
    for number in range(400):
        stream = connect(router.address)
        stream.sendall(b"GET /health HTTP/1.1\r\n"[: number % 20])
        idle.append(stream)
    for number in range(10):
        started = time.monotonic()
        answer = router.post(timeout=20)
        took = time.monotonic() - started
        lab.check(answer.status == 200 and took < 12, f"request {number} gave {answer.status} after {took:.1f} s")
    for stream in idle:
        stream.close()
    for _ in range(20):
        lab.check(router.post().status == 200, "not served after the connections closed")


@attack("thousands of connections that are reset at once")
def churn(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    bystander = lab.bystander(router)
    starts = [
        b"",
        b"\x16\x03\x01\x02\x00",
        b"GET ",
        post_head("/v1/completions", 30) + b"{",
        post_head("/v1/completions", 26) + b'{"model":"m","prompt":"a"}',
    ]

    def one(number):
        stream = connect(router.address)
        stream.sendall(starts[number % len(starts)])
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()

    in_parallel(one, range(3000))
    lab.check(router.process.is_alive() and router.memory("VmRSS") < 300, f"{router.memory('VmRSS'):.0f} MiB")
    bystander.report(lab, slowest=3, least=5)


@attack("clients that ask for long answers and do not read them")
def unread(lab):
    piece = b"data: " + b"x" * 60_000 + b"\n\n"

    def stream_long(stream):
        stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(300):
            stream.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
        stream.sendall(b"0\r\n\r\n")

    engine = lab.own(Engine(lambda received: stream_long if b"long" in received.body else respond({})))
    config = {"pods": [engine.pod()], "tenants": tenants("a", "b"), "timeouts": {"between_bytes": "1s"}}
    router = lab.serve(config)
    bystander = lab.bystander(router, bearer("b"))
    body = b'{"model":"m","prompt":"long","stream":true}'
    streams = []
    for _ in range(100):
        stream = connect(router.address)
        stream.sendall(post_head("/v1/completions", len(body), bearer("a")) + body)
        streams.append(stream)
    until("the engine has all", lambda: sum(b"long" in request.body for request in engine.requests) == 100)
    time.sleep(1)
    lab.check(router.memory("VmHWM") < 300, f"{router.memory('VmHWM'):.0f} MiB for 100 answers that nobody reads")
    # Only those of the client that means no harm are left.
    until("their calls are cancelled", lambda: len(engine.open_connections) < 20, 10)
    lab.check(len(engine.open_connections) < 20, f"{len(engine.open_connections)} calls are still open")
    bystander.report(lab, slowest=3)
    for stream in streams:
        stream.close()


@attack("thousands of requests in one connection whose answers nobody reads")
def pipelined(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    bystander = lab.bystander(router)
    body = b'{"model":"m","prompt":"a"}'
    kinds = [
        b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n",
        post_head("/v1/completions", len(body)) + body,
    ]

    def flood(kind):
        with connect(router.address, timeout=1) as stream:
            try:
                stream.sendall(kind * 20_000)
            except OSError:
                pass  # The router reads no more, as nobody reads its answers.
            time.sleep(0.5)

    in_parallel(flood, kinds * 8)
    for kind in kinds:
        lab.check(router.memory("VmHWM") < 300, f"{kind[:20]!r}: {router.memory('VmHWM'):.0f} MiB")
    bystander.report(lab, slowest=3)


@attack("clients that disconnect before their answer")
def gone(lab):
    def hang(stream):
        stream.settimeout(15)
        stream.recv(1)

    engine = lab.own(Engine(lambda received: hang if b"hang" in received.body else respond({})))
    router = lab.serve({"pods": [engine.pod()], "tenants": tenants("a", quota=200) + tenants("b")})
    body = b'{"model":"m","prompt":"hang"}'

    def ask_and_leave(_):
        stream = connect(router.address)
        stream.sendall(post_head("/v1/completions", len(body), bearer("a")) + body)
        return stream

    for _ in range(3):
        streams = in_parallel(ask_and_leave, range(150))
        time.sleep(0.2)
        for stream in streams:
            stream.close()
        until(
            "the calls are cancelled and the quota is free",
            lambda: len(engine.open_connections) < 20 and router.post(headers=bearer("a")).status == 200,
            10,
        )
        lab.check(router.is_serving(bearer("b")), "another tenant is not served")
