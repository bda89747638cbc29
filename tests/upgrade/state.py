"""Starts routers and engines of a given program, for writing and for reading state."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))

import router  # noqa: E402

LINES = 24
MODEL = "sim"
# Batches in the fixtures may not expire.
WINDOW = "36500d"


def prompts() -> str:
    """Batch lines with answers of many lengths, so that a run can be killed when some are complete."""

    def line(number: int) -> dict:
        guide = f"Guide {number % 4}. " + "The path climbs through the forest and crosses the stream. " * 6
        body = {"model": MODEL, "max_tokens": 4 + 30 * number, "temperature": 0}
        body["messages"] = [{"role": "user", "content": f"{guide}\nQuestion {number}: how far is it?"}]
        return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}

    return "".join(json.dumps(line(number)) + "\n" for number in range(LINES))


def engine(speed: str, port: int | None = None) -> tuple[router.Process, int, int]:
    """An engine, with its port and that of its events."""
    port, events, replay = port or router.free_port(), router.free_port(), router.free_port()
    ports = ["--port", str(port), "--events-port", str(events), "--replay-port", str(replay)]
    started = router.Process("engine", *ports, "--model", MODEL, "--speed", speed, ready=r"http://127\.0\.0\.1")
    started.events = f"zmq://127.0.0.1:{events}?replay={replay}"
    return started, port, events


class Router:
    """A router in front of one engine, with batches and a checkpoint in a folder."""

    def __init__(self, folder: Path, engine_port: int, events: str):
        self.gateway = router.free_port()
        configuration = folder / "router.yaml"
        configuration.write_text(
            f"""
listen: {{client: "127.0.0.1:{self.gateway}"}}
models: [{{name: {MODEL}, tokenizer: bytes}}]
pods: [{{name: a, url: "http://127.0.0.1:{engine_port}", model: {MODEL}, events: "{events}"}}]
batch: {{folder: batches}}
checkpoint: {{file: index.checkpoint}}
drain: {{lame_duck: 0s, grace: 1s}}
"""
        )
        self.process = router.Process("serve", "--config", str(configuration), ready="listening", folder=str(folder))

    def call(self, path: str, body: bytes | None = None, kind: str = "application/json"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.gateway}{path}", body, {"content-type": kind})
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if response.headers.get_content_type() == "application/json" else text.decode()

    def batch(self, batch_id: str) -> dict:
        return self.call(f"/v1/batches/{batch_id}")

    def completed(self, batch_id: str) -> int:
        return self.batch(batch_id)["request_counts"]["completed"]

    def has_logged(self, pattern: str) -> re.Match | None:
        return re.search(pattern, "".join(self.process.lines))


def submit(gateway: int, path: Path) -> str:
    command = [os.environ["WORNPATH_BINARY"], "batch", "--gateway", f"http://127.0.0.1:{gateway}", "submit", str(path), "--window", WINDOW]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return re.search(r"batch_[0-9a-zA-Z]+", result.stdout).group()


def killed_run(folder: Path, engine_port: int) -> None:
    """`wornpath run` in the folder, killed when some of its lines are published."""
    command = [os.environ["WORNPATH_BINARY"], "run", "prompts.jsonl", "-o", "out.jsonl", "--pod", f"http://127.0.0.1:{engine_port}"]
    out = folder / "out.jsonl"
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            router.until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 5, "five lines are published")
        finally:
            process.kill()
    published = out.read_bytes().count(b"\n")
    assert 5 <= published < LINES, f"{published} lines were published; let engines be slower"


def kill(process: router.Process) -> None:
    process._process.kill()
    process.stop()
