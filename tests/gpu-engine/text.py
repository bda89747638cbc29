"""Between text and tokens, with a model's own tokenizer and chat template."""

import json
import pathlib

Message = dict[str, object]


class Text:
    """The tokenizer of a model, from a folder with `tokenizer.json` and `tokenizer_config.json`."""

    def __init__(self, folder: pathlib.Path):
        # Here, so that an engine that is only sent token ids needs neither.
        import jinja2.ext
        import jinja2.sandbox
        import tokenizers

        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        # As Hugging Face renders templates.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(settings.get("chat_template") or "{{ raise('no chat template') }}")
        self._special = {name: token_text(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        self.vocabulary = self._tokenizer.get_vocab_size()
        end = self._tokenizer.token_to_id(self._special["eos_token"])
        self.stop_tokens = frozenset() if end is None else frozenset({end})

    def encode(self, prompt: str) -> list[int]:
        return self._tokenizer.encode(prompt).ids

    def encode_chat(self, messages: list[Message]) -> list[int]:
        rendered = self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        return self._tokenizer.encode(rendered, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


class TokenIds:
    """Without a tokenizer: prompts are token ids, and answers are their digits."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        self.stop_tokens: frozenset[int] = frozenset()

    def encode(self, prompt: str) -> list[int]:
        raise ValueError("this engine has no tokenizer; send the prompt as token ids, or start it with --tokenizer")

    def encode_chat(self, messages: list[Message]) -> list[int]:
        raise ValueError("this engine has no tokenizer; send a completion with token ids, or start it with --tokenizer")

    def decode(self, tokens: list[int]) -> str:
        return "".join(f" {token}" for token in tokens)


class Stream:
    """The text of an answer that grows by tokens. What ends within a character is held until the character is whole."""

    def __init__(self, text: Text | TokenIds):
        self._text, self._sent = text, 0
        self._tokens: list[int] = []

    def add(self, token: int, is_last: bool) -> str:
        """The text that has become final."""
        self._tokens.append(token)
        whole = self._text.decode(self._tokens)
        if whole.endswith("\ufffd") and not is_last:
            return ""
        new, self._sent = whole[self._sent :], len(whole)
        return new


def token_text(setting: object) -> str:
    """A special token of `tokenizer_config.json`: text, or a map with it."""
    if isinstance(setting, dict):
        setting = setting.get("content")
    return setting if isinstance(setting, str) else ""
