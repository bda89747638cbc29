"""The current program reads what released versions wrote. `python3 -m unittest discover -s tests/upgrade`"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from state import LINES, Router, engine, router

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "batches.txt").exists())


def wornpath(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([os.environ["WORNPATH_BINARY"], *map(str, arguments)], cwd=cwd, capture_output=True, text=True)


def by_line(text: str) -> dict[str, str]:
    """The answer to each line; none is there twice."""
    records = [json.loads(line) for line in text.splitlines()]
    answers = {it["custom_id"]: it["response"]["body"]["choices"][0]["message"]["content"] for it in records}
    assert len(answers) == len(records), "a line has two records"
    return answers


class UpgradeTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="wornpath-upgrade-")
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def copies(self):
        """Each version with a copy of its files, which the test may change."""
        self.assertTrue(VERSIONS, "no version's state is kept; tests/upgrade/write_state writes it")
        for version in VERSIONS:
            yield Path(shutil.copytree(HERE / version, self.scratch / version))

    def test_the_configuration_and_the_profiles_are_accepted(self):
        for folder in self.copies():
            files = [folder / "wornpath.yaml", *sorted((folder / "profiles").iterdir())]
            result = wornpath("check", *files)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(result.stdout.count(": good"), len(files))

    def test_batches_keep_their_results_and_the_interrupted_one_is_completed(self):
        for folder in self.copies():
            verified = wornpath("batch", "verify", folder / "batches")
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
            ids = dict(line.split() for line in (folder / "batches.txt").read_text().splitlines())
            earlier = folder / "batches/results" / f"{ids['interrupted']}.output.jsonl"
            published = by_line(earlier.read_text())
            fast, port, _ = engine("50")
            self.addCleanup(fast.stop)
            gateway = Router(folder, port, fast.events)
            self.addCleanup(gateway.process.stop)
            results = (folder / "results.jsonl").read_text()
            self.assertEqual(self.output(gateway, ids["completed"]), results)
            router.until(lambda: gateway.batch(ids["interrupted"])["status"] == "completed", "the interrupted batch is completed")
            self.assertEqual(gateway.batch(ids["interrupted"])["request_counts"], {"total": LINES, "completed": LINES, "failed": 0})
            answers = by_line(self.output(gateway, ids["interrupted"]))
            self.assertEqual(len(answers), LINES)
            self.assertLess(0, len(published))
            self.assertLessEqual(published.items(), answers.items(), "published records stay")

    def output(self, gateway: Router, batch: str) -> str:
        return gateway.call(f"/v1/files/{gateway.batch(batch)['output_file_id']}/content")

    def test_an_interrupted_run_is_resumed(self):
        for folder in self.copies():
            run = folder / "run"
            published = by_line((run / "out.jsonl").read_text())
            fast, port, _ = engine("50")
            self.addCleanup(fast.stop)
            result = wornpath("run", "prompts.jsonl", "-o", "out.jsonl", "--pod", f"http://127.0.0.1:{port}", "--resume", cwd=run)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            answers = by_line((run / "out.jsonl").read_text())
            self.assertEqual(len(answers), LINES)
            self.assertLessEqual(published.items(), answers.items(), "published records stay")

    def test_the_checkpoint_is_loaded(self):
        for folder in self.copies():
            fast, port, _ = engine("50")
            self.addCleanup(fast.stop)
            gateway = Router(folder, port, fast.events)
            self.addCleanup(gateway.process.stop)
            loaded = r"checkpoint loaded.* pods=1 blocks=(\d+)"
            router.until(lambda: gateway.has_logged("checkpoint (loaded|ignored)"), "the checkpoint is loaded or ignored")
            found = gateway.has_logged(loaded)
            self.assertTrue(found, "".join(gateway.process.lines))
            self.assertGreater(int(found[1]), 100)


if __name__ == "__main__":
    unittest.main()
