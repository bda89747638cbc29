"""Orders prompts so that an engine computes every shared prefix about once.

`wornpath run` sends a file of prompts itself. This is for jobs that send their own: Ray Data, Daft, Spark, or a loop.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .binary import run

T = TypeVar("T")


class Planned(NamedTuple):
    """Where a row is in the plan."""

    row: int
    """Its index in the given prompts."""
    pod: int
    """The engine, or partition, to send it to, from 0."""
    shared_tokens: int
    """Prompt tokens that it shares with the row before it on this pod."""


class Plan(tuple[Planned, ...]):
    """All rows in the planned order: pod after pod, each pod's rows in the order to send them."""

    @property
    def order(self) -> list[int]:
        """The indices of the rows in the planned order."""
        return [planned.row for planned in self]

    def ranks(self) -> list[int]:
        """For each row, in the given order, its position in the plan: a column to sort by."""
        ranks = [0] * len(self)
        for rank, planned in enumerate(self):
            ranks[planned.row] = rank
        return ranks

    def pods(self) -> list[int]:
        """For each row, in the given order, its pod: a column to partition by."""
        pods = [0] * len(self)
        for planned in self:
            pods[planned.row] = planned.pod
        return pods

    def sort(self, rows: Sequence[T]) -> list[T]:
        """The rows in the planned order."""
        if len(rows) != len(self):
            raise ValueError(f"the plan has {len(self)} rows, and {len(rows)} were given; give those that were planned")
        return [rows[planned.row] for planned in self]


def plan(
    prompts: Iterable[str | Mapping[str, Any]],
    *,
    pods: int = 1,
    tokenizer: str | os.PathLike[str] | None = None,
    block_size: int = 16,
    output_tokens: int | None = None,
) -> Plan:
    """Plans the order in which to send these prompts to `pods` equal engines.

    A prompt is a text, or a request body with `messages`, `prompt` or `input`. `tokenizer` is the folder of the model's
    `tokenizer.json`; without one, four bytes count as a token. `block_size` is that of the engines' caches,
    `output_tokens` the expected length of an answer.
    """
    options = ["--pods", str(pods), "--block-size", str(block_size)]
    if tokenizer is not None:
        options += ["--tokenizer", os.fspath(tokenizer)]
    if output_tokens is not None:
        options += ["--output-tokens", str(output_tokens)]
    with tempfile.TemporaryDirectory(prefix="wornpath-plan-") as folder:
        lines, order = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "order.jsonl")
        count = 0
        with open(lines, "w", encoding="utf-8") as file:
            for prompt in prompts:
                body = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
                file.write(json.dumps(body) + "\n")
                count += 1
        if count == 0:
            return Plan()
        run("plan", lines, "--order", order, *options)
        with open(order, encoding="utf-8") as file:
            planned = [json.loads(line) for line in file]
    # Lines are numbered from 1, and each is one prompt.
    return Plan(Planned(row["line"] - 1, row["pod"], row["shared_tokens"]) for row in planned)
