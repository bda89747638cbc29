"""What the sidecar costs an engine with 200,000 cached blocks. `python3 -m unittest discover -s python/tests`

Delays are measured as processor time of the two threads that share the engine's interpreter lock, which other processes on the
machine do not change: what the engine's own thread does in the hooks, and the longest stretch for which the sidecar's thread
keeps the lock without letting go of it. The router is a stand-in in a process of its own.
"""

import functools
import gc
import http.server
import json
import operator
import os
import pathlib
import subprocess
import sys
import threading
import time
import types
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from wornpath.sidecar import Reporter, pipe, watch_block_pool  # noqa: E402
from wornpath.sidecar.mirror import name_of  # noqa: E402
from wornpath.sidecar.poster import POST_BYTES  # noqa: E402

BLOCKS, BLOCK_SIZE, PROMPT = 200_000, 16, 64
STEPS = 400
LIMIT_NS = 1_000_000


def serve() -> None:
    """The stand-in for a router: knows which blocks it was told of, and asks for a snapshot when `/wish` was posted."""
    held: set[int] = set()
    seen = {"syncs": 0, "parts": 1, "largest": 0, "wish": False}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["content-length"])
            body = json.loads(self.rfile.read(length))
            if self.path == "/wish":
                seen["wish"] = True
                return self.answer({})
            seen["largest"] = max(seen["largest"], length)
            part, parts = body.get("part", 0), body.get("parts", 1)
            if self.path == "/events/sync":
                seen["parts"] = max(seen["parts"], parts)
                seen["syncs"] += part + 1 == parts
                if part == 0:
                    held.clear()
            for run in body.get("stored", []):
                held.update(run["hashes"])
            held.difference_update(body.get("evicted", []))
            is_wanted = seen["wish"] and parts == 1
            seen["wish"] &= not is_wanted
            self.answer({"sync": is_wanted})

        def do_GET(self):
            self.answer(seen | {"count": len(held), "xor": functools.reduce(operator.xor, held, 0)})

        def answer(self, body):
            body = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


class Router:
    """The stand-in, from outside."""

    def __init__(self, test):
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        test.addCleanup(self.close)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def seen(self):
        with urllib.request.urlopen(self.url) as answer:
            return json.load(answer)

    def wish(self):
        urllib.request.urlopen(f"{self.url}/wish", b"{}").close()


class Stretches:
    """The sidecar's thread lets other threads run where it writes and where it waits: stands in for both, and measures
    the processor time between."""

    def __init__(self):
        self.all, self._since = [], threading.local()

    def write(self, fd, data):
        return self._released(os.write, fd, data)

    def in_wait(self, event):
        wait = functools.partial(self._released, event.wait)
        return types.SimpleNamespace(wait=wait, set=event.set)

    def _released(self, call, *args):
        now = time.thread_time_ns()
        self.all.append(now - getattr(self._since, "at", now))
        try:
            return call(*args)
        finally:
            self._since.at = time.thread_time_ns()


class Pool:
    """A block pool as vLLM has one, of which the sidecar sees these methods."""

    def cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks, block_size, group):
        for at in range(num_cached_blocks, num_full_blocks):
            blocks[at].block_hash = b"%032d" % request.all_token_ids[at * block_size]

    def _maybe_evict_cached_block(self, block):
        block.block_hash = None
        return True

    def reset_prefix_cache(self):
        return True


class Engine:
    """Computes a prompt of 64 blocks in each step, and evicts the oldest where there is no room."""

    def __init__(self, pool):
        self.pool, self.cached, self.computed, self.all = pool, [], 0, []
        self.free = [types.SimpleNamespace(block_hash=None) for _ in range(BLOCKS)]

    def step(self):
        first = self.computed * PROMPT * BLOCK_SIZE
        tokens = list(range(first, first + PROMPT * BLOCK_SIZE))
        request = types.SimpleNamespace(all_token_ids=tokens, cache_salt=None, lora_request=None)
        start = time.thread_time_ns()
        if len(self.free) < PROMPT:
            for block in self.cached.pop(0):
                self.pool._maybe_evict_cached_block(block)
                self.free.append(block)
        blocks = [self.free.pop() for _ in range(PROMPT)]
        self.pool.cache_full_blocks(request, blocks, 0, PROMPT, BLOCK_SIZE, 0)
        self.all.append(time.thread_time_ns() - start)
        self.cached.append(blocks)
        self.computed += 1

    def digest(self):
        names = [name_of(block.block_hash) for blocks in self.cached for block in blocks]
        return len(names), functools.reduce(operator.xor, names)


class Delay(unittest.TestCase):
    def test_no_step_of_an_engine_with_200_000_blocks_is_delayed_by_a_millisecond(self):
        # The machine can only add to a measurement, so the best of three counts.
        measured = []
        for _ in range(3):
            measured.append(self.measure())
            if max(measured[-1]) < LIMIT_NS:
                break
        hooks, stretch = min(measured, key=max)
        print(f"sidecar: {BLOCKS} blocks, 49 of 50 steps in the hooks {hooks / 1e6:.3f} ms, lock held for {stretch / 1e6:.3f} ms")
        self.assertLess(max(hooks, stretch), LIMIT_NS, measured)

    def measure(self):
        router, stretches, pool = Router(self), Stretches(), Pool()
        pipe.os = stretches
        self.addCleanup(setattr, pipe, "os", os)
        reporter = Reporter(router.url, "pod", flush=0.01, digest=0.2)
        reporter._ending = stretches.in_wait(reporter._ending)
        self.addCleanup(reporter.close)
        watch_block_pool(pool, reporter)
        engine = Engine(pool)
        while len(engine.free) >= PROMPT:
            engine.step()
            while len(reporter._queue) > 64:
                time.sleep(0.001)
        self.until_known(router, engine)
        # As engines do: the collector is not to walk through what they keep while they serve.
        gc.collect()
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        engine.all, stretches.all = [], []
        syncs = router.seen()["syncs"]
        router.wish()
        for _ in range(STEPS):
            engine.step()
            time.sleep(0.002)
        # A busy machine takes the processor away in the middle of what is measured, now and then.
        measured = usual(engine.all), usual(stretches.all)
        seen = self.until_known(router, engine)
        self.assertGreater(seen["syncs"], syncs, "the router got the snapshot that it asked for")
        self.assertGreater(seen["parts"], 1, "in parts")
        self.assertLessEqual(seen["largest"], POST_BYTES + 1024)
        self.assertLess(resident_bytes(reporter._process.pid), 512 << 20)
        return measured

    def until_known(self, router, engine):
        end = time.monotonic() + 120
        while True:
            seen = router.seen()
            if (seen["count"], seen["xor"]) == engine.digest():
                return seen
            self.assertLess(time.monotonic(), end, f"the router knows the cache: {seen}, not {engine.digest()}")
            time.sleep(0.2)


def usual(times):
    """What 49 of 50 do not exceed."""
    return sorted(times)[len(times) * 49 // 50]


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        unittest.main()
