"""What the sidecar costs the steps of a real vLLM engine with many cached blocks.

    ~/.cache/wornpath-engine/venv/bin/python tests/real-engine/sidecar.py [--blocks 200000] [--steps 2000]

The engine runs in this process, and the sidecar hooks its block pool; the router is a stand-in in another process. First
prompts fill the cache. Then requests decode, in rounds that take turns: without the sidecar's hooks, with them, and with a
router that asks for a snapshot every two seconds. Fails if the sidecar keeps the interpreter lock for a millisecond, or if
its hooks take so long in one step, both in processor time. The times of whole steps are printed beside each other.
"""

import argparse
import functools
import gc
import http.server
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
import types
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
BLOCK_SIZE, PROMPT_BLOCKS, LIMIT_NS, POST_BYTES = 32, 100, 1_000_000, 4 << 20


def serve() -> None:
    """The stand-in for a router: counts what it gets, asks for a snapshot as often as its first argument says."""
    every, state = float(sys.argv[2]), {"posts": 0, "largest": 0, "parts": 1, "asked": time.monotonic()}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers["content-length"])
            body = json.loads(self.rfile.read(length))
            state["posts"] += 1
            state["largest"] = max(state["largest"], length)
            state["parts"] = max(state["parts"], body.get("parts", 1))
            if self.path.endswith("/digest"):
                state["blocks"] = body["tiers"].get("GPU", {}).get("count", 0)
            now = time.monotonic()
            is_due = every > 0 and now - state["asked"] >= every and "part" not in body
            if is_due:
                state["asked"] = now
            self.answer({"sync": is_due})

        def do_GET(self):
            self.answer(state)

        def answer(self, body):
            body = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def seen_by(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


class Meter:
    """Processor time: of the hooks in the engine's thread, by step, and of the sidecar's thread between the points where it
    lets other threads run, its writes and waits."""

    def __init__(self):
        self.step_ns, self.longest_step, self._since = 0, 0, threading.local()
        self.stretches: list[int] = []
        # Python's garbage collector runs in the thread whose allocation is the last that it waited for, and walks through the
        # engine's objects. So its time is taken out of both, and counted apart.
        self.longest_collection = 0
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase, _):
        if phase == "start":
            self._since.collection = time.thread_time_ns()
            return
        took = time.thread_time_ns() - self._since.collection
        self.longest_collection = max(self.longest_collection, took)
        self._since.collected = getattr(self._since, "collected", 0) + took

    def _now(self):
        """The thread's processor time without that of collections."""
        return time.thread_time_ns() - getattr(self._since, "collected", 0)

    def write(self, fd, data):
        return self._released(os.write, fd, data)

    def in_wait(self, event):
        wait = functools.partial(self._released, event.wait)
        return types.SimpleNamespace(wait=wait, set=event.set)

    def _released(self, call, *args):
        now = self._now()
        self.stretches.append(now - getattr(self._since, "at", now))
        try:
            return call(*args)
        finally:
            self._since.at = self._now()

    def timed(self, method):
        def call(*args, **named):
            start = self._now()
            try:
                return method(*args, **named)
            finally:
                self.step_ns += self._now() - start

        return call

    def end_step(self):
        self.longest_step, self.step_ns = max(self.longest_step, self.step_ns), 0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    folder = os.environ.get("WORNPATH_ENGINE_DIR", cache / "wornpath-engine")
    arguments.add_argument("--model", default=str(pathlib.Path(folder) / "model"))
    arguments.add_argument("--blocks", type=int, default=200_000)
    arguments.add_argument("--steps", type=int, default=2_000, help="decode steps of each kind")
    options = arguments.parse_args()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    from wornpath.sidecar import Reporter, pipe, watch_block_pool

    llm = LLM(
        options.model,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=options.blocks + 256,
        kv_cache_memory_bytes=(options.blocks + 256) * 8192 * 2,
        max_model_len=16_384,
        max_num_batched_tokens=16_384,
        max_num_seqs=16,
        enforce_eager=True,
        enable_prefix_caching=True,
    )
    engine = llm.llm_engine
    pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    plain = {name: getattr(pool, name) for name in ("cache_full_blocks", "_maybe_evict_cached_block", "reset_prefix_cache")}
    command = [sys.executable, __file__, "--serve", "2"]
    router = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{router.stdout.readline().strip()}"
    meter = Meter()
    pipe.os = meter
    reporter = Reporter(url, "engine")
    reporter._ending = meter.in_wait(reporter._ending)
    watch_block_pool(pool, reporter)
    hooked = {name: getattr(pool, name) for name in plain}
    number = 0

    def prompt(tokens):
        nonlocal number
        number += 1
        ids = [10 + (number * 7_919 + at * (number % 97 + 1)) % 900 for at in range(tokens)]
        return TokensPrompt(prompt_token_ids=ids)

    start = time.monotonic()
    while number * PROMPT_BLOCKS < options.blocks:
        engine.add_request(f"fill-{number}", prompt(PROMPT_BLOCKS * BLOCK_SIZE), SamplingParams(max_tokens=1, temperature=0))
        if number % 16 == 0 or number * PROMPT_BLOCKS >= options.blocks:
            while engine.has_unfinished_requests():
                engine.step()
    print(f"filled {options.blocks} blocks in {time.monotonic() - start:.0f} s")
    start = time.monotonic()
    while seen_by(url).get("blocks", 0) < options.blocks * 0.9 and time.monotonic() - start < 120:
        time.sleep(0.5)
    print(f"the router knew them {time.monotonic() - start:.0f} s later")
    times: dict[str, list[float]] = {"without hooks": [], "with the sidecar": []}
    while min(map(len, times.values())) < options.steps:
        for kind, methods in (("without hooks", plain), ("with the sidecar", hooked)):
            if kind == "without hooks":
                # Nothing is evicted and little is stored while requests decode: what the mirror misses here is a few blocks.
                time.sleep(0.5)
            for name, method in methods.items():
                setattr(pool, name, meter.timed(method) if kind == "with the sidecar" else method)
            for _ in range(8):
                engine.add_request(f"decode-{number}", prompt(256), SamplingParams(max_tokens=100, ignore_eos=True))
            meter.longest_step = 0 if not times[kind] else meter.longest_step
            while engine.has_unfinished_requests():
                meter.step_ns, begin = 0, time.perf_counter()
                engine.step()
                times[kind].append(time.perf_counter() - begin)
                if kind == "with the sidecar":
                    meter.end_step()
    seen = seen_by(url)
    memory = pathlib.Path(f"/proc/{reporter._process.pid}/status").read_text()
    for kind, found in times.items():
        cuts = statistics.quantiles(found, n=1000)
        print(
            f"{kind:17} {len(found)} steps, p50 {cuts[499] * 1e3:.3f} ms, p99 {cuts[989] * 1e3:.3f} ms, "
            f"p99.9 {cuts[998] * 1e3:.3f} ms, longest {max(found) * 1e3:.3f} ms"
        )
    print(f"router: {seen}")
    print(f"the sidecar's own process: {memory.partition('VmHWM:')[2].split()[0]} kB at most")
    stretches = sorted(meter.stretches)
    over = sum(one >= LIMIT_NS for one in stretches)
    print(f"hooks and pool {meter.longest_step / 1e6:.3f} ms in one step, lock held for {stretches[-1] / 1e6:.3f} ms")
    print(
        f"lock held: {len(stretches)} times, p50 {statistics.median(stretches) / 1e6:.3f} ms, p99.9 "
        f"{statistics.quantiles(stretches, n=1000)[998] / 1e6:.3f} ms, {over} times for {LIMIT_NS / 1e6} ms or longer; "
        f"the longest garbage collection of any thread took {meter.longest_collection / 1e6:.3f} ms"
    )
    reporter.close()
    router.stdin.close()
    router.wait(10)
    if seen.get("blocks", 0) < options.blocks * 0.9 or seen["parts"] < 2:
        raise SystemExit(f"the router has seen no snapshot of {options.blocks} blocks in parts: {seen}")
    if seen["largest"] > POST_BYTES:
        raise SystemExit(f"a post had {seen['largest']} bytes, and may have {POST_BYTES}")
    if max(meter.longest_step, stretches[-1]) >= LIMIT_NS:
        raise SystemExit(f"a step was delayed by more than {LIMIT_NS / 1e6} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        main()
