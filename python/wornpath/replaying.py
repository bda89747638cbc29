"""Replays recorded traffic under routing profiles, on simulated engines, in virtual time."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from typing import TypedDict, cast

from .binary import run
from .rows import Rows


class Percentiles(TypedDict):
    """Percentiles of a time, in milliseconds."""

    p50: float
    p95: float
    p99: float
    longest: float


class Replayed(TypedDict):
    """The figures of one run of one profile."""

    profile: str
    run: int
    requests: int
    failures: int
    ttft: Percentiles
    tpot: Percentiles
    hit_rate: float
    imbalance: float


def replay(
    trace: str | os.PathLike[str],
    profiles: Sequence[str | os.PathLike[str]],
    *,
    pods: int = 8,
    engine: str = "8b-h200",
    speed: float = 1.0,
    seeds: int = 1,
) -> Rows[Replayed]:
    """Runs `wornpath replay` on a trace: one row per profile and run.

    A profile is a file, or the name of a built-in one. Runs differ in jitter and random choices.
    """
    options = ["--pods", str(pods), "--engine", engine, "--speed", str(speed), "--seeds", str(seeds)]
    for profile in profiles:
        options += ["--profile", os.fspath(profile)]
    with tempfile.TemporaryDirectory(prefix="wornpath-replay-") as folder:
        path = os.path.join(folder, "replay.json")
        run("replay", os.fspath(trace), "--json", path, *options)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    rows: Rows[Replayed] = Rows()
    for profile in report["profiles"]:
        for number, figures in enumerate(profile["runs"], start=1):
            rows.append(cast(Replayed, {"profile": profile["profile"], "run": number} | figures))
    return rows
