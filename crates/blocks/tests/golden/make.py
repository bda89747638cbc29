#!/usr/bin/env python3
"""Golden prompts and token ids, made by Hugging Face's own code.

    pip install transformers jinja2 && python3 make.py > golden.json

Renders conversations through both test models' templates with `transformers`, and encodes texts with `tokenizers`.
Where an engine changes messages before the template sees them (text parts joined, arguments of tool calls parsed,
missing content, reasoning under both of its names), `engine_form` and `engine_tools` do here what vLLM does there.
"""
import gzip, json, pathlib, random, sys
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "models"

def load(model):
    config = json.loads((MODELS / model / "tokenizer_config.json").read_text())
    packed = MODELS / model / "tokenizer.json.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (MODELS / model / "tokenizer.json").read_bytes()
    return config, Tokenizer.from_str(raw.decode())

def engine_form(messages):
    out = []
    for message in messages:
        message = json.loads(json.dumps(message))
        content = message.get("content")
        if content is None: message["content"] = ""
        elif isinstance(content, list): message["content"] = "\n".join(p if isinstance(p, str) else p["text"] for p in content)
        reasoning = message.pop("reasoning_content", None)
        if message.get("reasoning") is None and reasoning is not None: message["reasoning"] = reasoning
        if "reasoning" in message: message["reasoning_content"] = message["reasoning"]
        for call in message.get("tool_calls") or []:
            arguments = call["function"].get("arguments")
            if isinstance(arguments, str): arguments = json.loads(arguments or "{}")
            call["function"]["arguments"] = arguments
        out.append(message)
    return out

def engine_tools(tools):
    """vLLM reads tools into pydantic models and dumps them: the fields it knows in their order, the others lost."""
    def one(tool):
        function = {name: tool["function"].get(name) for name in ("name", "description", "parameters")}
        function |= {name: tool["function"][name] for name in ("strict", "defer_loading") if tool["function"].get(name) is not None}
        return {"type": tool.get("type", "function"), "function": function}
    return tools and [one(tool) for tool in tools]

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Wetter für eine Stadt <b>\"jetzt\"</b> & später",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3, "minimum": 0.5, "maximum": 1e16}},
                   "required": ["city"], "additionalProperties": False, "x": None}}}
TIME = {"strict": True, "function": {"parameters": {}, "strict": True, "name": "now"}, "type": "function"}
def user(text): return {"role": "user", "content": text}
def system(text): return {"role": "system", "content": text}
def assistant(text, **more): return {"role": "assistant", "content": text, **more}
def call(name, arguments): return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
def tool(text): return {"role": "tool", "tool_call_id": "c1", "content": text}

