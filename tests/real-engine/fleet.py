"""Starts, stops and calls real engines and routers."""

import json
import os
import pathlib
import platform
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
DIR = pathlib.Path(os.environ.get("WORNPATH_ENGINE_DIR", CACHE / "wornpath-engine"))
RELEASE = "0.32.0"  # of vLLM in the environment itself
BLOCK = 32  # the block size that vLLM supports on a CPU


def free_ports(count: int) -> list[int]:
    """Ports that are free now, outside the range from which the system assigns ports to connections."""
    found = []
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


def provenance(command: str, engines: str) -> str:
    """The head of a file of results."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    machine = f"{os.cpu_count()} cores, shared, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"date:    {now}\nmachine: {machine}\ncommit:  {commit}\ncommand: {command}\nengines: {engines}\n"


def call(url: str, body: dict | None = None, headers: dict | None = None, timeout: float = 120) -> dict:
    """GET, or POST if there is a body. Returns the JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text = answer.read()
        found = json.loads(text) if text else {}
        if isinstance(found, dict):
            found["_pod"] = answer.headers.get("x-wornpath-pod")
        return found


def until(what: str, is_so, seconds: float, process: subprocess.Popen | None = None) -> float:
    """Waits until a condition holds; returns how long that took."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{what}: the process exited with {process.returncode}; see {DIR}/logs")
        try:
            if is_so():
                return time.monotonic() - start
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.05)
    raise SystemExit(f"{what}: timeout after {seconds:.0f} s")


def paths_of(release: str) -> dict[str, str]:
    """The environment variable by which Python finds another version of vLLM than that of the environment."""
    if release == RELEASE:
        return {}
    folder = DIR / f"vllm-{release}"
    if not folder.exists():
        raise SystemExit(f"{folder} is missing; run tests/real-engine/install {release}")
    return {"PYTHONPATH": str(folder)}


class Engine:
    """A real vLLM engine. It keeps its ports across restarts."""

    # The version, one of those that `install` has put into the folder.
    release = RELEASE

    def __init__(self, number: int, options: dict):
        self.number, self.options = number, options
        self.http, self.events, self.replay, self.side = free_ports(4)
        self.url = f"http://127.0.0.1:{self.http}"
        self.process = None

    def start(self) -> None:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events}",  # vLLM listens only on `*`; with a host it would connect
            "replay_endpoint": f"tcp://127.0.0.1:{self.replay}",
            "topic": "kv-events",
        }
        arguments = [
            "serve", str(self.options.get("model", DIR / "model")), "--served-model-name", self.options.get("name", "tiny"), "--host", "127.0.0.1", "--port", str(self.http),
            "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(self.options["blocks"]),
            "--kv-cache-memory-bytes", "64M", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager",
            "--enable-prefix-caching", "--prefix-caching-hash-algo", self.options["hash"],
            "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events),
        ]  # fmt: skip
        if self.options.get("ranks", 1) > 1:
            arguments += ["--data-parallel-size", str(self.options["ranks"])]
        if self.options.get("tools"):
            arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        if self.options.get("nixl"):
            transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
            arguments += ["--kv-transfer-config", json.dumps(transfer)]
        environment = {
            **os.environ,
            **paths_of(self.release),
            "HF_HUB_OFFLINE": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": str(int(self.options["int_hashes"])),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side),
        }
        (DIR / "logs").mkdir(exist_ok=True)
        log = open(DIR / "logs" / f"engine{self.number}.log", "ab")
        vllm = DIR / "venv/bin/vllm"
        self.process = subprocess.Popen(
            [vllm, *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def ready(self) -> float:
        return until(f"engine {self.number}", lambda: call(f"{self.url}/v1/models", timeout=2), 600, self.process)

    def stop(self, signal: int = 15) -> None:
        """Stops the engine and its child processes, which share its session."""
        if self.process is None or self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait(30)

    def signal(self, signal: int) -> None:
        """Sends a signal to the engine and its child processes."""
        os.killpg(self.process.pid, signal)

    def clear_cache(self) -> None:
        """Drops the prefix cache. The engine publishes that together with its next event, so there is one."""
        call(f"{self.url}/reset_prefix_cache", {})
        call(f"{self.url}/v1/completions", {"model": self.options.get("name", "tiny"), "prompt": "once " * 40, "max_tokens": 1})

    def source(self) -> str:
        return f"zmq://127.0.0.1:{self.events}?replay={self.replay}"


class SglangEngine(Engine):
    """A real SGLang engine, from the package that `install` puts beside vLLM's environment."""

    def start(self) -> None:
        events = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://*:{self.replay}",
            "topic": "kv-events",
        }
        page = self.options.get("page", BLOCK)
        arguments = [
            "--model-path", str(self.options["model"]), "--served-model-name", self.options["name"], "--device", "cpu",
            "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--host", "127.0.0.1", "--port", str(self.http),
            "--disable-cuda-graph", "--disable-overlap-schedule", "--max-total-tokens", str(self.options["blocks"] * BLOCK),
            "--context-length", "2048", "--enable-cache-report", "--enable-metrics", "--page-size", str(page),
            "--kv-events-config", json.dumps(events),
        ]  # fmt: skip
        ranks = self.options.get("ranks", 1)
        if ranks > 1:
            arguments += ["--dp-size", str(ranks)]
        environment = {
            **os.environ,
            # On a CPU it wants to know the cores of each rank.
            **({"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(ranks))} if ranks > 1 else {}),
            "PYTHONPATH": f"{DIR / 'sglang-stub'}:{DIR / 'sglang'}",
            "HF_HUB_OFFLINE": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        (DIR / "logs").mkdir(exist_ok=True)
        log = open(DIR / "logs" / f"sglang{self.number}.log", "ab")
        python = DIR / "venv/bin/python"
        self.process = subprocess.Popen(
            [python, "-m", "sglang.launch_server", *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def clear_cache(self) -> None:
        """Drops the radix cache."""
        request = urllib.request.Request(f"{self.url}/flush_cache", b"", method="POST")
        urllib.request.urlopen(request, timeout=30).read()
        call(f"{self.url}/v1/completions", {"model": self.options["name"], "prompt": "once " * 40, "max_tokens": 1})


class MlxEngine(Engine):
    """A real server of mlx-lm on the CPU, from the folder that `install mlx` has filled. It has no cache events and no metrics."""

    def start(self) -> None:
        arguments = ["--model", str(self.options["model"]), "--host", "127.0.0.1", "--port", str(self.http)]
        # It lists the models of a folder of Hugging Face's cache, which must exist.
        (DIR / "hub").mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(DIR / "mlx"), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(DIR / "hub")}
        (DIR / "logs").mkdir(exist_ok=True)
        log = open(DIR / "logs" / f"mlx{self.number}.log", "ab")
        self.process = subprocess.Popen(
            [DIR / "venv/bin/python", "-m", "mlx_lm.server", *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def clear_cache(self) -> None:
        """Starts anew: there is no other way."""
        self.stop(9)  # it would wait for connections that routers keep open
        self.start()
        self.ready()


class Router:
    """A running `wornpath serve` with its own configuration."""

    def __init__(self, binary: pathlib.Path, configuration: str, name: str):
        path = DIR / f"{name}.yaml"
        path.write_text(configuration)
        self._start(binary, ["serve", "-c", path], name)

    @classmethod
    def of_arguments(cls, binary: pathlib.Path, arguments: list[str], name: str) -> "Router":
        """A router that has no configuration but these arguments."""
        router = cls.__new__(cls)
        router._start(binary, arguments, name)
        return router

    def _start(self, binary: pathlib.Path, arguments: list, name: str) -> None:
        log = open(DIR / "logs" / f"{name}.log", "wb")
        self.process = subprocess.Popen(
            [binary, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        said = [self.process.stdout.readline().split() for _ in range(2)]
        if not all(said):
            raise SystemExit(f"{name} did not start; see {log.name}")
        self.url, self.admin = (words[-1] for words in said)

    def ready(self, pods: int) -> float:
        def are_up() -> bool:
            return sum(pod["health"] == "up" for pod in self.pods().values()) == pods

        return until("the router's pods", are_up, 60, self.process)

    def pods(self) -> dict[str, dict]:
        return {pod["name"]: pod for pod in call(f"{self.admin}/pods")["pods"]}

    def digests(self) -> dict[str, tuple]:
        """The blocks of each pod as a count and a digest, to compare two routers."""
        found = call(f"{self.admin}/index")["by_pod"]
        return {pod["pod"]: (pod["blocks"], pod["digest"]) for pod in found}

    def speculative(self) -> int:
        """Speculative entries of the index: blocks of requests that were sent, which no event has confirmed yet."""
        return sum(pod["expected"] for pod in call(f"{self.admin}/index")["by_pod"])

    def quiet(self) -> None:
        """Waits until all events are applied, none has arrived for a moment, and the index has no speculative entries: a
        repeated prompt would be predicted right even if the router rendered or tokenized it wrongly."""
        seen, since = None, time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen, since
            feeds = {name: pod["events"]["feed"] for name, pod in self.pods().items()}
            now = {name: (feed["last_sequence"], feed["lag"], feed["state"]) for name, feed in feeds.items()}
            if now != seen:
                seen, since = now, time.monotonic()
            settled = all(lag == 0 and state in ("live", "partial") for _, lag, state in now.values())
            return settled and time.monotonic() - since > 0.06 and self.speculative() == 0

        until("quiet events", is_quiet, 60, self.process)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
