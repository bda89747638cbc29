"""The engine behind the real router, without torch: what the router predicts is what the engine reports.

Needs the binary: WORNPATH_BINARY, or target/debug/wornpath.
"""

import itertools
import os
import pathlib
import random
import tempfile
import unittest

from fleet import HERE, MODEL, Engine, Router, call

BINARY = pathlib.Path(os.environ.get("WORNPATH_BINARY", HERE.parents[1] / "target/debug/wornpath"))


class RouterTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # Small caches, so that most prompts evict others.
        options = ["--shape", "tokens", "--blocks", "60", "--vocabulary", "256"]
        self.engines = [self.closing(Engine(number, self.folder, options)) for number in range(2)]
        for engine in self.engines:
            engine.ready()
        self.names = (f"request-{number}" for number in itertools.count())

    def closing(self, process):
        self.addCleanup(process.stop)
        return process

    def router(self) -> Router:
        return self.closing(Router(BINARY, self.folder, "bytes", self.engines, None))

    def prompts(self, seed: int, count: int) -> list[list[int]]:
        """Prompts of token ids with common prefixes, some a whole number of blocks."""
        random_of = random.Random(seed)
        families = [[random_of.randrange(256) for _ in range(320)] for _ in range(4)]
        lengths = [16, 32, 33, 100, 160, 161, 320]
        return [
            random_of.choice(families)[: random_of.choice(lengths)] + [random_of.randrange(256)] * random_of.choice([0, 0, 5, 40])
            for _ in range(count)
        ]

    def compare(self, router: Router, seed: int, count: int) -> int:
        """Sends prompts one by one; returns how many of their tokens were cached."""
        total = 0
        for prompt in self.prompts(seed, count):
            router.quiet()
            name = next(self.names)
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 7}
            usage = call(f"{router.url}/v1/completions", body, {"x-request-id": name})["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            router.until("the record", lambda name=name: name in router.decisions(), 10)
            record = router.decisions()[name]["cached_tokens"]
            with self.subTest(seed=seed, prompt=prompt):
                self.assertEqual(record, {"speculative": False, "predicted": cached, "actual": cached})
            total += cached
        return total

    def test_predictions_are_right_to_the_token_through_evictions_a_reset_and_a_late_router(self):
        first = self.router()
        self.assertGreater(self.compare(first, 1, 40), 1000)
        self.engines[0].reset()
        self.assertGreater(self.compare(first, 2, 20), 500)
        # It knows only what the engines replay.
        self.assertGreater(self.compare(self.router(), 2, 20), 500)

    def test_a_client_that_leaves_frees_its_blocks(self):
        import http.client
        import json

        engine = self.engines[0]
        connection = http.client.HTTPConnection("127.0.0.1", engine.http, timeout=60)
        body = {"model": MODEL, "prompt": [1] * 100, "max_tokens": 800, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        connection.getresponse().readline()
        connection.close()
        engine.reset()  # it is refused while a sequence runs


if __name__ == "__main__":
    unittest.main()
