"""What routing by cache is worth on real engines: time to first token and hit rate, round-robin against the default profile.

    python3 tests/real-engine/gain.py [--seeds 1,2,3,4] [--report FILE]

Two engines on the CPU, vLLM's or mlx-lm's, with a model large enough that a prompt costs more than a step. The same conversations and questions
about documents are sent through either router, by clients that wait for each answer. The two take turns, within one run and from
seed to seed in the other order, because a shared machine is not equally fast at all times; before each turn the caches are reset.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.parse

from fleet import DIR, RELEASE, ROOT, Engine, MlxEngine, Router, provenance
from prompts import Prompts

IN_TURN = """\
listen: {{client: "127.0.0.1:0", admin: "127.0.0.1:0"}}
models: [{{name: "{name}", tokenizer: {model}}}]
pods: [{pods}]
profiles:
  in-turn: {{filter: [healthy, model], pick: round_robin}}
routes:
  - {{profile: in-turn}}
"""


def workload(seed: int, conversations: int, documents: int) -> list:
    """Conversations, each a list of what the user says after a system prompt, and questions about documents, in mixed order."""
    prompts, rng = Prompts(seed), random.Random(seed)
    systems = [prompts.text(120) for _ in range(3)]
    texts = [prompts.text(rng.randint(350, 600)) for _ in range(documents)]
    found = [(rng.choice(systems), [prompts.text(rng.randint(20, 120)) for _ in range(5)]) for _ in range(conversations)]
    found += [(text, [prompts.text(12)]) for text in texts for _ in range(5)]
    rng.shuffle(found)
    return found


def first_token(url: str, model: str, messages: list[dict]) -> tuple[float, str, dict]:
    """Seconds to the first token, the answer, and its usage."""
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": True}
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
    start = time.monotonic()
    options = {"stream_options": {"include_usage": True}}
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, **options}), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()[:300]}")
    took, text, usage = None, "", {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            content = choice["delta"].get("content")
            if content and took is None:
                took = time.monotonic() - start
            text += content or ""
    connection.close()
    return took or time.monotonic() - start, text, usage


def run_once(url: str, model: str, sessions: list, clients: int) -> dict:
    """Sends a workload; each client takes the next session when its last one has ended."""
    times, prompt, cached = [], 0, 0

    def one(session: tuple[str, list[str]]) -> list:
        messages, found = [{"role": "system", "content": session[0]}], []
        for said in session[1]:
            messages.append({"role": "user", "content": said})
            took, text, usage = first_token(url, model, messages)
            messages.append({"role": "assistant", "content": text})
            found.append((took, usage))
        return found

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for found in pool.map(one, sessions):
            for took, usage in found:
                times.append(took)
                prompt += usage["prompt_tokens"]
                cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {"times": times, "prompt": prompt, "cached": cached, "seconds": time.monotonic() - start}


def line(name: str, found: dict) -> str:
    cuts = statistics.quantiles(found["times"], n=20)
    rate = found["cached"] / found["prompt"]
    return (
        f"{name:24} {len(found['times']):4} requests, {found['prompt']:6} prompt tokens, hit rate {rate:.2f}, "
        f"TTFT p50 {cuts[9]:.3f} s, p95 {cuts[18]:.3f} s, all in {found['seconds']:.0f} s"
    )


def merged(all_found: list[dict]) -> dict:
    times = [took for found in all_found for took in found["times"]]
    return {"times": times, **{key: sum(found[key] for found in all_found) for key in ("prompt", "cached", "seconds")}}


def compare(asked: argparse.Namespace, engines: list[Engine], routers: dict[str, Router], say) -> None:
    results: dict[str, list] = {name: [] for name in routers}
    for at, seed in enumerate(asked.seeds):
        sessions = workload(seed, asked.conversations, asked.documents)
        order = list(routers.items()) if at % 2 == 0 else list(reversed(routers.items()))
        for name, router in order:
            for engine in engines:
                engine.clear_cache()
                first_token(engine.url, engine.options["name"], [{"role": "user", "content": "once " * 40}])
            router.ready(len(engines))
            router.settle()
            found = run_once(router.url, engines[0].options["name"], sessions, asked.clients)
            results[name].append(found)
            say(line(f"seed {seed}, {name}", found))
    for name, found in results.items():
        say(line(f"all, {name}", merged(found)))
    plain, default = (merged(found) for found in results.values())
    for cut, number in (("p50", 9), ("p95", 18)):
        ratio = statistics.quantiles(default["times"], n=20)[number] / statistics.quantiles(plain["times"], n=20)[number]
        say(f"TTFT {cut}, default over round-robin: {ratio:.2f}")


class SettledRouter(Router):
    """A router that can be waited for, with or without events of its pods."""

    def settle(self) -> None:
        if all(pod["events"]["feed"] for pod in self.pods().values()):
            self.quiet()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/dist/wornpath")
    parser.add_argument("--engine", choices=["vllm", "mlx"], default="vllm")
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 3, 4])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=6)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=768, help="size of the model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=260, help="cache blocks of each engine, of 32 tokens")
    parser.add_argument("--report", type=pathlib.Path, help="append the results to this file")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def say(text: str) -> None:
        print(text, flush=True)
        if asked.report:
            with open(asked.report, "a") as file:
                file.write(f"{text}\n")

    folder = DIR / f"model-{asked.hidden}-{asked.layers}"
    if not (folder / "model.safetensors").exists():
        arguments = [DIR / "venv/bin/python", ROOT / "tests/real-engine/model.py", folder, "--hidden", str(asked.hidden), "--layers", str(asked.layers)]
        subprocess.run(arguments, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True)
    seeds = ",".join(map(str, asked.seeds))
    command = f"python3 tests/real-engine/gain.py --engine {asked.engine} --seeds {seeds} --clients {asked.clients}"
    command += f" --conversations {asked.conversations} --documents {asked.documents} --blocks {asked.blocks} --hidden {asked.hidden} --layers {asked.layers}"
    engine = "mlx-lm 0.32.2" if asked.engine == "mlx" else f"vLLM {RELEASE}"
    millions = (folder / "model.safetensors").stat().st_size // 2_000_000
    say(provenance(command, f"two of {engine} on the CPU, a Llama of {millions} million random weights"))
    name = str(folder) if asked.engine == "mlx" else "m"
    options = {"hash": "sha256_cbor", "int_hashes": True, "blocks": asked.blocks, "model": folder, "name": name}
    kind = MlxEngine if asked.engine == "mlx" else Engine
    engines, routers = [kind(number, options) for number in (0, 1)], {}
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.ready()
        pods = ", ".join(f'{{url: "{engine.url}", name: e{engine.number}, model: "{options["name"]}"}}' for engine in engines)
        routers["round-robin"] = SettledRouter(asked.binary, IN_TURN.format(name=options["name"], model=folder, pods=pods), "gain-in-turn")
        arguments = ["serve", *(word for engine in engines for word in ("--pod", engine.url)), "--port", "0", "--admin", "127.0.0.1:0"]
        routers["default"] = SettledRouter.of_arguments(asked.binary, arguments, "gain-default")
        for router in routers.values():
            router.ready(len(engines))
        compare(asked, engines, routers, say)
    finally:
        for one in [*routers.values(), *engines]:
            one.stop()


if __name__ == "__main__":
    main()
