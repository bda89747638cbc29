"""Engines on one GPU behind `wornpath serve`: what the router saves there, and whether it predicts it.

    python3 tests/gpu-engine/run.py --smoke                       # under a minute: does everything start, is it exact?
    python3 tests/gpu-engine/run.py --save bench/results/gpu.txt  # under ten minutes

Rounds alternate between round-robin and the default profile, each with a new router and empty caches. A round first asks about
every document once per engine, so that round-robin too starts with full caches, then runs the traffic for a while, and only
then measures. Afterwards prompts are sent one by one: for each, the router's prediction must equal what the engine reports.
"""

import argparse
import dataclasses
import functools
import gzip
import math
import os
import pathlib
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from fleet import HERE, MODEL, Engine, MultiProcessService, Router, version
from traffic import SMALL, Answer, Ask, Client, Scale, Source, drive, in_threads

ROOT = HERE.parents[1]
TOKENIZER = ROOT / "crates/blocks/tests/models/qwen3"
POLICIES = ("round-robin", None)
# For the prompts that are sent one by one.
LAST_SECONDS = 40


@dataclasses.dataclass
class Round:
    """The measured requests of one round, and the router's predictions for them."""

    policy: str
    answers: list[Answer] = dataclasses.field(default_factory=list)
    checked: int = 0  # predictions that could be compared with the engine's report
    right: int = 0
    speculative: int = 0  # left out: they rested on what the router itself had just sent

    def row(self) -> str:
        good = [one for one in self.answers if not one.failure]
        prompt = sum(one.prompt_tokens for one in good)
        cached = sum(one.cached_tokens for one in good)
        kinds = [good] + [[one for one in good if one.kind == kind] for kind in ("conversation", "document")]
        times = [f"{quantile(part, share):.0f}" for part in kinds for share in (0.5, 0.95)]
        return (
            f"| {self.policy} | {len(self.answers)} | {len(self.answers) - len(good)} | {' | '.join(times)} "
            f"| {prompt} | {prompt - cached} | {cached / max(prompt, 1):.3f} |"
        )

    def predictions(self) -> str:
        return f"{self.right} of {self.checked} predictions right to the token; {self.speculative} speculative ones not counted"


