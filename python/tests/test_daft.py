"""The example with Daft, against simulated engines. Skipped where Daft is not installed."""

import json
import os
import re
import subprocess
import sys
import unittest
from importlib.util import find_spec

import router

EXAMPLE = router.ROOT / "examples/python/order_with_daft.py"
PROMPTS = router.ROOT / "examples/prompts.jsonl"


@unittest.skipUnless(find_spec("daft"), "Daft is not installed")
class DaftTest(unittest.TestCase):
    def test_rows_are_sorted_by_prefix_and_partitioned_by_engine(self):
        sys.path.insert(0, str(EXAMPLE.parent))
        from order_with_daft import ordered

        bodies = [json.loads(line)["body"] for line in PROMPTS.read_text().splitlines()]
        rows = ordered(bodies, 2).to_pydict()
        self.assertEqual(sorted(rows["body"]), sorted(map(json.dumps, bodies)))
        self.assertEqual(rows["pod"], sorted(rows["pod"]))
        places = re.findall(r"Guide to ([A-Z][a-z]+ [A-Z][a-z]+)\.", "".join(rows["body"]))
        self.assertEqual(len(places), 30)
        changes = sum(one != next for one, next in zip(places, places[1:]))
        self.assertEqual(changes, 4, places)

    def test_engines_find_the_guides_in_their_caches(self):
        ports = [router.free_port() for _ in range(2)]
        for port in ports:
            engine = router.Process("engine", "--port", str(port), "--model", "sim", "--speed", "100", ready=r"http://127\.0\.0\.1")
            self.addCleanup(engine.stop)
        command = [sys.executable, str(EXAMPLE), str(PROMPTS), *(f"http://127.0.0.1:{port}" for port in ports)]
        environment = os.environ | {"PYTHONPATH": str(router.ROOT / "python")}
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        requests, cached = re.search(r"(\d+) requests, (\d+) prompt tokens from caches", result.stdout).groups()
        self.assertEqual(requests, "40")
        self.assertGreater(int(cached), 10_000)


if __name__ == "__main__":
    unittest.main()
