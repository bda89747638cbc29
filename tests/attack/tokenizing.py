"""Tokenizing: prompts that take long to tokenize must not delay other tenants."""

import gzip
import threading
import time

from lab import ROOT, TINY_TOKENIZER, attack, bearer, tenants
from wire import Engine

MB = 1_000_000
# Prompts without a place to cut them: one word, or one run of spaces, digits, dots or letters of three bytes.
UNBROKEN = {
    "letters": "x",
    "mixed letters": "abcdefgh",
    "spaces": " ",
    "digits": "7",
    "dots": ".",
    "Chinese": "\u5b57",
    "joined emoji": "\U0001f469\u200d",
}
# Text as people write it, 108 KB.
ORDINARY = "The quick brown fox jumps over the lazy dog, and then it rests. " * 1690


def unbroken(piece, size=15 * MB):
    return (piece * (size // len(piece.encode()) + 1))[: size // len(piece.encode()) * len(piece)]


class Neighbour:
    """Tenant B, whose prompts of 108 KB are timed."""

    def __init__(self, lab, router):
        self.lab, self.router, self.sent = lab, router, 0
        self.alone = max(self.one() for _ in range(4))

    def one(self):
        """The time that one prompt takes."""
        self.sent += 1
        started = time.monotonic()
        body = {"model": "m", "prompt": f"{self.sent} {ORDINARY}", "max_tokens": 1}
        answer = self.router.post(body=body, headers=bearer("b"))
        self.lab.check(answer.status == 200, f"tenant B got {answer.status} {answer.text[:100]}")
        return time.monotonic() - started

    def beside(self, name, path, make, seconds=3):
        """Times prompts while tenant A sends, until that is over or the seconds have passed."""
        attack = threading.Thread(target=burst, args=(self.router, path, make), daemon=True)
        attack.start()
        time.sleep(0.2)
        deadline, times = time.monotonic() + seconds, [self.one()]
        while attack.is_alive() and time.monotonic() < deadline:
            times.append(self.one())
        slowest = max(times)
        shown = f"{name}: a prompt of tenant B took {slowest:.1f} s instead of {self.alone:.1f} s (limit: 1.5 s more)"
        self.lab.check(slowest < self.alone + 1.5, shown)


def start(lab, tokenizer):
    engine = lab.own(Engine())
    config = {
        "pods": [engine.pod()],
        "models": [{"name": "m", "tokenizer": str(tokenizer), "block_size": 16}],
        "tenants": tenants("a", "b"),
    }
    return lab.serve(config)


def burst(router, path, make):
    """Four bodies of tenant A at once."""

    def send(number):
        try:
            router.post(path, make(number), bearer("a"), timeout=60)
        except OSError:
            pass  # The router ends with the attack.

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("four prompts of 15 MB without a break beside another tenant's prompt of 108 KB", alone=True)
def without_a_break(lab):
    for name in ("letters", "spaces"):
        router = start(lab, TINY_TOKENIZER)
        text = unbroken(UNBROKEN[name])
        make = lambda number, text=text: {"model": "m", "prompt": f"{number}{text}", "max_tokens": 1}  # noqa: E731
        Neighbour(lab, router).beside(name, "/v1/completions", make)
        router.end()


@attack("shorter prompts without a break of other kinds, in chats and lists", alone=True)
def other_kinds(lab):
    router = start(lab, TINY_TOKENIZER)
    neighbour = Neighbour(lab, router)
    for name, piece in UNBROKEN.items():
        text = unbroken(piece, 2 * MB)

        def make(number, text=text):
            message = {"role": "user", "content": f"{number}{text}"}
            return {"model": "m", "messages": [message], "max_tokens": 1}

        neighbour.beside(f"a chat of {name}", "/v1/chat/completions", make, 1)
    many = {"model": "m", "prompt": ["x"] * 200_000, "max_tokens": 1}
    neighbour.beside("200,000 prompts in one request", "/v1/completions", lambda _: many, 1)
    lab.check(router.memory("VmHWM") < 1500, f"{router.memory('VmHWM'):.0f} MiB")


@attack("four prompts of 15 MB without a break with the tokenizer of Qwen3", alone=True)
def byte_pairs(lab):
    packed = ROOT / "crates/blocks/tests/models/qwen3"
    folder = lab.folder / "qwen3"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(gzip.decompress((packed / "tokenizer.json.gz").read_bytes()))
    (folder / "tokenizer_config.json").write_bytes((packed / "tokenizer_config.json").read_bytes())
    router = start(lab, folder)
    text = unbroken(UNBROKEN["mixed letters"])
    make = lambda number: {"model": "m", "prompt": f"{number}{text}", "max_tokens": 1}  # noqa: E731
    Neighbour(lab, router).beside("letters", "/v1/completions", make)
