"""The sidecar against a router that records its posts. `python3 -m unittest discover -s python/tests`"""

import http.server
import json
import pathlib
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock

PYTHON = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PYTHON))

from wornpath.sidecar import Reporter, pipe, poster, watch_block_pool  # noqa: E402
from wornpath.sidecar.mirror import Mirror, Run, name_of, runs  # noqa: E402


class Router:
    """Records posts, and replies as the test sets it."""

    def __init__(self):
        self.posts, self.wishes, self.status, self.newest = [], [], 200, 0
        # The size of the largest post.
        self.largest = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["content-length"])
                outer.largest = max(outer.largest, length)
                body = json.loads(self.rfile.read(length))
                path = self.path.removeprefix("/events/")
                if outer.status == 200:
                    outer.record(path, body)
                wish = bool(outer.wishes and outer.wishes.pop())
                answer = {"sync": wish}
                if body.get("epoch", 0) < outer.newest:
                    answer["outdated"] = outer.newest
                answer = json.dumps(answer).encode()
                self.send_response(outer.status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def record(self, path, body):
        self.posts.append((path, body))

    def of(self, path):
        return [body for found, body in self.posts if found == path]

    def held(self):
        """The router's state after all posts: hashes with their copies."""
        held = {}
        for path, body in self.posts:
            if path == "sync" and body.get("part", 0) == 0:
                held = {}
            for run in body.get("stored", []):
                for name in run["hashes"]:
                    held[name] = held.get(name, 0) + 1
            for name in body.get("evicted", []):
                held[name] = held.get(name, 0) - 1
        return {name: copies for name, copies in held.items() if copies}


def eventually(test, is_so, what, seconds=10):
    end = time.monotonic() + seconds
    while not is_so():
        test.assertLess(time.monotonic(), end, f"never: {what}")
        time.sleep(0.005)


class Reporting(unittest.TestCase):
    def setUp(self):
        self.router = Router()
        self.addCleanup(self.router.server.server_close)
        self.addCleanup(self.router.server.shutdown)

    def reporter(self, **options):
        reporter = Reporter(self.router.url, "pod", **{"flush": 0.01, "digest": 0.05, "sync": 60.0} | options)
        self.addCleanup(reporter.close)
        return reporter

    def test_events_are_posted_in_order_and_numbered_without_a_gap(self):
        reporter = self.reporter()
        eventually(self, lambda: self.router.of("sync"), "the first sync")
        reporter.stored([1, 2, 3], tokens=range(6), block_size=2)
        reporter.evicted([3])
        reporter.stored([4], parent=2, tokens=[9, 9], block_size=2)
        eventually(self, lambda: len(self.router.of("stored")) == 2, "two stores")
        numbers = [body["sequence"] for path, body in self.router.posts if path in ("sync", "stored", "evicted")]
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(self.router.held(), {1: 1, 2: 1, 4: 1})
        self.assertEqual({body["epoch"] for _, body in self.router.posts}, {self.router.posts[0][1]["epoch"]})

    def test_copies_are_counted_and_digests_match_the_cache(self):
        reporter = self.reporter()
        reporter.stored([5, 6])
        reporter.stored([5])
        reporter.evicted([5, 6])

        def says_five():
            digests = self.router.of("digest")
            return digests and digests[-1]["tiers"] == {"GPU": {"count": 1, "xor": f"{5:016x}"}}

        eventually(self, says_five, "the digest of one block")

    def test_the_router_gets_a_snapshot_when_it_asks(self):
        reporter = self.reporter()
        reporter.stored([b"a" * 32, b"b" * 32], tokens=range(4), block_size=2, salt="tenant")
        eventually(self, lambda: self.router.of("stored"), "the store")
        before = len(self.router.of("sync"))
        self.router.wishes.append(True)
        eventually(self, lambda: len(self.router.of("sync")) > before, "a sync")
        (run,) = self.router.of("sync")[-1]["stored"]
        self.assertEqual((run["hashes"], run["tokens"]), ([name_of(b"a" * 32), name_of(b"b" * 32)], [0, 1, 2, 3]))
        self.assertEqual((run["salt"], run["block_size"]), ("tenant", 2))
        self.assertNotIn("parent", run)

    def test_a_router_that_was_unreachable_gets_a_snapshot(self):
        reporter = self.reporter()
        eventually(self, lambda: self.router.of("sync"), "the first sync")
        self.router.status = 503
        reporter.stored([1, 2])
        time.sleep(0.1)
        self.router.status = 200
        eventually(self, lambda: self.router.held() == {1: 1, 2: 1}, "what happened meanwhile")

    def test_a_sidecar_whose_clock_was_set_back_chooses_a_greater_epoch(self):
        self.router.newest = time.time_ns()
        reporter = self.reporter()
        reporter.stored([1, 2])

        def is_heard():
            later = [body for body in self.router.of("sync") if body["epoch"] == self.router.newest + 1]
            return later and [run["hashes"] for run in later[-1]["stored"]] == [[1, 2]]

        eventually(self, is_heard, "a snapshot under a greater epoch")

    def test_a_full_queue_does_not_block_and_leads_to_a_snapshot(self):
        reporter = self.reporter(most=10, flush=0.05, snapshot=lambda: [Run((77,))])
        start = time.monotonic()
        for block in range(100_000):
            reporter.stored([block])
        self.assertLess(time.monotonic() - start, 5.0)
        eventually(self, lambda: self.router.held() == {77: 1}, "what the engine says it holds")

    def test_a_process_that_dies_is_replaced_and_the_engine_says_again_what_it_holds(self):
        reporter = self.reporter(snapshot=lambda: [Run((5, 6), None, (1, 1, 2, 2), 2)])
        reporter.stored([5, 6], tokens=[1, 1, 2, 2], block_size=2)
        eventually(self, lambda: self.router.held() == {5: 1, 6: 1}, "the store")
        first = self.router.posts[0][1]["epoch"]
        reporter._start_at = 0.0
        with self.assertLogs("wornpath", "WARNING"):
            reporter._process.kill()
            eventually(self, lambda: self.router.posts[-1][1]["epoch"] > first, "a later epoch")
            eventually(self, lambda: self.router.held() == {5: 1, 6: 1}, "the snapshot")

    def test_an_engine_that_dies_is_reported(self):
        engine = f"import sys; sys.path.insert(0, {str(PYTHON)!r}); from wornpath.sidecar import Reporter\n"
        engine += f"Reporter({self.router.url!r}, 'pod', flush=0.01).stored([1]); sys.stdin.read(); import os; os._exit(9)"
        with subprocess.Popen([sys.executable, "-c", engine], stdin=subprocess.PIPE) as process:
            eventually(self, lambda: self.router.held() == {1: 1}, "the store")
            process.stdin.close()
        eventually(self, lambda: self.router.posts[-1][0] == "bye", "the end of the engine")

    def test_a_shutdown_is_reported(self):
        reporter = self.reporter()
        reporter.stored([1])
        reporter.close()
        self.assertEqual(self.router.posts[-1][0], "bye")
        self.assertEqual(self.router.posts[-1][1]["pod"], "pod")


class Pool:
    """A block pool as vLLM has one, of which the sidecar sees the same three methods."""

    def __init__(self):
        self.is_idle = True

    def cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks, block_size, group, block_mask=None):
        for at in range(num_cached_blocks, num_full_blocks):
            blocks[at].block_hash = b"%032d" % request.all_token_ids[at * block_size]

    def _maybe_evict_cached_block(self, block):
        had, block.block_hash = block.block_hash is not None, None
        return had

    def reset_prefix_cache(self):
        return self.is_idle


