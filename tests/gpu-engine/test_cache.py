"""The cache and the scheduler, with a model that needs no torch: reuse changes no answer, and events tell what is cached."""

import random
import unittest

from blocks import ROOT, BlockPool, extend_chain
from scheduler import Scheduler, Sequence, StepResult
from token_model import TokenModel

BLOCK, VOCABULARY = 4, 1000


class Announced:
    """What the events say is cached, as a naive reader understands them."""

    def __init__(self):
        self.parents: dict[bytes, bytes] = {}

    def take(self, event: dict) -> None:
        match event["type"]:
            case "BlockStored":
                chain: list[bytes] = []
                parent = event["parent_block_hash"] or ROOT
                if parent != ROOT and parent not in self.parents:
                    raise AssertionError("a block is stored behind one that is not cached")
                tokens = event["token_ids"]
                if event["parent_block_hash"] is None:
                    extend_chain(chain, tokens, BLOCK)
                    if chain != event["block_hashes"]:
                        raise AssertionError("the tokens of an event do not hash to its names")
                if len(tokens) != BLOCK * len(event["block_hashes"]):
                    raise AssertionError("an event has too few or too many tokens")
                for name in event["block_hashes"]:
                    if name in self.parents:
                        raise AssertionError("a block is stored twice")
                    self.parents[name], parent = parent, name
            case "BlockRemoved":
                for name in event["block_hashes"]:
                    del self.parents[name]
            case "AllBlocksCleared":
                self.parents.clear()


Prompt = tuple[list[int], int]  # its tokens, and the most tokens of its answer


def run(pool: BlockPool, prompts: list[Prompt], step_tokens: int, at_a_time: int) -> tuple[list[Sequence], Announced]:
    """Answers all prompts, so many at a time, and checks the events after every step."""
    announced = Announced()
    ended: list[Sequence] = []

    def report(result: StepResult) -> None:
        for event in result.events:
            announced.take(event)
        if set(announced.parents) != pool.cached():
            raise AssertionError("events and cache differ")
        if not set(announced.parents.values()) <= {ROOT, *announced.parents}:
            raise AssertionError("a block was evicted before one behind it")
        ended.extend(sequence for sequence, _, end in result.tokens if end)

    scheduler = Scheduler(TokenModel(pool.count, BLOCK, VOCABULARY), pool, report, step_tokens, max_sequences=8)
    sequences = [Sequence(prompt, most) for prompt, most in prompts]
    waiting, steps = iter(sequences), 0
    for number in range(len(sequences)):
        while number >= len(ended):
            while sum(scheduler.load()) < at_a_time and (one := next(waiting, None)):
                scheduler.submit(one)
            scheduler.step()
            steps += 1
            if steps > 100 * len(prompts):
                raise AssertionError("the scheduler makes no progress")
    return sequences, announced


def family_prompts(random_of: random.Random, count: int) -> list[Prompt]:
    """Prompts that share prefixes, some a whole number of blocks, some equal."""
    families = [[random_of.randrange(VOCABULARY) for _ in range(60)] for _ in range(4)]
    prompts = []
    for _ in range(count):
        family = random_of.choice(families)
        own = [random_of.randrange(VOCABULARY) for _ in range(random_of.choice([0, 0, 1, 7, 16]))]
        prompts.append((family[: random_of.choice([1, 4, 16, 33, 60])] + own, random_of.randint(1, 20)))
    return prompts


class CacheTest(unittest.TestCase):
    def test_reuse_and_eviction_change_no_answer(self):
        for seed in range(30):
            with self.subTest(seed=seed):
                random_of = random.Random(seed)
                prompts = family_prompts(random_of, 60)
                small = BlockPool(random_of.choice([25, 40, 80]), BLOCK)
                reused, _ = run(small, prompts, random_of.choice([3, 16, 64]), at_a_time=random_of.choice([1, 3, 8]))
                self.assertGreater(sum(one.cached for one in reused), 0)
                for sequence, (prompt, most) in zip(reused, prompts, strict=True):
                    (alone,), _ = run(BlockPool(25, BLOCK), [(prompt, most)], 64, 1)
                    self.assertEqual(alone.cached, 0)
                    self.assertEqual(sequence.answer(), alone.answer())

    def test_the_last_token_of_a_cached_prompt_is_computed(self):
        prompt = list(range(16))
        (first, second), _ = run(BlockPool(40, BLOCK), [(prompt, 1)] * 2, 64, 1)
        self.assertEqual((first.cached, second.cached), (0, 12))

    def test_an_answer_is_cached_but_for_its_last_token(self):
        pool = BlockPool(40, BLOCK)
        (first,), _ = run(pool, [(list(range(10)), 7)], 64, 1)
        chain: list[bytes] = []
        extend_chain(chain, first.tokens, BLOCK)
        self.assertEqual(len(first.tokens), 17)
        self.assertEqual(len(pool.find(chain)), 4)

    def test_equal_prompts_at_once_are_stored_once_and_leave_no_block_behind(self):
        pool = BlockPool(100, BLOCK)
        sequences, announced = run(pool, [(list(range(40)), 5)] * 8, 1000, 8)
        self.assertEqual(len({tuple(one.answer()) for one in sequences}), 1)
        self.assertEqual(len(announced.parents), 11)
        self.assertEqual(pool.usage(), 0)

    def test_a_cancelled_sequence_returns_its_blocks(self):
        pool = BlockPool(40, BLOCK)
        scheduler = Scheduler(TokenModel(40, BLOCK, VOCABULARY), pool, lambda _: None, 8, 8)
        sequence = Sequence(list(range(40)), 50)
        scheduler.submit(sequence)
        scheduler.step()
        self.assertGreater(pool.usage(), 0)
        scheduler.cancel(sequence)
        scheduler.step()
        self.assertEqual((pool.usage(), scheduler.load()), (0, (0, 0)))
        self.assertEqual(len(pool.cached()), 2)

    def test_a_reset_waits_for_nobody_and_is_refused_while_sequences_run(self):
        pool = BlockPool(40, BLOCK)
        seen: list[dict] = []
        scheduler = Scheduler(TokenModel(40, BLOCK, VOCABULARY), pool, lambda result: seen.extend(result.events), 100, 8)
        scheduler.submit(Sequence(list(range(16)), 2))
        scheduler.step()
        refused = scheduler.reset_cache()
        scheduler.step()
        done = scheduler.reset_cache()
        scheduler.step()
        self.assertEqual((refused.result(0), done.result(0)), (False, True))
        self.assertEqual(([event["type"] for event in seen], pool.cached()), (["BlockStored", "AllBlocksCleared"], set()))


if __name__ == "__main__":
    unittest.main()
