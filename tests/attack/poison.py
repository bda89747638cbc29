"""Poison: requests that break the engine that reads them, as a bug of an engine makes possible.

Three pods, 20 such requests a second, and other clients beside: none of those may fail, and a request that broke two
pods must not reach the third.
"""

import collections
import socket
import struct
import threading
import time

from lab import attack
from wire import COMPLETION, Engine, respond

SECONDS = 3
PER_SECOND = 20


def reset(stream):
    """Closes with a RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def half_a_head(stream):
    stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: appl")


def late(stream):
    time.sleep(0.1)


KINDS = {
    "close": None,
    "close_late": late,
    "reset": reset,
    "half_a_head": half_a_head,
    "garbage": b"\x00\x01\x02 garbage\r\n\r\n",
    "error": respond({"error": {"message": "boom"}}, "500 Internal Server Error"),
    "busy": respond({"error": {"message": "busy"}}, "503 Service Unavailable", "retry-after: 10\r\n"),
    "too_many": respond({"error": {"message": "busy"}}, "429 Too Many Requests", "retry-after: 10\r\n"),
}
# Those that break the connection: such a request reaches two pods at most, and the client gets 502.
BREAKING = ("close", "close_late", "reset", "half_a_head", "garbage")


def poison(lab, kind, are_distinct):
    """One run; failures are noted with the kind."""
    answer = lambda received: KINDS[kind] if b"poison" in received.body else respond(COMPLETION)  # noqa: E731
    engines = [lab.own(Engine(answer)) for _ in range(3)]
    router = lab.serve({"pods": [engine.pod(name=f"pod-{number}") for number, engine in enumerate(engines)]}, pods=3)
    bystanders = [lab.bystander(router) for _ in range(2)]
    statuses, threads = {}, []

    def send(number):
        text = f"poison {number if are_distinct else 0}"
        try:
            statuses[number] = router.post(
                body={"model": "m", "prompt": text}, headers={"x-request-id": f"p{number}"}
            ).status
        except OSError as error:
            statuses[number] = repr(error)

    for number in range(SECONDS * PER_SECOND):
        threads.append(threading.Thread(target=send, args=(number,), daemon=True))
        threads[-1].start()
        time.sleep(1 / PER_SECOND)
    for thread in threads:
        thread.join(20)
    name = f"{kind}, {'distinct bodies' if are_distinct else 'the same body'}"
    for bystander in bystanders:
        bystander.end()
        failed, all_of_them = len(bystander.failures), len(bystander.times)
        shown = f"{name}: {failed} of {all_of_them} requests of others failed: {bystander.failures[:1]}"
        lab.check(failed == 0 and all_of_them >= 10, shown)
    reached = collections.Counter()
    for engine in engines:
        reached.update({request.values("x-request-id")[0] for request in engine.requests if b"poison" in request.body})
        sent = collections.Counter(request.values("x-request-id")[0] for request in engine.requests)
        # Once more if a connection that was kept alive closes: it may have closed before the request came.
        most = max(sent.values(), default=0)
        lab.check(most <= 2, f"{name}: a request reached one pod {most} times (limit 2)")
    lab.check(reached, f"{name}: no engine got any of it: the check is blind")
    if kind in BREAKING:
        most = max(reached.values(), default=0)
        lab.check(most <= 2, f"{name}: a request reached {most} pods (limit 2)")
        # 503 says that no pod is left, which is what the attack wants.
        wrong = collections.Counter(status for status in statuses.values() if status != 502)
        lab.check(not wrong, f"{name}: answers other than 502: {dict(wrong)}")


def family(lab, kinds):
    """Runs of several kinds at once, each with a fleet of its own."""
    runs = [
        threading.Thread(target=guarded, args=(lab, kind, are_distinct))
        for kind in kinds
        for are_distinct in (False, True)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()


def guarded(lab, kind, are_distinct):
    try:
        poison(lab, kind, are_distinct)
    except Exception as error:  # noqa: BLE001 (noted, as in the thread of the attack)
        lab.check(False, f"{kind}: {error!r}")


@attack("requests for which engines close the connection, at once, late or with a reset")
def closing(lab):
    family(lab, ["close", "close_late", "reset"])


@attack("requests for which engines answer half a head or garbage")
def garbage(lab):
    family(lab, ["half_a_head", "garbage"])


@attack("requests for which engines answer 500, 503 or 429 with a long retry-after")
def refusing(lab):
    family(lab, ["error", "busy", "too_many"])