HEAD = """\
| | requests | failed | TTFT p50, ms | p95 | conversations p50 | p95 | documents p50 | p95 | prompt tokens | computed | hit rate |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""


def quantile(answers: list[Answer], share: float) -> float:
    """Of the times to first token, in milliseconds."""
    times = sorted(1000 * one.ttft for one in answers)
    return times[math.ceil(share * len(times)) - 1] if times else math.nan


class Run:
    """Engines that stay, routers that come and go, and the lines of the report."""

    def __init__(self, asked: argparse.Namespace, folder: pathlib.Path):
        self.asked, self.folder = asked, folder
        self.begin = time.monotonic()
        self.lines: list[str] = []
        self.rounds: list[Round] = []
        self.engines: list[Engine] = []
        self.scale = SMALL if asked.scale == "small" else Scale(documents=6 if asked.smoke else 20)
        self.source = Source(asked.seed, self.scale)
        self.tokenizer = ""
        self.ready_at = 0.0
        self.exact = Round("default")
        self.wrong: list[str] = []

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def say(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)

    def save(self) -> None:
        """Writes what was said so far: a run that is cut off leaves its rounds."""
        if self.asked.save:
            self.asked.save.parent.mkdir(parents=True, exist_ok=True)
            self.asked.save.write_text("\n".join(self.lines) + "\n")

    def start(self) -> None:
        """Starts the engines, side by side."""
        asked = self.asked
        tokenizer = unpack(TOKENIZER, self.folder / "qwen3")
        self.tokenizer = str(tokenizer)
        options = ["--shape", asked.shape, "--blocks", str(asked.blocks), "--tokenizer", str(tokenizer)]
        if asked.device:
            options += ["--device", asked.device]
        for number in range(asked.engines):
            self.engines.append(Engine(number, self.folder, options))
        for engine in self.engines:
            engine.ready()
        self.say(f"engines: {asked.engines} of shape {asked.shape}, ready after {self.elapsed():.0f} s; each says")
        for line in self.engines[0].said():
            self.say(f"  {line}")

    def alone(self) -> float:
        """How long prompts take one at a time on an idle engine; returns the seconds per prompt token."""
        engine, random_of = self.engines[0], random.Random(f"{self.asked.seed} alone")
        length = 8000 if self.asked.scale == "full" else 500
        client = Client(engine.http, "alone", MODEL)
        prompts = [[random_of.randrange(1000, 100_000) for _ in range(length)] for _ in range(4)]
        asks = [Ask("alone", "/v1/completions", {"prompt": prompt, "max_tokens": 1}) for prompt in prompts]
        cold = [client.ask(ask) for ask in asks]
        warm = [client.ask(ask) for ask in asks]
        long = client.ask(Ask("alone", "/v1/completions", {"prompt": prompts[0], "max_tokens": 65}))
        failures = [one.failure for one in [*cold, *warm, long] if one.failure]
        if failures:
            raise SystemExit(f"an engine alone fails: {failures[0]}")
        first = statistics.median(one.ttft for one in cold[1:])
        again = statistics.median(one.ttft for one in warm)
        self.say(
            f"alone: a prompt of {length} tokens takes {1000 * first:.0f} ms to the first token on an idle engine, "
            f"{1000 * again:.0f} ms when it is cached; each further token {1000 * (long.total - long.ttft) / 64:.1f} ms"
        )
        return first / length

    def rate(self, seconds_per_token: float) -> float:
        """Requests per second, if so many seconds pass for a prompt token on an engine that is alone."""
        engines_at_once = len(self.engines) if self.asked.mps else 1
        return min(self.asked.most, self.asked.load * engines_at_once / seconds_per_token / self.scale.words_per_request())

    def measure(self, policy: str | None, rate: float) -> Round:
        """One round with a new router and empty caches."""
        asked = self.asked
        name = f"{policy or 'default'}-{len(self.rounds)}"
        for engine in self.engines:
            engine.reset()
        router = Router(asked.binary, self.folder, self.tokenizer, self.engines, policy)
        found = Round(policy or "default")
        decisions: dict[str, dict] = {}
        stopped = threading.Event()

        def collect() -> None:
            while not stopped.wait(2):
                decisions.update(router.decisions())

        try:
            client = Client(router.client_port, name, MODEL)
            for number in range(len(self.engines)):
                asks = self.source.every_document(number)
                in_threads([functools.partial(client.ask, ask) for ask in asks], 2 * len(self.engines))
            begin = client.seconds() + asked.settle
            collector = threading.Thread(target=collect, daemon=True)
            collector.start()
            drive(self.source, client, rate, asked.settle + asked.seconds)
            stopped.set()
            collector.join()
            decisions.update(router.decisions())
            found.answers = [one for one in client.answers if one.started >= begin]
            if policy is None:
                compare(found, decisions)
        finally:
            stopped.set()
            router.stop()
        self.rounds.append(found)
        return found

    def one_by_one(self) -> None:
        """Sends prompts when nothing else is in flight and the index has no speculative entries, and compares."""
        for engine in self.engines:
            engine.reset()
        router = Router(self.asked.binary, self.folder, self.tokenizer, self.engines, None)
        try:
            client = Client(router.client_port, "one", MODEL)
            in_threads([functools.partial(client.ask, ask) for ask in self.source.every_document(0)], 8)
            random_of = random.Random(f"{self.asked.seed} one by one")
            for number in range(self.asked.exact):
                router.quiet()
                self.compare_one(router, client, self.mixed(random_of, number))
        finally:
            router.stop()

    def compare_one(self, router: Router, client: Client, ask: Ask) -> None:
        answer = client.ask(ask)
        record: list[dict] = []

        def is_recorded() -> bool:
            record.extend(one for name, one in router.decisions().items() if name == answer.id)
            return bool(record)

        router.until(f"the record of {answer.id}", is_recorded, 10)
        tokens = record[0]["cached_tokens"]
        self.exact.answers.append(answer)
        self.exact.checked += 1
        if not answer.failure and not tokens["speculative"] and (tokens["predicted"] or 0) == answer.cached_tokens:
            self.exact.right += 1
            return
        actual = f"{answer.cached_tokens} of {answer.prompt_tokens} tokens were cached"
        self.wrong.append(f"{answer.kind}: {actual}, {answer.failure or 'no failure'}; the router says {tokens}")

    def exactness(self) -> str:
        answers = self.exact.answers
        cached, prompt = (sum(getattr(one, name) for one in answers) for name in ("cached_tokens", "prompt_tokens"))
        hits = sum(one.cached_tokens > 0 for one in answers)
        return (
            f"one by one: {self.exact.right} of {self.exact.checked} predictions right to the token, {hits} of them with a hit, "
            f"{cached} of {prompt} tokens cached"
        )

    def mixed(self, random_of: random.Random, number: int) -> Ask:
        """Documents, conversations, text completions, and token ids of whole blocks and not."""
        kind = number % 4
        if kind == 0:
            return self.source.question(random_of)
        if kind == 1:
            return next(self.source.conversation(number // 8))[0]
        if kind == 2:
            text = self.source.documents[random_of.randrange(2)]
            return Ask("text", "/v1/completions", {"prompt": text[: random_of.choice([900, 1500, 2400])], "max_tokens": 5})
        family = random.Random(f"{self.asked.seed} family {random_of.randrange(2)}")
        ids = [family.randrange(1000, 100_000) for _ in range(random_of.choice([64, 96, 160, 161, 320]))]
        return Ask("ids", "/v1/completions", {"prompt": ids, "max_tokens": random_of.randint(1, 40)})

    def is_late(self) -> bool:
        """Whether another pair of rounds, as long as those so far, would end after the limit."""
        per_pair = 2 * (self.elapsed() - self.ready_at) / len(self.rounds)
        return self.elapsed() + per_pair + LAST_SECONDS > self.asked.limit

    def report(self) -> int:
        """Prints what all rounds say together, and saves everything; returns the exit status."""
        before, now = self.joined("round-robin"), self.joined("default")
        self.say(f"\n### all rounds\n\n{HEAD}\n{before.row()}\n{now.row()}")
        ratios = [quantile(now.answers, share) / quantile(before.answers, share) for share in (0.5, 0.95)]
        computed = [sum(one.prompt_tokens - one.cached_tokens for one in part.answers) for part in (now, before)]
        self.say(
            f"\ndefault to round-robin: TTFT p50 {ratios[0]:.2f}, p95 {ratios[1]:.2f}, "
            f"computed tokens {computed[0] / max(computed[1], 1):.2f}"
        )
        self.say(f"under load: {now.predictions()}")
        self.say(self.exactness())
        for line in self.wrong:
            self.say(f"  not right: {line}")
        failures = [one.failure for part in self.rounds for one in part.answers if one.failure]
        for failure in failures[:5]:
            self.say(f"  failed: {failure}")
        self.say(f"took {self.elapsed():.0f} s")
        self.save()
        return int(bool(self.wrong or failures or not self.exact.right))

    def joined(self, policy: str) -> Round:
        """All rounds of a policy as one."""
        whole = Round(policy)
        for part in self.rounds:
            if part.policy == policy:
                whole.answers += part.answers
                whole.checked += part.checked
                whole.right += part.right
                whole.speculative += part.speculative
        return whole


def compare(found: Round, decisions: dict[str, dict]) -> None:
    """Counts how many of the router's predictions the engines confirmed."""
    for answer in found.answers:
        record = decisions.get(answer.id)
        if answer.failure or record is None:
            continue
        predicted = record["cached_tokens"]["predicted"]
        if record["cached_tokens"]["speculative"]:
            found.speculative += 1
        elif predicted is not None:
            found.checked += 1
            found.right += predicted == answer.cached_tokens


