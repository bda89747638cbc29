"""The pipe between an engine and the process that reports for it.

A frame is its length and a list of events as `marshal` writes them: both ends are one interpreter. An event is one of

    ("stored", blocks, parent, tokens as 32-bit numbers, block_size, tier, lora, salt)
    ("evicted", tier, blocks)
    ("cleared",)
    ("lost",)       events are missing from here on: what follows is the whole cache
    ("found",)      that was the whole cache

The first frame is the options of the process, whose token must not be among its arguments.
"""

import marshal
import os
import struct
from array import array
from collections.abc import Iterator
from typing import Any

from .mirror import Run

_LENGTH = struct.Struct("<I")
# Tokens, and hashes four times, that are written at once: less than a tenth of a millisecond's work, for which the writer
# holds the interpreter lock.
FRAME_WEIGHT = 1024


def write(fd: int, events: Any) -> None:
    """Writes a frame. Other threads run while the pipe is full."""
    body = marshal.dumps(events)
    rest = memoryview(_LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read(stream) -> Any:
    """The next frame, or None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return marshal.loads(body) if len(body) == length else None


def stored(run: Run) -> Iterator[tuple]:
    """A run in pieces that fit into a frame."""
    size, parent = run.block_size, run.parent
    step = max(1, FRAME_WEIGHT // (size + 4))
    for at in range(0, len(run.blocks), step):
        blocks = [_plain(block) for block in run.blocks[at : at + step]]
        tokens = array("I", run.tokens[at * size : (at + step) * size]).tobytes()
        salt = run.salt if parent is None else None
        yield "stored", blocks, None if parent is None else _plain(parent), tokens, size, run.tier, run.lora, salt
        parent = blocks[-1]


def evicted(tier: str, blocks) -> Iterator[tuple]:
    """Evicted blocks in pieces that fit into a frame."""
    step = FRAME_WEIGHT // 4
    for at in range(0, len(blocks), step):
        yield "evicted", tier, [_plain(block) for block in blocks[at : at + step]]


def run_of(event: tuple) -> Run:
    """The run of a `stored` event."""
    _, blocks, parent, tokens, block_size, tier, lora, salt = event
    return Run(tuple(blocks), parent, tuple(array("I", tokens)), block_size, tier, lora, salt)


def weight(event: tuple) -> int:
    """The share of a frame that an event takes."""
    if event[0] == "stored":
        return len(event[3]) // 4 + 4 * len(event[1])
    return 4 * len(event[2]) if event[0] == "evicted" else 1


def _plain(block):
    # Engines have types of their own for hashes, which `marshal` does not write.
    return int(block) if isinstance(block, int) else bytes(block)
