"""One flag against a real engine: how many predictions are right to the token, by kind of request.

    python3 tests/real-engine/fidelity.py [--engine vllm|sglang] [--family NAME=FOLDER…] [--prompts N] [--report FILE]

Starts one engine for each family, and `wornpath serve --pod URL` in front of it with nothing else configured: the router learns the
model, its tokenizer, the block size and the events from the engine. Every prompt is sent when no other request is in flight and when
the index has no speculative entries. A prediction counts as right if it is the number of cached tokens that the engine reports. What
the router declares that it cannot read is counted apart: it predicts nothing for it.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from fleet import BLOCK, DIR, RELEASE, ROOT, Engine, Router, SglangEngine, call, provenance, until
from kinds import Kinds

# Where each API says how many tokens of the prompt were cached.
CACHED = {
    "/v1/responses": lambda usage: usage["input_tokens_details"]["cached_tokens"],
    "/v1/messages": lambda usage: usage.get("cache_read_input_tokens"),
}
METRICS = (
    "predictions_checked_total", "predictions_wrong_total", "cached_tokens_predicted_total", "cached_tokens_actual_total",
    "cached_tokens_misjudged_total",
)  # fmt: skip


def send(router: Router, path: str, body: dict, name: str = "") -> dict:
    """Sends a request; of a stream it returns the last event, which has the usage."""
    body, headers = {"model": "m", **body}, {"x-request-id": name} if name else {}
    if not body.get("stream"):
        return call(router.url + path, body, headers)
    request = urllib.request.Request(router.url + path, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=120) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    return json.loads(events[-2])


def compare(router: Router, kinds: Kinds, count: int, tally: dict, part: str) -> None:
    """Sends requests one by one, and compares prediction and report of each."""
    for number in range(count):
        kind, path, body = kinds.next()
        router.quiet()
        name = f"{part}-{number}"
        try:
            answer = send(router, path, body, name)
        except urllib.error.HTTPError as error:
            tally[kind]["refused"] += 1
            if tally[kind]["refused"] == 1:
                print(f"  refused: {kind}: {error.code} {error.read().decode()[:200]}", flush=True)
            continue
        kinds.learn(body, answer)
        usage = answer["usage"]
        details = usage.get("prompt_tokens_details") or {}
        actual = CACHED.get(path, lambda _, details=details: details.get("cached_tokens"))(usage) or 0
        found = []

        def is_recorded(found=found, name=name) -> bool:
            found.extend(one for one in call(f"{router.admin}/decisions?last=8")["decisions"] if one["id"] == name)
            return bool(found)

        until(f"the record of {name}", is_recorded, 10)
        cached = found[0]["cached_tokens"]
        if cached["predicted"] is None:
            tally[kind]["unpredicted"] += 1
            continue
        if cached["speculative"]:
            raise SystemExit(f"{name}: the prediction is speculative, although the router was idle")
        tally[kind]["right"] += cached["predicted"] == actual
        tally[kind]["hits"] += actual > 0
        tally[kind]["cached"] += actual
        tally[kind]["all"] += 1
        if cached["predicted"] != actual:
            total = usage.get("prompt_tokens") or usage.get("input_tokens")
            print(f"  wrong: {name} {kind}: of {total} tokens {cached['predicted']} predicted, {actual} cached", flush=True)


def crowd(router: Router, kinds: Kinds, count: int) -> None:
    """Sends many requests at once, equal ones too, so that the engine holds copies of blocks and evicts others."""

    def one(asked: tuple[str, str, dict]) -> None:
        try:
            send(router, *asked[1:])
        except urllib.error.HTTPError:
            pass  # compared prompts show what an engine refuses

    asked = []
    while len(asked) < count:
        asked += [kinds.next()] * kinds.rng.choice([1, 1, 3])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, asked[:count]))


def counted(router: Router) -> str:
    """What the router's own metrics say of its predictions."""
    with urllib.request.urlopen(f"{router.admin}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = collections.Counter()
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0].removeprefix("wornpath_")
        if name in METRICS:
            found[name] += int(float(value))
    verdicts = {pod["predictions"]["verdict"] for pod in router.pods().values()}
    trust = {pod["events"]["trust"] for pod in router.pods().values()}
    said = ", ".join(f"{name} {found[name]}" for name in METRICS)
    return f"/metrics: {said}; /pods: predictions {'/'.join(sorted(verdicts))}, trust {'/'.join(sorted(trust))}"


def model(family: str, tokenizer: pathlib.Path | None) -> pathlib.Path:
    """A folder with a family's tokenizer, and a tiny model of random weights for it."""
    folder = DIR / f"model-{family}"
    if not (folder / "model.safetensors").exists():
        arguments = [DIR / "venv/bin/python", ROOT / "tests/real-engine/model.py", folder, *([tokenizer] if tokenizer else [])]
        subprocess.run(arguments, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True)
    return folder


def parts(asked: argparse.Namespace, engine: Engine, router: Router, kinds: Kinds, tally: dict) -> None:
    """The situations in which predictions are compared."""
    count = asked.prompts // (4 if asked.restart else 3)
    compare(router, kinds, count, tally, "first")
    crowd(router, kinds, asked.crowd)
    compare(router, kinds, count, tally, "crowd")
    engine.clear_cache()
    compare(router, kinds, count, tally, "cleared")
    if asked.restart:
        engine.stop(9)
        engine.start()
        engine.ready()
        router.ready(asked.ranks)
        compare(router, kinds, count, tally, "restarted")


