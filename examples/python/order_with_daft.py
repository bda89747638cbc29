"""Orders the rows of a Daft data frame by shared prefix, and sends each partition to an engine of its own.

    pip install wornpath daft
    python3 examples/python/order_with_daft.py examples/prompts.jsonl http://127.0.0.1:8001 http://127.0.0.1:8002

The same works with Ray Data (`dataset.add_column`, `sort`) and Spark (`repartitionByRange`): `plan.ranks()` is a column to sort
by, `plan.pods()` one to partition by. The file has batch lines: a request body in `body` on each line.
"""

import json
import sys
import urllib.request
from pathlib import Path

import daft

import wornpath


def ordered(bodies: list[dict], pods: int) -> daft.DataFrame:
    """One row per request, in the planned order: its body, its engine, and its position."""
    plan = wornpath.plan(bodies, pods=pods)
    columns = {"body": [json.dumps(body) for body in bodies], "pod": plan.pods(), "rank": plan.ranks()}
    return daft.from_pydict(columns).sort("rank")


def send(url: str, body: str) -> int:
    """Sends a request, and returns how many of its prompt tokens were cached."""
    request = urllib.request.Request(f"{url}/v1/chat/completions", body.encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        usage = json.load(response)["usage"]
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def main(path: str, *urls: str) -> None:
    bodies = [json.loads(line)["body"] for line in Path(path).read_text().splitlines()]
    frame = ordered(bodies, len(urls))
    cached = daft.func(lambda body, pod: send(urls[pod], body), return_dtype=daft.DataType.int64())
    answered = frame.with_column("cached", cached(frame["body"], frame["pod"])).to_pydict()
    print(f"{len(bodies)} requests, {sum(answered['cached'])} prompt tokens from caches")


if __name__ == "__main__":
    main(*sys.argv[1:])