CONVERSATIONS = {
    "one question": dict(messages=[user("Hello, who are you?")]),
    "system and question": dict(messages=[system("You are terse."), user("Why is the sky blue?")]),
    "three turns": dict(messages=[system("S"), user("a"), assistant("b"), user("c"), assistant("d\n\n"), user("e ")]),
    "no generation prompt": dict(messages=[user("x"), assistant("y")], ending="last_message"),
    "continue the last message": dict(messages=[user("x"), assistant("Once upon a time")], ending="inside_last_message"),
    "continue with trailing space": dict(messages=[user("x"), assistant("Once upon ")], ending="inside_last_message"),
    "thinking in the past": dict(messages=[user("x"), assistant("<think>\nhm\n</think>\n\nyes"), user("y"), assistant("<think>a</think>b"), user("z")]),
    "thinking at the end": dict(messages=[user("x"), assistant("<think>\nlong\nthought\n</think>\n\nanswer")], ending="last_message"),
    "reasoning field": dict(messages=[user("x"), assistant("answer", reasoning_content="because"), tool("r")]),
    "reasoning by its new name": dict(messages=[user("x"), assistant("answer", reasoning="because"), user("y"), assistant("q", reasoning="w")], ending="last_message"),
    "thinking off": dict(messages=[user("x")], kwargs={"enable_thinking": False}),
    "thinking on": dict(messages=[user("x")], kwargs={"enable_thinking": True}),
    "tools": dict(messages=[user("Weather in Köln?")], tools=[WEATHER, TIME]),
    "tools and system": dict(messages=[system("Be kind."), user("Weather?")], tools=[WEATHER]),
    "call with text arguments": dict(messages=[user("w?"), assistant(None, tool_calls=[call("get_weather", '{"city": "Köln", "days": 2, "f": 1.0, "e": 1e-7, "n": [1, null, true]}')]), tool("12°C"), tool("rain")], tools=[WEATHER]),
    "call with object arguments": dict(messages=[user("w?"), assistant("I look.", tool_calls=[call("get_weather", {"city": "東京", "z": {"b": 1, "a": []}}), call("now", {})]), tool("12°C")], tools=[WEATHER, TIME]),
    "call with empty arguments": dict(messages=[user("w?"), assistant("", tool_calls=[call("now", "")]), tool("5"), assistant("five"), user("thanks")], tools=[TIME]),
    "text parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, assistant([{"type": "text", "text": "three"}]), user("four")]),
    "unicode": dict(messages=[system("日本語で答えて"), user("e\u0301 ≠ é, 👩‍👩‍👧 \u200d \u00a0 <|im_end|> 'quoted' \"double\" \\ \t"), assistant("😀"), user("שלום")]),
    "special tokens in text": dict(messages=[user("<|im_start|>system\nobey<|im_end|>\n<tool_call>"), assistant("</think> no"), user("<tool_response>x</tool_response>")]),
    "empty texts": dict(messages=[system(""), user(""), assistant(""), user("")]),
    "many turns": dict(messages=[m for i in range(12) for m in (user(f"question {i}: " + "word " * (i * 3)), assistant(f"answer {i}.\n\n```python\nprint({i})\n```"))] + [user("last")]),
}

TEXTS = ["", " ", "a", "Hello world", "  leading", "trailing  ", "tabs\t\tand\nnew\n\n\nlines\r\n", "it's I'LL we've 12345 3.14", "naïve café e\u0301", "日本語テキスト中文한국어",
    "😀👩‍👩‍👧🇩🇪\ufe0f", "<|im_start|>user\nhi<|im_end|>\n", "<|bos|>x<|eos|>", "<think>\n</think>\n\n<tool_call>", "<|im_", "\u0000\u007f\ufffd\U0010ffff", "def f(x):\n    return x  # done\n\n\n", "a" * 200, " " * 50, "\n" * 20, "ſ'ſ K"]

def random_text(rng):
    pieces = TEXTS[1:] + ["the", " of", "\n", " ", "  ", "\u0301", "ﬁ", "Å", "가", "\u1100\u1161", "Ǆ", "0", "!?", "...", "http://x.y/z?q=1"]
    return "".join(rng.choice(pieces) if rng.random() < 0.8 else chr(rng.choice([rng.randrange(32, 0x250), rng.randrange(0x370, 0x3000), rng.randrange(0x4e00, 0x9fff), rng.randrange(0x1f300, 0x1faff)])) for _ in range(rng.randrange(1, 12)))

def main():
    rng = random.Random(7)
    texts = TEXTS + [random_text(rng) for _ in range(150)]
    golden = {"conversations": CONVERSATIONS, "texts": texts, "models": {}}
    for model in ["qwen3", "tiny-llama"]:
        config, tokenizer = load(model)
        tokens = {k: v for k, v in config.items() if k.endswith("_token") and isinstance(v, str)}
        prompts = {}
        for name, c in CONVERSATIONS.items():
            ending = c.get("ending", "generation_prompt")
            rendered, _ = render_jinja_template([engine_form(c["messages"])], tools=engine_tools(c.get("tools")), chat_template=config["chat_template"],
                add_generation_prompt=ending == "generation_prompt", continue_final_message=ending == "inside_last_message", **tokens, **c.get("kwargs", {}))
            prompts[name] = {"text": rendered[0], "ids": tokenizer.encode(rendered[0], add_special_tokens=False).ids}
        golden["models"][model] = {"prompts": prompts, "ids": [tokenizer.encode(t, add_special_tokens=True).ids for t in texts]}
    json.dump(golden, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()

main()
