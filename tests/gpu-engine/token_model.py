"""A model without weights: its KV cache holds the tokens themselves, and the next token is a hash of all that it reads there.

It needs no torch. A wrong block, a wrong order or a block that was evicted too early changes its answers, which is what tests of
the cache compare.
"""

import hashlib
from array import array

from scheduler import Chunk


class TokenModel:
    def __init__(self, blocks: int, block_tokens: int, vocabulary: int):
        self._block_tokens, self._vocabulary = block_tokens, vocabulary
        self._cache = array("I", [0]) * (blocks * block_tokens)

    def step(self, chunks: list[Chunk]) -> list[int]:
        for chunk in chunks:
            for at, token in enumerate(chunk.tokens, chunk.start):
                self._cache[self._slot(chunk, at)] = token
        return [self._next(chunk) for chunk in chunks]

    def _next(self, chunk: Chunk) -> int:
        context = array("I", (self._cache[self._slot(chunk, at)] for at in range(chunk.start + len(chunk.tokens))))
        digest = hashlib.sha256(context.tobytes()).digest()
        return int.from_bytes(digest[:4], "big") % self._vocabulary

    def _slot(self, chunk: Chunk, at: int) -> int:
        return chunk.blocks[at // self._block_tokens] * self._block_tokens + at % self._block_tokens