class Watching(unittest.TestCase):
    def test_a_watched_pool_behaves_as_before(self):
        said = []
        reporter = types.SimpleNamespace(
            stored=lambda *args, **named: said.append(("stored", args, named)),
            evicted=lambda blocks: said.append(("evicted", blocks)),
            cleared=lambda: said.append("cleared"),
        )
        pool = Pool()
        watch_block_pool(pool, reporter)
        blocks = [types.SimpleNamespace(block_hash=None) for _ in range(3)]
        request = types.SimpleNamespace(all_token_ids=[7, 7, 8, 8, 9], cache_salt="t", lora_request=None)
        pool.cache_full_blocks(request, blocks, 0, 1, 2, 0)
        pool.cache_full_blocks(request, blocks, 1, 2, 2, 0, block_mask=None)
        self.assertEqual(said[0], ("stored", ([b"%032d" % 7], None, [7, 7], 2), {"lora": None, "salt": "t"}))
        self.assertEqual(said[1][1], ([b"%032d" % 8], b"%032d" % 7, [8, 8], 2))
        self.assertTrue(pool._maybe_evict_cached_block(blocks[1]))
        self.assertFalse(pool._maybe_evict_cached_block(blocks[2]))
        self.assertTrue(pool.reset_prefix_cache())
        pool.is_idle = False
        self.assertFalse(pool.reset_prefix_cache())
        self.assertEqual(said[2:], [("evicted", [b"%032d" % 8]), "cleared"])

    def test_an_object_without_the_methods_is_refused(self):
        with self.assertRaisesRegex(TypeError, "has no `cache_full_blocks`"):
            watch_block_pool(object(), None)


