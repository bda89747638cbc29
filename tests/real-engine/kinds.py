"""Requests of all kinds that clients send, which share prefixes with earlier ones, all from one seed."""

import random

from prompts import Prompts

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
# Some templates accept only ids of nine letters and digits.
CALL_ID = "call00001"
ARGUMENTS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": ARGUMENTS}}
    for name in ("look", "wait", "count")
]


class Kinds:
    """A stream of requests. Conversations go on from what the engine has really answered."""

    def __init__(self, seed: int, vocabulary: int, engine: str, has_extra_keys: bool):
        self.prompts, self.rng, self.vocabulary = Prompts(seed), random.Random(seed), vocabulary
        self.sent: list[tuple[str, dict]] = []
        self.talks: list[list[dict]] = []
        self.all = [
            self.chat, self.streamed, self.talk, self.talk, self.text, self.ids, self.tools, self.calls, self.parts, self.effort,
            self.salted, self.salted_text, self.continued, self.response, self.plain_response, self.response_with_call, self.anthropic,
            self.anthropic_with_call, self.repeated, self.repeated,
        ]  # fmt: skip
        self.all += [self.salted_response, self.truncated] if engine == "vllm" else []
        self.all += [self.extra_key] * 3 if has_extra_keys else []

    def next(self) -> tuple[str, str, dict]:
        """The kind, the path and the body of the next request."""
        kind = self.rng.choice(self.all)
        path, body = kind()
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        # SGLang refuses responses with a limit of a few tokens.
        limits = [24, 32] if path == RESPONSES else [1, 1, 4, 24]
        body = {"temperature": 0, limit: self.rng.choice(limits), **body}
        self.sent = [*self.sent[-40:], (path, body)]
        return kind.__name__.replace("_", " "), path, body

    def learn(self, body: dict, answer: dict) -> None:
        """Keeps the answer of a chat, for `talk` to go on from."""
        if body.get("messages") and not body.get("tools") and answer.get("choices"):
            content = (answer["choices"][0].get("message") or {}).get("content")
            if content and body["messages"][-1]["role"] == "user" and isinstance(body["messages"][-1]["content"], str):
                self.talks = [*self.talks[-8:], [*body["messages"], {"role": "assistant", "content": content}]]

    def ask(self) -> list[dict]:
        """A conversation: a system prompt of a family, and often earlier turns."""
        messages = [{"role": "system", "content": self.prompts.family()}]
        talk = random.Random(f"{messages[0]['content']}{self.rng.randrange(3)}")
        for _ in range(self.rng.randrange(4)):
            words = talk.choices("which way does the worn path go".split(), k=talk.randint(4, 40))
            messages.append({"role": "user", "content": " ".join(words)})
            messages.append({"role": "assistant", "content": f"answer {talk.random()}"})
        return [*messages, {"role": "user", "content": self.prompts.text(self.rng.randint(3, 40))}]

    def repeated(self):
        return self.rng.choice(self.sent) if self.sent else self.chat()

    def chat(self):
        return CHAT, {"messages": self.ask()}

    def streamed(self):
        return CHAT, {"messages": self.ask(), "stream": True, "stream_options": {"include_usage": True}}

    def talk(self):
        if not self.talks:
            return self.chat()
        messages = [*self.rng.choice(self.talks), {"role": "user", "content": self.prompts.text(self.rng.randint(3, 20))}]
        return CHAT, {"messages": messages, "max_tokens": 40}

    def text(self):
        return TEXT, {"prompt": f"{self.prompts.family()} {self.prompts.text(self.rng.randint(0, 60))}"}

    def ids(self):
        family = self.rng.randrange(4)
        count = self.rng.choice([32, 64, 96, 97, 160, 161, 320])
        return TEXT, {"prompt": [(family * 997 + at * at * 31) % (self.vocabulary - 200) + 100 for at in range(count)]}

    def tools(self):
        return CHAT, {"messages": self.ask(), "tools": TOOLS[: self.rng.randint(1, 3)], "tool_choice": "auto"}

    def calls(self):
        call = {"id": CALL_ID, "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
        messages = [*self.ask(), {"role": "assistant", "content": "I look.", "tool_calls": [call]}]
        messages.append({"role": "tool", "tool_call_id": CALL_ID, "content": self.prompts.text(10)})
        return CHAT, {"messages": messages, "tools": TOOLS}

    def parts(self):
        return CHAT, {"messages": [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in self.ask()]}

    def effort(self):
        return CHAT, {"messages": self.ask(), "reasoning_effort": self.rng.choice(["none", "low", "high"])}

    def salted(self):
        return CHAT, {"messages": self.ask(), "cache_salt": self.rng.choice(["a", "b"])}

    def salted_text(self):
        return TEXT, {"prompt": self.prompts.family(), "cache_salt": self.rng.choice(["a", "b"])}

    def extra_key(self):
        return CHAT, {"messages": self.ask(), "extra_key": self.rng.choice(["a", "b"])}

    def truncated(self):
        return TEXT, {"prompt": self.prompts.family(), "truncate_prompt_tokens": self.rng.choice([64, 100])}

    def continued(self):
        messages = [*self.ask(), {"role": "assistant", "content": "Once upon"}]
        return CHAT, {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    def response(self):
        system, *rest = self.ask()
        return RESPONSES, {"instructions": system["content"], "input": rest}

    def plain_response(self):
        _, *rest = self.ask()
        return RESPONSES, {"input": rest}

    def salted_response(self):
        path, body = self.response()
        return path, {**body, "cache_salt": self.rng.choice(["a", "b"])}

    def response_with_call(self):
        system, *rest = self.ask()
        items = [
            {"type": "function_call", "call_id": CALL_ID, "name": "look", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": CALL_ID, "output": self.prompts.text(8)},
        ]
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        return RESPONSES, {"instructions": system["content"], "input": [*rest, *items], "tools": tools}

    def anthropic(self):
        system, *rest = self.ask()
        return MESSAGES, {"system": system["content"], "messages": rest}

    def anthropic_with_call(self):
        system, *rest = self.ask()
        used = {"type": "tool_use", "id": CALL_ID, "name": "look", "input": {"a": 1}}
        found = {"type": "tool_result", "tool_use_id": CALL_ID, "content": self.prompts.text(8)}
        messages = [*rest, {"role": "assistant", "content": [used]}, {"role": "user", "content": [found]}]
        tools = [{"name": tool["function"]["name"], "description": "", "input_schema": ARGUMENTS} for tool in TOOLS]
        return MESSAGES, {"system": system["content"], "messages": messages, "tools": tools}
