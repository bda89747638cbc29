"""`wornpath.plan` and `wornpath.replay`, with the real program."""

import json
import os
import unittest
from importlib.util import find_spec
from unittest import mock

import router

import wornpath

GUIDES = [f"Guide {name}. " + f"The path to {name} is long. " * 40 for name in "abcd"]
# The guides take turns.
PROMPTS = [f"{GUIDES[at % 4]} Question {at}: how far is it?" for at in range(24)]


class PlanTest(unittest.TestCase):
    def test_rows_of_one_prefix_come_one_after_another(self):
        plan = wornpath.plan(PROMPTS)
        self.assertEqual(sorted(plan.order), list(range(24)))
        guides = [row % 4 for row in plan.order]
        changes = sum(one != next for one, next in zip(guides, guides[1:]))
        self.assertEqual(changes, 3, guides)
        shared = [planned.shared_tokens > 200 for planned in plan]
        self.assertEqual(shared.count(False), 4, "each guide is computed once")

    def test_columns_to_sort_and_partition_by(self):
        plan = wornpath.plan([{"messages": [{"role": "user", "content": text}]} for text in PROMPTS], pods=2)
        ranks, pods = plan.ranks(), plan.pods()
        by_rank = sorted(range(24), key=lambda row: ranks[row])
        self.assertEqual(by_rank, plan.order)
        self.assertEqual(plan.sort(PROMPTS), [PROMPTS[row] for row in by_rank])
        self.assertEqual([pods[row] for row in by_rank], sorted(pods))
        self.assertEqual({guide: len({pods[row] for row in range(guide, 24, 4)}) for guide in range(4)}, dict.fromkeys(range(4), 1))

    def test_other_rows_are_refused(self):
        with self.assertRaisesRegex(ValueError, "24 rows, and 2 were given"):
            wornpath.plan(PROMPTS).sort(PROMPTS[:2])

    def test_nothing_is_planned_for_nothing(self):
        self.assertEqual(wornpath.plan([]), ())

    def test_an_error_of_the_command_names_it(self):
        with self.assertRaisesRegex(wornpath.CommandFailed, "(?s)wornpath plan failed with status 1: .*line 1") as caught:
            wornpath.plan([{"no": "prompt"}])
        self.assertEqual(caught.exception.status, 1)

    def test_a_program_that_does_not_exist_is_named(self):
        with mock.patch.dict(os.environ, WORNPATH_BINARY="/nonexistent/wornpath"):
            with self.assertRaisesRegex(wornpath.BinaryNotFound, "/nonexistent/wornpath"):
                wornpath.binary()


class ReplayTest(unittest.TestCase):
    def test_one_row_per_profile_and_run(self):
        rows = wornpath.replay(router.ROOT / "examples/traffic.jsonl", ["cache-aware", "round-robin"], pods=4, seeds=2)
        self.assertEqual([(row["profile"], row["run"]) for row in rows], [(name, run) for name in ("cache-aware", "round-robin") for run in (1, 2)])
        self.assertTrue(all(row["requests"] == 457 and row["failures"] == 0 for row in rows))
        self.assertGreater(rows[0]["hit_rate"], rows[2]["hit_rate"])
        self.assertLess(rows[0]["ttft"]["p95"], rows[2]["ttft"]["p95"])

    @unittest.skipUnless(find_spec("pandas"), "pandas is not installed")
    def test_as_a_data_frame(self):
        frame = wornpath.replay(router.ROOT / "examples/traffic.jsonl", ["round-robin"], pods=4).frame()
        self.assertEqual(frame["profile"].tolist(), ["round-robin"])
        self.assertGreater(frame["ttft.p95"][0], 0)


class SchemasTest(unittest.TestCase):
    def test_the_types_are_those_of_the_routers_description(self):
        import generate_schemas

        written = (router.ROOT / "python/wornpath/schemas.py").read_text()
        self.assertEqual(written, generate_schemas.generated(), "run python3 python/generate_schemas.py")
        self.assertIn("Pods", json.loads(generate_schemas.SCHEMAS.read_text()))


if __name__ == "__main__":
    unittest.main()