def run_family(asked: argparse.Namespace, family: str, tokenizer: pathlib.Path | None) -> dict:
    tally: dict = collections.defaultdict(collections.Counter)
    folder = model(family, tokenizer)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    kind = SglangEngine if asked.engine == "sglang" else Engine
    options = {"hash": "sha256_cbor", "int_hashes": True, "blocks": 200, "model": folder, "name": "m", "tools": True}
    engine = kind(0, {**options, "ranks": asked.ranks, "page": asked.page})
    kinds, router = Kinds(asked.seed, vocabulary, asked.engine, asked.extra_key), None
    try:
        engine.start()
        print(f"{asked.engine} with {family} ready after {engine.ready():.0f} s", flush=True)
        pod = engine.url if asked.ranks == 1 else f"{engine.url},ranks={asked.ranks}"
        arguments = ["serve", "--pod", pod, "--port", "0", "--admin", "127.0.0.1:0"]
        router = Router.of_arguments(asked.binary, arguments, f"fidelity-{family}")
        router.ready(asked.ranks)
        # A tokenizer may take longer than pods wait for it; until it is there, the router says that it is approximate.
        until("exact pods", lambda: all(pod["precision"]["mode"] == "exact" for pod in router.pods().values()), 120, router.process)
        precision = [pod["precision"] for pod in router.pods().values()]
        print(f"{family}: {json.dumps(precision[0])}", flush=True)
        parts(asked, engine, router, kinds, tally)
        modes = sorted({pod["precision"]["mode"] for pod in router.pods().values()})
        tally["precision"]["note"] = f"the router calls the pod {'/'.join(modes)}; {counted(router)}"
    finally:
        if router:
            router.stop()
        engine.stop()
    return tally


def version(engine: str) -> str:
    if engine == "vllm":
        return Engine.release
    lister = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": str(DIR / "sglang")}
    return subprocess.run([DIR / "venv/bin/python", "-c", lister, engine], env=environment, capture_output=True, text=True).stdout.strip()


def rows(engine: str, family: str, tally: dict) -> list[str]:
    note = tally.pop("precision")["note"]
    lines = []
    for kind, one in sorted(tally.items()):
        refused = f", {one['refused']} refused by the engine" if one["refused"] else ""
        unpredicted = f", {one['unpredicted']} not predicted" if one["unpredicted"] else ""
        lines.append(f"{engine} | {family} | {kind} | {one['right']} of {one['all']} right, {one['hits']} with a hit{unpredicted}{refused}")
    right, total, hits, cached, unpredicted = (
        sum(one[what] for one in tally.values()) for what in ("right", "all", "hits", "cached", "unpredicted")
    )
    lines.append(
        f"{engine} | {family} | all | {right} of {total} right, {hits} with a hit, {cached} tokens cached, {unpredicted} not predicted; {note}"
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/dist/wornpath")
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--family", action="append", default=[], help="NAME=FOLDER with a tokenizer; by default the small one of this repository")
    parser.add_argument("--prompts", type=int, default=240, help="compared requests of each family")
    parser.add_argument("--crowd", type=int, default=80, help="requests that are sent eight at a time in between")
    parser.add_argument("--restart", action="store_true", help="also kill the engine, and compare after it has come back")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks of the engine")
    parser.add_argument("--page", type=int, default=BLOCK, help="tokens of a block; vLLM has only the default on a CPU")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--report", type=pathlib.Path, help="append the results to this file")
    parser.add_argument("--vllm", default=RELEASE, help="version of vLLM, which `install VERSION` has installed")
    parser.add_argument("--extra-key", action="store_true", help="with SGLang: also requests with an `extra_key`, which its events do not name")
    asked = parser.parse_args()
    Engine.release = asked.vllm
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (DIR / "logs").mkdir(exist_ok=True)
    families = [one.partition("=")[::2] for one in asked.family] or [("tiny-llama", "")]
    name = f"{'SGLang' if asked.engine == 'sglang' else 'vLLM'} {version(asked.engine)}"
    if asked.ranks > 1:
        name += f", {asked.ranks} ranks"
    report(asked, header(asked, name, [family for family, _ in families]))
    is_good = True
    for family, folder in families:
        tally = run_family(asked, family, pathlib.Path(folder) if folder else None)
        is_good &= all(one["right"] == one["all"] for one in tally.values())
        report(asked, "\n".join(rows(name, family, tally)))
    return int(not is_good)


def header(asked: argparse.Namespace, name: str, families: list[str]) -> str:
    words = ["python3 tests/real-engine/fidelity.py --engine", asked.engine, *(f"--family {one}=FOLDER" for one in families if one != "tiny-llama")]
    words += [f"--prompts {asked.prompts} --crowd {asked.crowd} --seed {asked.seed}", *(["--restart"] if asked.restart else [])]
    words += [f"--ranks {asked.ranks}"] if asked.ranks > 1 else []
    words += [f"--page {asked.page}"] if asked.page != BLOCK else []
    words += [f"--vllm {asked.vllm}"] if asked.vllm != RELEASE else []
    words += ["--extra-key"] if asked.extra_key else []
    return provenance(" ".join(words), f"{name} on the CPU, a tiny model of random weights, a cache of {200 * BLOCK} tokens in blocks of {asked.page}")


def report(asked: argparse.Namespace, text: str) -> None:
    print(text, flush=True)
    if asked.report:
        with open(asked.report, "a") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
