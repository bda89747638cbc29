"""`wornpath.Admin` against a router with two simulated engines."""

import json
import unittest
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import router

import wornpath

QUESTION = {"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": "the same beginning " * 40}]}


class AdminTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        engines, cls.gateway, admin = (router.free_port() for _ in range(3))
        second, events = router.free_port(), router.free_port()
        cls.folder = TemporaryDirectory(prefix="wornpath-admin-")
        cls.addClassCleanup(cls.folder.cleanup)
        for port in (engines, second):
            engine = router.Process("engine", "--port", str(port), "--model", "sim", ready=r"http://127\.0\.0\.1")
            cls.addClassCleanup(engine.stop)
        cls.configuration = Path(cls.folder.name, "wornpath.yaml")
        cls.configuration.write_text(
            f"""
listen: {{client: "127.0.0.1:{cls.gateway}", admin: "127.0.0.1:{admin}", events: "127.0.0.1:{events}"}}
models: [{{name: sim, tokenizer: bytes}}]
pods:
  - {{name: a, url: "http://127.0.0.1:{engines}", model: sim}}
  - {{name: b, url: "http://127.0.0.1:{second}", model: sim}}
"""
        )
        served = router.Process("serve", "--config", str(cls.configuration), ready="listening")
        cls.addClassCleanup(served.stop)
        cls.admin = wornpath.Admin(f"http://127.0.0.1:{admin}")
        router.until(lambda: all(pod["health"] == "up" for pod in cls.admin.pods()), "both pods are up")
        for _ in range(3):
            cls.ask()

    @classmethod
    def ask(cls):
        request = urllib.request.Request(
            f"http://127.0.0.1:{cls.gateway}/v1/chat/completions", json.dumps(QUESTION).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def ask_for_pod(self):
        self.ask()
        return self.admin.decisions(last=1)[0]["pod"]

    def test_pods(self):
        pods = self.admin.pods()
        self.assertEqual([pod["name"] for pod in pods], ["a", "b"])
        self.assertEqual({pod["health"] for pod in pods}, {"up"})
        self.assertEqual(self.admin.pod("a")["models"], ["sim"])

    def test_a_pod_drains_and_resumes(self):
        self.admin.drain("b")
        self.assertEqual(self.admin.pod("b")["health"], "draining")
        self.admin.resume("b")
        router.until(lambda: self.admin.pod("b")["health"] == "up", "pod b passes a probe")

    def test_decisions(self):
        decisions = self.admin.decisions(last=2, model="sim")
        self.assertEqual(len(decisions), 2)
        self.assertEqual({row["status"] for row in decisions}, {200})
        one = self.admin.decision(decisions[0]["id"])
        self.assertEqual(one["pod"], decisions[0]["pod"])
        self.assertEqual(self.admin.decisions(status="failed"), [])

    def test_an_explanation_names_the_pod(self):
        explained = self.admin.explain(QUESTION)
        self.assertEqual(explained["profile"], self.admin.profiles()[0]["name"])
        rows = wornpath.candidates(explained)
        self.assertEqual(sorted(row["pod"] for row in rows), ["a", "b"])
        (picked,) = (row["pod"] for row in rows if row["picked"])
        self.assertEqual(picked, self.ask_for_pod())
        self.assertEqual(max(rows, key=lambda row: row["total"])["pod"], picked)
        self.assertEqual({name for row in rows for name in row["scores"]}, {"predicted_ttft"})

    def test_checks_change_nothing_and_name_problems(self):
        good = (router.ROOT / "profiles/round-robin.yaml").read_text()
        self.assertTrue(self.admin.check_profile(good)["good"])
        checked = self.admin.check_profile("pick: nonsense")
        self.assertFalse(checked["good"])
        self.assertTrue(checked["problems"])
        self.assertTrue(self.admin.reload()["reloaded"])

    def test_index_history_traffic_and_metrics(self):
        self.assertEqual(self.admin.index()["pods"], 2)
        self.assertIn("runs", self.admin.prefixes())
        self.assertIn("requests", self.admin.history(60)["series"])
        self.assertIn("next", self.admin.traffic())
        self.assertIn("wornpath_build_info", self.admin.metrics())

    def test_errors_have_the_routers_words(self):
        with self.assertRaisesRegex(wornpath.AdminError, "status 404: .*nobody") as caught:
            self.admin.pod("nobody")
        self.assertEqual(caught.exception.status, 404)
        with self.assertRaises(wornpath.AdminError) as caught:
            wornpath.Admin("http://127.0.0.1:1").pods()
        self.assertEqual(caught.exception.status, 0)

    @unittest.skipUnless(find_spec("pandas"), "pandas is not installed")
    def test_data_frames(self):
        pods = self.admin.pods().frame()
        self.assertEqual(pods["name"].tolist(), ["a", "b"])
        self.assertIn("load.requests", pods.columns)
        self.assertEqual(len(self.admin.decisions(last=3).frame()), 3)

    @unittest.skipIf(find_spec("pandas"), "pandas is installed")
    def test_without_pandas_the_error_says_how_to_get_it(self):
        with self.assertRaisesRegex(ImportError, "pip install pandas"):
            self.admin.pods().frame()


if __name__ == "__main__":
    unittest.main()
