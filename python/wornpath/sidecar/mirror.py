"""A mirror of the engine's cache, from which snapshots and digests are made.

Engines keep several copies of a block under one hash and report the eviction of each, so copies are counted. The mirror
has at most `most` blocks: an engine that never reports an eviction must not fill the machine.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# A JSON number of a hash and of a token, each with its comma, and the rest of a run.
_HASH_BYTES, _TOKEN_BYTES, _RUN_BYTES = 21, 11, 120


def name_of(block) -> int:
    """A block's hash as the router gets it: 64 bits. Engines have integers or digests of any length."""
    if isinstance(block, int):
        return block & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(hashlib.blake2b(block, digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Run:
    """Consecutive blocks of a prompt, as the engine stored them."""

    blocks: tuple
    parent: object = None
    tokens: tuple = ()
    block_size: int = 0
    tier: str = "GPU"
    lora: str | None = None
    salt: str | None = None


class Held:
    """One block that the engine holds, with the number of its copies."""

    __slots__ = ("tier", "name", "parent", "tokens", "block_size", "lora", "salt", "copies")

    def __init__(self, tier, name, parent, tokens, block_size, lora, salt):
        self.tier, self.name, self.parent, self.copies = tier, name, parent, 1
        # Tokens are 32-bit numbers in one object of bytes: a quarter of what a tuple takes.
        self.tokens, self.block_size, self.lora, self.salt = tokens, block_size, lora, salt

    def json_bytes(self) -> int:
        """At least as many bytes as one copy takes in a post."""
        texts = len(self.lora or "") + len(self.salt or "")
        return _RUN_BYTES + _HASH_BYTES + len(self.tokens) // 4 * _TOKEN_BYTES + 12 * texts

    def follows(self, last: "Held") -> bool:
        """Whether it and the block before it can be one run of a post."""
        is_alike = (self.tier, self.block_size, self.lora) == (last.tier, last.block_size, last.lora)
        return self.parent == last.name and is_alike and bool(self.tokens) == bool(last.tokens)


class Mirror:
    """Every block of every tier."""

    def __init__(self, most: int = 1 << 20):
        self._most = most
        self._held: dict[tuple[str, int], Held] = {}
        self._digest: dict[str, list[int]] = {}
        # Blocks that were not stored because the mirror was full.
        self.refused = 0

    def store(self, run: Run) -> list[Held]:
        """Adds a copy of each block. Returns those that the router should hear of."""
        stored = []
        tokens, width = array("I", run.tokens).tobytes(), run.block_size * 4
        if len(tokens) != len(run.blocks) * width:
            # The router would refuse the whole post. A name without tokens is better than none.
            tokens, width = b"", 0
        parent = None if run.parent is None else name_of(run.parent)
        # A salt keys the start of a prompt, and nothing after it.
        salt = run.salt if parent is None else None
        for at, block in enumerate(run.blocks):
            name = name_of(block)
            held = self._held.get((run.tier, name))
            if held is not None:
                held.copies += 1
                if tokens and not held.tokens:
                    held.parent, held.tokens, held.block_size = parent, tokens[at * width : (at + 1) * width], run.block_size
            elif len(self._held) == self._most:
                # What follows it would have an unknown parent.
                self.refused += len(run.blocks) - at
                break
            else:
                part = tokens[at * width : (at + 1) * width]
                held = Held(run.tier, name, parent, part, run.block_size, run.lora, salt)
                self._held[run.tier, name] = held
                self._count(run.tier, 1, name)
            stored.append(held)
            parent, salt = name, None
        return stored

    def evict(self, tier: str, blocks) -> list[int]:
        """Removes a copy of each block. Returns those that the router should hear of."""
        evicted = []
        for name in map(name_of, blocks):
            held = self._held.get((tier, name))
            if held is None:
                continue
            held.copies -= 1
            if held.copies == 0:
                del self._held[tier, name]
                self._count(tier, -1, name)
            evicted.append(name)
        return evicted

    def clear(self) -> None:
        self._held.clear()
        self._digest.clear()

    def _count(self, tier: str, change: int, name: int) -> None:
        digest = self._digest.setdefault(tier, [0, 0])
        digest[0] += change
        digest[1] ^= name

    def __len__(self) -> int:
        return len(self._held)

    def snapshot(self, most_bytes: int) -> list[list[Held]]:
        """All blocks, each once per copy, in parts of at most so many bytes of JSON."""
        return parts((held for held in self._held.values() for _ in range(held.copies)), most_bytes)

    def digest(self) -> dict:
        """Per tier the number of blocks and the exclusive or of their hashes."""
        return {tier: {"count": count, "xor": f"{xor:016x}"} for tier, (count, xor) in self._digest.items() if count}


def parts(blocks: Iterable[Held], most_bytes: int) -> list[list[Held]]:
    """Cuts a list of blocks into lists of at most so many bytes of JSON, at least one."""
    found: list[list[Held]] = [[]]
    room = most_bytes
    for held in blocks:
        room -= held.json_bytes()
        if room < 0 and found[-1]:
            found.append([])
            room = most_bytes - held.json_bytes()
        found[-1].append(held)
    return found


def runs(blocks: Iterable[Held]) -> Iterator[dict]:
    """The blocks as `stored` has them, neighbours of one prompt in one run."""
    run: list[Held] = []
    for held in blocks:
        if run and not held.follows(run[-1]):
            yield _json(run)
            run = []
        run.append(held)
    if run:
        yield _json(run)


def _json(run: list[Held]) -> dict:
    first = run[0]
    body: dict = {"hashes": [held.name for held in run], "tier": first.tier}
    tokens = array("I", b"".join(held.tokens for held in run))
    if tokens:
        body |= {"tokens": tokens.tolist(), "block_size": first.block_size}
    if first.parent is not None:
        body["parent"] = first.parent
    if first.lora:
        body["lora"] = first.lora
    if first.salt:
        body["salt"] = first.salt
    return body