class Snapshots(unittest.TestCase):
    def test_changes_are_applied_for_as_long_as_snapshots_take_also_if_each_post_is_answered_with_a_wish_for_one(self):
        now, synced = 0.0, []

        class Slow(poster.Poster):
            def _post(self, path, body):
                nonlocal now
                now += 1.0 if path == "sync" else 0.001
                if path == "sync":
                    synced.append(len(self._mirror))
                else:
                    self._wants_sync = True
                return True

        def frames():
            nonlocal now
            for block in range(100):
                now += 0.03
                yield list(pipe.stored(Run((block,), None, (1, 2), 2)))
            yield None

        clock = types.SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns)
        with unittest.mock.patch.object(poster, "time", clock):
            taken = frames()
            Slow(lambda: next(taken), "http://router", "pod", None, 1.0, None, 1000).run()
        self.assertEqual(len(synced), 4, f"a snapshot takes as long as 33 changes; blocks at each: {synced}")


class Mirroring(unittest.TestCase):
    def test_a_full_mirror_refuses_more_and_counts_it(self):
        mirror = Mirror(3)
        self.assertEqual([held.name for held in mirror.store(Run((1, 2, 3, 4, 5)))], [1, 2, 3])
        self.assertEqual((mirror.refused, mirror.evict("GPU", [5, 3]), mirror.store(Run((4,)))[0].name), (2, [3], 4))
        self.assertEqual(mirror.digest(), {"GPU": {"count": 3, "xor": f"{1 ^ 2 ^ 4:016x}"}})

    def test_a_snapshot_is_cut_into_parts_that_are_no_larger_than_they_may_be(self):
        mirror = Mirror()
        mirror.store(Run(tuple(range(1000)), None, tuple(range(4000)), 4, salt="s\u00e9"))
        mirror.store(Run((1, 2), 0, (4, 5, 6, 7, 8, 9, 10, 11), 4))
        posts = [list(runs(part)) for part in mirror.snapshot(10_000)]
        sizes = [len(json.dumps(post, separators=(",", ":"))) for post in posts]
        self.assertGreater(min(sizes[:-1]), 1_000)
        self.assertLess(max(sizes), 10_000)
        names = [name for post in posts for run in post for name in run["hashes"]]
        self.assertEqual(sorted(names), sorted([*range(1000), 1, 2]), "each once per copy")
        for run in (run for post in posts for run in post):
            first = run["hashes"][0]
            self.assertEqual(run["tokens"], list(range(first * 4, first * 4 + 4 * len(run["hashes"]))))
            self.assertEqual(run.get("parent"), first - 1 if first else None)
            self.assertEqual(run.get("salt"), None if first else "s\u00e9")
        self.assertEqual([list(runs(part)) for part in Mirror().snapshot(10)], [[]])

    def test_tokens_that_do_not_fit_their_blocks_are_left_out(self):
        (held,) = Mirror().store(Run((1,), None, (1, 2, 3), 2))
        self.assertEqual(list(runs([held])), [{"hashes": [1], "tier": "GPU"}])

    def test_an_eviction_of_an_absent_block_changes_nothing(self):
        mirror = Mirror()
        mirror.store(Run((1,)))
        mirror.evict("CPU", [1])
        mirror.evict("GPU", [2])
        self.assertEqual(mirror.digest(), {"GPU": {"count": 1, "xor": f"{1:016x}"}})


if __name__ == "__main__":
    unittest.main()
