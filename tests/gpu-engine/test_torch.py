"""The decoder in torch, tiny and on the CPU: a cached prefix changes no answer, nor does the cut of a prompt into chunks."""

import random
import unittest

try:
    import torch

    import torch_model
except ImportError:
    torch = None

from blocks import BlockPool
from scheduler import Chunk, Scheduler, Sequence

BLOCKS, BLOCK, VOCABULARY = 200, 16, 1000


@unittest.skipIf(torch is None, "torch is not installed")
class TorchTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        shape = torch_model.SHAPES["tiny"]
        self.model = torch_model.TorchModel(shape, BLOCKS, BLOCK, VOCABULARY, 4096, "cpu", torch.float32)

    def answers(self, prompts: list[list[int]], step_tokens: int, pool: BlockPool, at_a_time: int) -> list[Sequence]:
        scheduler = Scheduler(self.model, pool, lambda _: None, step_tokens, 8)
        sequences = [Sequence(prompt, 24) for prompt in prompts]
        for first in range(0, len(sequences), at_a_time):
            for sequence in sequences[first : first + at_a_time]:
                scheduler.submit(sequence)
            while sum(scheduler.load()):
                scheduler.step()
        return sequences

    def test_a_cached_prefix_gives_the_same_answer_as_none(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                random_of = random.Random(seed)
                family = [random_of.randrange(VOCABULARY) for _ in range(400)]
                prompts = [
                    family[: random_of.choice([16, 100, 160, 400])] + [random_of.randrange(VOCABULARY) for _ in range(40)]
                    for _ in range(12)
                ]
                reused = self.answers(prompts, random_of.choice([50, 8192]), BlockPool(BLOCKS, BLOCK), 4)
                self.assertGreater(sum(one.cached for one in reused), 500)
                for sequence in reused:
                    (alone,) = self.answers([sequence.prompt], 8192, BlockPool(BLOCKS, BLOCK), 1)
                    self.assertEqual(alone.cached, 0)
                    self.assertEqual(sequence.answer(), alone.answer())
                self.assertGreater(len({token for one in reused for token in one.answer()}), 20, "the answers say too little")

    def test_attention_reads_the_blocks_of_the_table_in_their_order(self):
        tokens = list(range(40))
        straight = self.model.step([Chunk(tokens, 0, [0, 1, 2])])
        self.assertEqual(self.model.step([Chunk(tokens, 0, [9, 4, 6])]), straight)
        self.assertEqual(self.model.step([Chunk(tokens[39:], 39, [9, 4, 6])]), straight)
        # Blocks 50 to 59 are empty.
        wrong = [self.model.step([Chunk(tokens[39:], 39, table)]) for table in ([4, 9, 6], [50, 51, 6], [52, 4, 53])]
        self.assertTrue(any(answer != straight for answer in wrong))

    def test_a_batch_gives_each_sequence_what_it_gets_alone(self):
        lengths = [1, 30, 1, 7, 64]
        starts = [20, 0, 3, 16, 0]
        chunks, alone = [], []
        for number, (length, start) in enumerate(zip(lengths, starts, strict=True)):
            tokens = [(number * 131 + at * 7) % VOCABULARY for at in range(start + length)]
            table = list(range(number * 8, number * 8 + 8))
            if start:
                self.model.step([Chunk(tokens[:start], 0, table)])
            chunks.append(Chunk(tokens[start:], start, table))
            alone += self.model.step(chunks[-1:])
        self.assertEqual(self.model.step(chunks), alone)


if __name__ == "__main__":
    unittest.main()
