"""Continuous batching with chunked prefill: which tokens of which sequences the next step computes.

A step gives every decoding sequence one token and spends the rest of its budget on prompts, first come first served. A
sequence is admitted when the blocks of its prompt and of its longest answer are free, so nothing is ever preempted. Blocks
can be reused after the step that computed them.
"""

import collections
import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable
from typing import Protocol

from blocks import BlockPool, extend_chain


@dataclasses.dataclass
class Chunk:
    """The tokens of one sequence that a step computes, and where the sequence's KV cache is."""

    tokens: list[int]
    start: int  # tokens before them, which are cached
    blocks: list[int]


class Model(Protocol):
    """Computes chunks, and keeps keys and values of their tokens in the blocks that they name."""

    def step(self, chunks: list[Chunk]) -> list[int]:
        """The most likely next token behind each chunk."""


@dataclasses.dataclass(eq=False)
class Sequence:
    """A prompt and its answer so far."""

    prompt: list[int]
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    tokens: list[int] = dataclasses.field(default_factory=list)  # the prompt and the answer
    chain: list[bytes] = dataclasses.field(default_factory=list)  # names of its full blocks
    table: list[int] = dataclasses.field(default_factory=list)  # its blocks
    cached: int = 0  # tokens of the prompt that were cached when it was admitted
    computed: int = 0  # tokens whose keys and values are in its blocks
    stored: int = 0  # blocks that have their names
    cancelled: bool = False

    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def end(self) -> str | None:
        """Why the answer has ended, in OpenAI's words."""
        if len(self.tokens) > len(self.prompt) and self.tokens[-1] in self.stop_tokens:
            return "stop"
        return "length" if len(self.tokens) - len(self.prompt) >= self.max_tokens else None


@dataclasses.dataclass
class StepResult:
    """What one step changed: in the cache, and for each sequence that got a token."""

    events: list[dict]
    tokens: list[tuple[Sequence, int, str | None]]  # the token, and why the answer has ended


@dataclasses.dataclass
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0


class Scheduler:
    """Runs a model in a thread of its own. `report` is called in that thread, once after each step."""

    def __init__(
        self, model: Model, pool: BlockPool, report: Callable[[StepResult], None], step_tokens: int, max_sequences: int
    ):
        self.counters = Counters()
        self.pool = pool
        self._model, self._report = model, report
        self._step_tokens, self._max_sequences = step_tokens, max_sequences
        self._changed = threading.Condition()
        self._waiting: collections.deque[Sequence] = collections.deque()
        self._running: list[Sequence] = []
        self._resets: list[concurrent.futures.Future[bool]] = []
        self._stopped = False

    def submit(self, sequence: Sequence) -> None:
        """Adds a sequence to the queue."""
        sequence.tokens = list(sequence.prompt)
        extend_chain(sequence.chain, sequence.prompt, self.pool.block_tokens)
        with self._changed:
            self._waiting.append(sequence)
            self._changed.notify()

    def cancel(self, sequence: Sequence) -> None:
        """Drops a sequence before the next step; what it has computed stays cached."""
        with self._changed:
            sequence.cancelled = True
            self._changed.notify()

    def reset_cache(self) -> concurrent.futures.Future[bool]:
        """Clears the cache before the next step; the result is false if sequences are running."""
        done: concurrent.futures.Future[bool] = concurrent.futures.Future()
        with self._changed:
            self._resets.append(done)
            self._changed.notify()
        return done

    def load(self) -> tuple[int, int]:
        """How many sequences run, and how many wait."""
        return len(self._running), len(self._waiting)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Computes until it is stopped."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._waiting or self._running or self._resets)
                if self._stopped:
                    return
            self.step()

    def step(self) -> None:
        """Does one step, or nothing if no sequence is there."""
        self._drop_cancelled()
        self._do_resets()
        planned = self._plan()
        if planned:
            chunks = [
                Chunk(one.tokens[one.computed : one.computed + count], one.computed, one.table) for one, count in planned
            ]
            found = self._model.step(chunks)
            self.counters.steps += 1
            outputs = [self._advance(*plan, token) for plan, token in zip(planned, found, strict=True)]
        else:
            outputs = []
        events, self.pool.events = self.pool.events, []
        self._report(StepResult(events, [output for output in outputs if output]))

    def _plan(self) -> list[tuple[Sequence, int]]:
        """The sequences of the next step, each with how many of its tokens are computed."""
        budget, planned = self._step_tokens, []
        prefilling = [one for one in self._running if len(one.tokens) - one.computed > 1]
        decoding = [one for one in self._running if len(one.tokens) - one.computed == 1]
        for sequence in decoding + prefilling:
            count = min(budget, len(sequence.tokens) - sequence.computed)
            if count:
                planned.append((sequence, count))
                budget -= count
        while budget and self._waiting and len(self._running) < self._max_sequences and self._admit(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._running.append(sequence)
            count = min(budget, len(sequence.tokens) - sequence.computed)
            planned.append((sequence, count))
            budget -= count
        return planned

    def _admit(self, sequence: Sequence) -> bool:
        """Gives a sequence its blocks, if there are enough."""
        pool = self.pool
        # The last token of a prompt is always computed, for the logits behind it.
        reusable = (len(sequence.prompt) - 1) // pool.block_tokens
        cached = pool.find(sequence.chain[:reusable])
        table = pool.take(cached, pool.blocks_for(len(sequence.prompt) + sequence.max_tokens) - len(cached))
        if table is None:
            return False
        sequence.table = table
        sequence.stored = len(cached)
        sequence.cached = sequence.computed = len(cached) * pool.block_tokens
        self.counters.prompt_tokens += len(sequence.prompt)
        self.counters.cached_tokens += sequence.cached
        return True

    def _advance(self, sequence: Sequence, count: int, token: int) -> tuple[Sequence, int, str | None] | None:
        """Records a computed chunk; the token counts if the sequence is computed to its end."""
        block_tokens = self.pool.block_tokens
        sequence.computed += count
        is_complete = sequence.computed == len(sequence.tokens)
        full = sequence.computed // block_tokens
        if full > sequence.stored:
            extend_chain(sequence.chain, sequence.tokens[: full * block_tokens], block_tokens)
            self.pool.store(sequence.table, sequence.chain[:full], sequence.tokens, sequence.stored)
            sequence.stored = full
        if not is_complete:
            return None
        sequence.tokens.append(token)
        self.counters.generated_tokens += 1
        end = sequence.end()
        if end:
            self._finish(sequence)
        return sequence, token, end

    def _finish(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.table)
        self._running.remove(sequence)

    def _drop_cancelled(self) -> None:
        with self._changed:
            self._waiting = collections.deque(one for one in self._waiting if not one.cancelled)
        for sequence in [one for one in self._running if one.cancelled]:
            self._finish(sequence)

    def _do_resets(self) -> None:
        with self._changed:
            resets, self._resets = self._resets, []
        for done in resets:
            done.set_result(self.pool.clear())
