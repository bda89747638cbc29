"""Which blocks of the KV cache hold what: names, references, reuse and eviction.

A full block is named by a hash of its tokens and of the block before it, so its name stands for the whole prefix. Blocks that
no sequence references stay cached until their space is needed: the least recently used are evicted first, the end of a prompt
before its beginning. One block holds a name: a sequence that computed the same block beside another takes over the other's
copy and returns its own, so each name is stored and removed once.
"""

import hashlib
from array import array
from collections import OrderedDict

ROOT = hashlib.sha256(b"an empty prompt").digest()


def extend_chain(chain: list[bytes], tokens: list[int], block_tokens: int) -> None:
    """Appends the names of those full blocks of `tokens` that `chain` does not have yet."""
    for at in range(len(chain), len(tokens) // block_tokens):
        block = array("I", tokens[at * block_tokens : (at + 1) * block_tokens])
        chain.append(hashlib.sha256((chain[-1] if chain else ROOT) + block.tobytes()).digest())


class BlockPool:
    """All blocks of one engine. Every change of what is cached is appended to `events`, as vLLM describes it."""

    def __init__(self, count: int, block_tokens: int):
        self.count, self.block_tokens = count, block_tokens
        self.events: list[dict] = []
        self._references = [0] * count
        self._names: list[bytes | None] = [None] * count
        self._holders: dict[bytes, int] = {}
        # Blocks without references, in the order in which they are used next.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_tokens)

    def usage(self) -> float:
        """The share of blocks that sequences reference."""
        return 1 - len(self._free) / self.count

    def cached(self) -> set[bytes]:
        """The names of all cached blocks."""
        return set(self._holders)

    def find(self, chain: list[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of a chain."""
        found = []
        for name in chain:
            block = self._holders.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, cached: list[int], count: int) -> list[int] | None:
        """References cached blocks and `count` more; none if there are not as many. Evicts what the others held."""
        unreferenced = sum(self._references[block] == 0 for block in cached)
        if len(self._free) - unreferenced < count:
            return None
        for block in cached:
            self._reference(block)
        fresh = [self._free.popitem(last=False)[0] for _ in range(count)]
        evicted = []
        for block in fresh:
            self._references[block] = 1
            name = self._names[block]
            if name is not None:
                evicted.append(name)
                self._names[block] = None
                del self._holders[name]
        if evicted:
            self.events.append({"type": "BlockRemoved", "block_hashes": evicted, "medium": "GPU", "group_idx": 0})
        return cached + fresh

    def store(self, table: list[int], chain: list[bytes], tokens: list[int], first: int) -> None:
        """Names the blocks of a sequence from number `first` to the end of its chain, once they are computed.

        `table` has the sequence's blocks; a block that is cached already replaces the one in it.
        """
        start = first
        for at in range(first, len(chain)):
            block, holder = table[at], self._holders.get(chain[at])
            if holder is None:
                self._names[block] = chain[at]
                self._holders[chain[at]] = block
                continue
            self._announce(chain, tokens, start, at)
            start = at + 1
            if holder != block:
                self._reference(holder)
                self._release(block)
                table[at] = holder
        self._announce(chain, tokens, start, len(chain))

    def give_back(self, table: list[int]) -> None:
        """Ends a sequence's references. Its last block is evicted first."""
        for block in reversed(table):
            self._release(block)

    def clear(self) -> bool:
        """Forgets every cached block, unless a sequence references one."""
        if len(self._free) < self.count:
            return False
        self._names = [None] * self.count
        self._holders.clear()
        self.events.append({"type": "AllBlocksCleared"})
        return True

    def _reference(self, block: int) -> None:
        if self._references[block] == 0:
            del self._free[block]
        self._references[block] += 1

    def _release(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free[block] = None
            # A block without a name is of no use to anybody: it is used before any cached one.
            if self._names[block] is None:
                self._free.move_to_end(block, last=False)

    def _announce(self, chain: list[bytes], tokens: list[int], start: int, end: int) -> None:
        if start == end:
            return
        self.events.append(
            {
                "type": "BlockStored",
                "block_hashes": chain[start:end],
                "parent_block_hash": chain[start - 1] if start else None,
                "token_ids": tokens[start * self.block_tokens : end * self.block_tokens],
                "block_size": self.block_tokens,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * (end - start),
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )
