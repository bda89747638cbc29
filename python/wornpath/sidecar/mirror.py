"""A mirror of the engine's cache, from which snapshots and digests are made.

Engines keep several copies of a block under one hash and report the eviction of each, so copies are counted.
"""

import hashlib
from dataclasses import dataclass, field


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

    def one_by_one(self):
        """Splits it into runs of one block."""
        parent = self.parent
        for at, block in enumerate(self.blocks):
            tokens = self.tokens[at * self.block_size : (at + 1) * self.block_size]
            # A salt keys the start of a prompt, and nothing after it.
            salt = self.salt if parent is None else None
            yield Run((block,), parent, tokens, self.block_size, self.tier, self.lora, salt)
            parent = block

    def json(self) -> dict:
        body: dict = {"hashes": [name_of(block) for block in self.blocks], "tier": self.tier}
        if self.tokens:
            body |= {"tokens": list(self.tokens), "block_size": self.block_size}
        if self.parent is not None:
            body["parent"] = name_of(self.parent)
        if self.lora:
            body["lora"] = self.lora
        if self.salt and self.parent is None:
            body["salt"] = self.salt
        return body


@dataclass
class Mirror:
    """Every block of every tier, with its number of copies."""

    held: dict = field(default_factory=dict)

    def store(self, run: Run) -> None:
        for one in run.one_by_one():
            key = (run.tier, one.blocks[0])
            known = self.held.get(key)
            self.held[key] = (one, 1) if known is None else (known[0], known[1] + 1)

    def evict(self, tier: str, blocks) -> None:
        for block in blocks:
            run, copies = self.held.get((tier, block), (None, 0))
            if copies > 1:
                self.held[tier, block] = (run, copies - 1)
            elif copies == 1:
                del self.held[tier, block]

    def clear(self) -> None:
        self.held.clear()

    def snapshot(self) -> list[dict]:
        """Each block once per copy; parents come before their children, because they were stored first."""
        return [run.json() for run, copies in self.held.values() for _ in range(copies)]

    def digest(self) -> dict:
        """Per tier the number of blocks and the exclusive or of their hashes."""
        tiers: dict[str, tuple[int, int]] = {}
        for tier, block in self.held:
            count, xor = tiers.get(tier, (0, 0))
            tiers[tier] = (count + 1, xor ^ name_of(block))
        return {tier: {"count": count, "xor": f"{xor:016x}"} for tier, (count, xor) in tiers.items()}
