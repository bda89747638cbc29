"""Starts, stops and calls the engines of this folder and the router in front of them."""

import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
MODEL = "gpu"


def free_ports(count: int) -> list[int]:
    """Ports that are free now, outside the range from which the system assigns ports to connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def call(url: str, body: dict | None = None, headers: dict[str, str] | None = None, timeout: float = 120) -> dict:
    """GET, or POST if there is a body. Returns the JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def until(what: str, is_so, seconds: float, process: subprocess.Popen, log: pathlib.Path) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{what}: the process exited with {process.returncode}:\n{tail(log)}")
        try:
            if is_so():
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.05)
    raise SystemExit(f"{what}: timeout after {seconds:.0f} s:\n{tail(log)}")


def tail(log: pathlib.Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


class Process:
    """A child process with a log."""

    def __init__(self, command: list[str], log: pathlib.Path):
        self.command, self.log = command, log
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def until(self, what: str, is_so, seconds: float) -> None:
        until(what, is_so, seconds, self.process, self.log)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Engine(Process):
    """An engine of this folder."""

    def __init__(self, number: int, folder: pathlib.Path, options: list[str]):
        self.name = f"e{number}"
        self.http, self.events, self.replay = free_ports(3)
        self.url = f"http://127.0.0.1:{self.http}"
        ports = ["--port", self.http, "--events-port", self.events, "--replay-port", self.replay]
        command = [sys.executable, HERE / "engine.py", "--model", MODEL, *options, *ports]
        super().__init__([str(word) for word in command], folder / f"{self.name}.log")

    def ready(self) -> None:
        self.until(f"engine {self.name}", lambda: call(f"{self.url}/v1/models", timeout=2), 300)

    def reset(self) -> None:
        """Empties its cache, once it has no requests."""

        def is_reset() -> bool:
            try:
                call(f"{self.url}/reset_prefix_cache", {})
            except urllib.error.HTTPError as error:
                if error.code == 409:
                    return False
                raise
            return True

        self.until(f"the reset of {self.name}", is_reset, 60)

    def said(self) -> list[str]:
        """What it wrote about itself at start, but for times: the others started beside it."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if not line.startswith(("serving ", "a step "))]

    def pod(self) -> str:
        events = f"zmq://127.0.0.1:{self.events}?replay={self.replay}"
        return f'  - {{url: "{self.url}", name: {self.name}, model: {MODEL}, engine: vllm, events: "{events}"}}'


class Router(Process):
    """A running `wornpath serve`; without a policy, with the default profile."""

    def __init__(self, binary: pathlib.Path, folder: pathlib.Path, tokenizer: str, engines: list[Engine], policy: str | None):
        pods = "\n".join(engine.pod() for engine in engines)
        client, admin = free_ports(2)
        self.url, self.admin = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{admin}"
        self.client_port = client
        configuration = folder / "wornpath.yaml"
        configuration.write_text(
            f'listen: {{client: "127.0.0.1:{client}", admin: "127.0.0.1:{admin}"}}\n'
            f"models: [{{name: {MODEL}, tokenizer: {json.dumps(tokenizer)}}}]\n"
            f"reveal: pod\npods:\n{pods}\n"
        )
        chosen = ["--policy", policy] if policy else []
        super().__init__([str(binary), "serve", "-c", str(configuration), *chosen], folder / "router.log")
        self.until("the router's pods", lambda: self._are_up(len(engines)), 60)

    def pods(self) -> dict[str, dict]:
        return {pod["name"]: pod for pod in call(f"{self.admin}/pods")["pods"]}

    def decisions(self) -> dict[str, dict]:
        """The last requests by their id."""
        return {one["id"]: one for one in call(f"{self.admin}/decisions?last=512")["decisions"]}

    def quiet(self) -> None:
        """Waits until all events are applied and the index has no speculative entries, which would prove nothing."""
        seen, since = None, time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen, since
            feeds = [pod["events"]["feed"] for pod in self.pods().values()]
            now = [(feed["last_sequence"], feed["lag"], feed["state"]) for feed in feeds]
            if now != seen:
                seen, since = now, time.monotonic()
            settled = all(lag == 0 and state in ("live", "partial") for _, lag, state in now)
            speculative = sum(pod["expected"] for pod in call(f"{self.admin}/index")["by_pod"])
            return settled and speculative == 0 and time.monotonic() - since > 0.06

        self.until("quiet events", is_quiet, 60)

    def _are_up(self, count: int) -> bool:
        pods = self.pods().values()
        return sum(pod["health"] == "up" and pod["events"]["feed"]["state"] in ("live", "partial") for pod in pods) == count


class MultiProcessService(Process):
    """NVIDIA's service that lets several processes compute on one GPU at a time; each engine that starts from now on gets an
    equal part of it. Without it processes take turns on the whole GPU."""

    def __init__(self, engines: int, folder: pathlib.Path):
        if not shutil.which("nvidia-cuda-mps-control"):
            raise SystemExit("nvidia-cuda-mps-control is not installed; run it without --mps")
        self.share = 100 // engines
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(folder)
        super().__init__(["nvidia-cuda-mps-control", "-f"], folder / "mps.log")
        self.until("the multi-process service", lambda: (folder / "control").exists(), 20)
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.share)

    def stop(self) -> None:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, timeout=20)
        super().stop()


def version(binary: pathlib.Path) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return re.sub(r"\s+", " ", said).strip()