def unpack(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """The tokenizer of the repository's tests, as a folder of its own."""
    target.mkdir()
    with gzip.open(source / "tokenizer.json.gz") as packed, (target / "tokenizer.json").open("wb") as out:
        shutil.copyfileobj(packed, out)
    shutil.copy(source / "tokenizer_config.json", target)
    return target


def commit() -> str:
    """The commit of this working tree, if it is one."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    return found or "unknown"


def machine() -> str:
    names = []
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        names = subprocess.run(asked, capture_output=True, text=True).stdout.strip().splitlines()
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return "; ".join([*names, f"{os.cpu_count()} cores, {system}"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WORNPATH_BINARY", ROOT / "target/dist/wornpath")
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path(default), help="the router; or WORNPATH_BINARY")
    parser.add_argument("--smoke", action="store_true", help="one short pair of rounds with two engines")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--shape", default="8b", help="8b, 3b, 1b or tiny; `tokens` needs no torch")
    parser.add_argument("--blocks", type=int, default=6000, help="blocks of 16 tokens in the KV cache of each engine")
    parser.add_argument("--mps", action="store_true", help="divide the GPU with NVIDIA's multi-process service")
    parser.add_argument("--device", help="of the engines; default: cuda if there is one")
    parser.add_argument("--scale", choices=["full", "small"], help="lengths of prompts; default: small for tiny and tokens")
    parser.add_argument("--load", type=float, default=0.5, help="prompt tokens per second, as a share of what the GPU computes")
    parser.add_argument("--most", type=float, default=20.0, help="requests per second at most")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of rounds")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds of traffic before each measurement")
    parser.add_argument("--seconds", type=float, default=40.0, help="seconds of each measurement")
    parser.add_argument("--exact", type=int, default=40, help="prompts that are sent one by one")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds; no pair of rounds is begun that would end later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", default=None, help="of the binary, if this folder is no git checkout")
    parser.add_argument("--save", type=pathlib.Path, help="file for the report")
    asked = parser.parse_args()
    asked.scale = asked.scale or ("small" if asked.shape in ("tiny", "tokens") else "full")
    if asked.smoke:
        asked.engines, asked.rounds, asked.settle, asked.seconds, asked.exact = 2, 1, 1.0, 6.0, 12
    return asked


def main() -> int:
    asked = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="gpu-engine-") as folder:
        run, mps = Run(asked, pathlib.Path(folder)), None
        try:
            run.say(time.strftime("date:    %Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            run.say(f"machine: {machine()}")
            run.say(f"commit:  {asked.commit or commit()}")
            run.say(f"command: python3 tests/gpu-engine/run.py {' '.join(sys.argv[1:])}")
            run.say(f"router:  {version(asked.binary)}, tokenizer of Qwen3\n")
            if asked.mps:
                mps = MultiProcessService(asked.engines, pathlib.Path(folder))
                run.say(f"each engine has {mps.share} % of the GPU's multiprocessors")
            run.start()
            rate = run.rate(run.alone())
            run.say(f"traffic: {rate:.2f} requests/s, half about {run.scale.documents} documents, half turns of conversations")
            run.ready_at = run.elapsed()
            run.say(f"\n### every round, in order\n\n{HEAD}")
            for number in range(asked.rounds):
                run.source = Source(asked.seed + number, run.scale)
                for policy in POLICIES:
                    run.say(run.measure(policy, rate).row())
                    run.save()
                if number + 1 < asked.rounds and run.is_late():
                    run.say(f"only {number + 1} pairs of rounds: another would end after the limit of {asked.limit:.0f} s")
                    break
            run.one_by_one()
            return run.report()
        finally:
            for engine in run.engines:
                engine.stop()
            if mps:
                mps.stop()


if __name__ == "__main__":
    sys.exit(main())
