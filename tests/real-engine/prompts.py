"""Prompts that share prefixes in many ways, all from one seed."""

import random

WORDS = (
    "return self value import class index error raise print while block cache router engine token request answer "
    "module string number buffer thread signal parse format encode result before after under nothing"
).split()


class Prompts:
    """A stream of requests: families with long common prefixes, growing conversations, and unrelated prompts."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.families = [self.text(self.rng.randint(40, 220)) for _ in range(8)]
        self.talks = [[] for _ in range(4)]

    def text(self, words: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(words))

    def next(self) -> tuple[str, dict]:
        """The path and the body of the next request."""
        kind = self.rng.random()
        limit = {"model": "tiny", "max_tokens": self.rng.randint(1, 24), "temperature": 0}
        if kind < 0.35:
            return "/v1/completions", {"prompt": f"{self.family()} {self.text(self.rng.randint(0, 60))}", **limit}
        if kind < 0.5:
            # Token ids, so that lengths are exact: often a whole number of blocks.
            family = self.rng.randrange(4)
            ids = [(family * 997 + at * at * 31) % 1900 + 100 for at in range(self.rng.choice([32, 64, 96, 97, 160, 161, 320]))]
            return "/v1/completions", {"prompt": ids, **limit}
        if kind < 0.65:
            return "/v1/completions", {"prompt": self.text(self.rng.randint(5, 300)), **limit}
        if kind < 0.85:
            return "/v1/chat/completions", {"messages": self.turn(), **limit}
        system = {"role": "system", "content": self.family()}
        asked = {"role": "user", "content": self.text(self.rng.randint(3, 50))}
        return "/v1/chat/completions", {"messages": [system, asked], **limit}

    def family(self) -> str:
        return self.rng.choice(self.families)

    def turn(self) -> list[dict]:
        """The next turn of a conversation; a long conversation starts again."""
        talk = self.rng.choice(self.talks)
        if len(talk) > 12:
            talk.clear()
        if talk:
            talk.append({"role": "assistant", "content": self.text(self.rng.randint(3, 20))})
        talk.append({"role": "user", "content": self.text(self.rng.randint(5, 60))})
        return list(talk)
