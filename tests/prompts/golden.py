"""Writes golden files: for each request the number of tokens and a digest of them, or nothing if the engine refuses it."""

import hashlib
import json
import pathlib
import struct
import time

import models
import cases as ours


def entry(tokens: list[int] | None) -> list | None:
    if tokens is None:
        return None
    digest = hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).digest()[:8].hex()
    return [len(tokens), digest]


def write_requests() -> None:
    # The body as text: not every reader of JSON keeps long integers.
    found = [{"name": name, "path": path, "body": json.dumps(body, ensure_ascii=False)} for name, path, body in ours.all_requests()]
    lines = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found)
    (models.GOLDEN / "requests.json").write_text(f"[\n{lines}\n]\n")


def write(engine: str, version: str, model: str, prompts: dict, texts: pathlib.Path | None, text_of) -> None:
    """`prompts` has the tokens of each request, by name; `texts` is a folder for the prompts in full."""
    header = {"engine": f"{engine} {version}", "made": time.strftime("%Y-%m-%d"), "wall": int(time.time())}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry(tokens))}" for name, tokens in prompts.items())
    start = json.dumps(header)[:-1]
    (models.GOLDEN / f"{engine}-{model}.json").write_text(f'{start}, "prompts": {{\n{lines}\n}}}}\n')
    if texts:
        texts.mkdir(parents=True, exist_ok=True)
        full = {name: {"tokens": tokens, "text": text_of(tokens)} for name, tokens in prompts.items() if tokens is not None}
        (texts / f"{engine}-{model}.json").write_text(json.dumps(full, ensure_ascii=False, indent=1))
    refused = sum(tokens is None for tokens in prompts.values())
    print(f"{engine} {version}, {model}: {len(prompts)} requests, {refused} refused", flush=True)
