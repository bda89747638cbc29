"""A small inference engine: OpenAI's API, a paged KV cache that reuses prefixes, cache events over ZeroMQ as vLLM sends them.

    python3 engine.py --shape 8b --blocks 6000 --port 8001 --events-port 5557 --replay-port 5657 --tokenizer FOLDER

The weights are random: what an answer says means nothing, how long it takes and what it reuses does. It holds its cache until
it is stopped; `POST /reset_prefix_cache` empties it.
"""

import argparse
import asyncio
import os
import pathlib
import sys
import threading
import time
import traceback

from api import Api
from blocks import BlockPool
from events import EventPublisher
from http_server import listen
from scheduler import Chunk, Model, Scheduler, StepResult
from text import Text, TokenIds
from token_model import TokenModel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", help="8b, 3b, 1b or tiny; `tokens` is a model without weights and torch")
    parser.add_argument("--device", help="default: cuda if there is one, else cpu")
    parser.add_argument("--blocks", type=int, default=6000, help="blocks of the KV cache")
    parser.add_argument("--block-tokens", type=int, default=16, help="tokens in a block")
    parser.add_argument("--context", type=int, default=32_768, help="longest prompt and answer together, in tokens")
    parser.add_argument("--step-tokens", type=int, default=8192, help="tokens that one step computes at most")
    parser.add_argument("--max-sequences", type=int, default=64, help="sequences that run at a time")
    parser.add_argument("--model", default="gpu", help="name of the model")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="folder of a tokenizer; without it only token ids are taken")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="token ids, if there is no tokenizer")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--events-port", type=int, default=5557)
    parser.add_argument("--replay-port", type=int, default=5657)
    asked = parser.parse_args()
    if asked.blocks * asked.block_tokens < asked.context:
        asked.context = asked.blocks * asked.block_tokens
    return asked


def make_model(asked: argparse.Namespace, vocabulary: int) -> Model:
    if asked.shape == "tokens":
        return TokenModel(asked.blocks, asked.block_tokens, vocabulary)
    import torch

    import torch_model

    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    # In 32 bits equal prompts have equal answers, however they are cut into chunks.
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = torch_model.SHAPES[asked.shape]
    model = torch_model.TorchModel(shape, asked.blocks, asked.block_tokens, vocabulary, asked.context, device, dtype)
    say(torch_model.compare_attention(model))
    warm_up(model, asked)
    say(f"{shape.parameters(vocabulary) / 1e9:.2f} billion parameters, {asked.blocks} blocks of {asked.block_tokens} tokens")
    if device == "cuda":
        say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {torch.cuda.memory_reserved() / 2**30:.1f} GiB")
    return model


def warm_up(model: Model, asked: argparse.Namespace) -> None:
    """Computes a full step and a few decoding ones, so that no request pays for the loading of kernels."""
    longest = min(asked.step_tokens, asked.context - 8)
    blocks = list(range(-(-(longest + 8) // asked.block_tokens)))
    token = 0
    for length in (16, longest, longest):
        begin = time.perf_counter()
        (token,) = model.step([Chunk([token] * length, 0, blocks)])
    prefill = time.perf_counter() - begin
    begin = time.perf_counter()
    for at in range(longest, longest + 8):
        (token,) = model.step([Chunk([token], at, blocks)])
    decode = (time.perf_counter() - begin) / 8
    say(f"a step with a prompt of {longest} tokens takes {1000 * prefill:.1f} ms, one behind it {1000 * decode:.1f} ms")


def say(line: str) -> None:
    print(line, flush=True)


async def serve(asked: argparse.Namespace) -> None:
    text = Text(asked.tokenizer) if asked.tokenizer else TokenIds(asked.vocabulary)
    model = make_model(asked, text.vocabulary)
    loop, publisher = asyncio.get_running_loop(), EventPublisher()

    def report(result: StepResult) -> None:
        if result.events or result.tokens:
            loop.call_soon_threadsafe(api.take, result)

    pool = BlockPool(asked.blocks, asked.block_tokens)
    scheduler = Scheduler(model, pool, report, asked.step_tokens, asked.max_sequences)
    api = Api(asked.model, text, asked.context, publisher, scheduler)
    threading.Thread(target=run_or_exit, args=[scheduler], daemon=True).start()
    await publisher.listen(asked.host, asked.events_port, asked.replay_port)
    server = await listen(asked.host, asked.port, api.answer)
    say(f"serving {asked.model} at http://{asked.host}:{asked.port}")
    await server.serve_forever()


def run_or_exit(scheduler: Scheduler) -> None:
    """An engine whose scheduler has failed must not look alive."""
    try:
        scheduler.run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    # The scheduler launches kernels all the time; the server must not wait milliseconds for its turn.
    sys.setswitchinterval(0.0005)
    asyncio.run(serve(parse()))
