"""An engine without events, with the sidecar in it: prompts come and go by a seed.

Arguments: the folder of the Python package, the router's address. Reads numbers of steps, one a line; after each, prints how many blocks
it holds and the exclusive or of their names. Ends, with a good-bye, when its input does.
"""

import random
import sys

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True

from wornpath.sidecar import Reporter  # noqa: E402
from wornpath.sidecar.mirror import name_of  # noqa: E402

rng = random.Random(3)
reporter = Reporter(sys.argv[2], "pod", flush=0.02, digest=0.2, sync=60.0)
held = []  # every copy, least lately stored first
for line in sys.stdin:
    for _ in range(int(line)):
        family, length = rng.randrange(6), rng.randrange(1, 8)
        blocks = [f"{family}-{at}".encode() for at in range(length)]
        first = next((at for at, block in enumerate(blocks) if block not in held), length)
        # Now and then a prompt is computed twice at once, and its blocks are there twice.
        first = 0 if rng.random() < 0.1 else first
        if first < length:
            tokens = [family * 100 + at for at in range(first * 2, length * 2)]
            reporter.stored(blocks[first:], blocks[first - 1] if first else None, tokens, 2)
            held += blocks[first:]
        while len(held) > 24:
            # From the end of some prompt, so that no block outlives what comes before it.
            block = max(held, key=lambda one: (held.count(one) > 1, one.split(b"-")[1], one))
            held.reverse()
            held.remove(block)
            held.reverse()
            reporter.evicted([block])
    xor = 0
    for block in set(held):
        xor ^= name_of(block)
    print(len(set(held)), xor, flush=True)
reporter.close()
