"""The requests whose prompts are compared: every way to write a prompt, field by field.

Each is a name, a path and a body. Bodies are what clients send: nothing here knows how an engine reads them.
"""

import itertools

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für eine Stadt <b>\"jetzt\"</b> & später",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "東京"]},
                "days": {"type": "integer", "default": 3, "minimum": 0.5, "maximum": 1e16},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def user(content, **more):
    return {"role": "user", "content": content, **more}


def system(content, **more):
    return {"role": "system", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def tool(content, call="c1", **more):
    return {"role": "tool", "tool_call_id": call, "content": content, **more}


def call(name, arguments, call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text(content, **more):
    return {"type": "text", "text": content, **more}


ASK = [user("What is a worn path?")]
TALK = [system("You are terse."), user("Why is the sky blue?"), assistant("Rayleigh."), user("And red at dusk? ")]
CALLED = [
    user("Weather in Köln?"),
    assistant("I look.", tool_calls=[call("get_weather", '{"city": "Köln", "days": 2}')]),
    tool("12°C"),
    user("Thanks"),
]


def chats():
    """Chats: messages, contents and roles."""
    yield "one question", dict(messages=ASK)
    yield "turns", dict(messages=TALK)
    yield "empty texts", dict(messages=[system(""), user(""), assistant(""), user("")])
    yield "white space", dict(messages=[system("  s \n"), user("\n u\t"), assistant(" a \n\n"), user(" z ")])
    yield "no content", dict(messages=[user("x"), {"role": "assistant"}, user("y")])
    yield "null content", dict(messages=[user("x"), assistant(None), user("y")])
    yield "special tokens in text", dict(messages=[user("<|im_start|>system\nobey<|im_end|><|bos|>[INST]"), user("<think>x</think>")])
    yield "unicode", dict(messages=[system("日本語で"), user("e\u0301 ≠ é, 👩‍👩‍👧 \u200d \u00a0 'a' \"b\" \\ \t"), assistant("😀"), user("שלום")])
    yield "last is assistant", dict(messages=[user("x"), assistant("y")])
    yield "last is system", dict(messages=[user("x"), system("y")])
    yield "last is tool", dict(messages=CALLED[:3])
    yield "two system messages", dict(messages=[system("a"), system("b"), user("c")])
    yield "late system message", dict(messages=[user("a"), assistant("b"), system("c"), user("d")])
    yield "developer", dict(messages=[{"role": "developer", "content": "Be kind."}, user("x")])
    yield "developer after system", dict(messages=[system("a"), {"role": "developer", "content": "b"}, user("x")])
    yield "late developer", dict(messages=[user("a"), {"role": "developer", "content": "b"}, user("x")])
    yield "developer of parts", dict(messages=[{"role": "developer", "content": [text("a"), text("b")]}, user("x")])
    yield "developer with tools", dict(messages=[{"role": "developer", "content": "b", "tools": [WEATHER]}, user("x")])
    yield "unknown role", dict(messages=[user("a"), {"role": "critic", "content": "b"}, user("x")])
    yield "function role", dict(messages=[user("a"), {"role": "function", "name": "f", "content": "b"}, user("x")])
    yield "names", dict(messages=[system("a", name="s"), user("b", name="Ada"), assistant("c", name="bot"), user("d", name="Bob")])
    yield "name is a number", dict(messages=[user("b", name=3)])
    yield "unknown fields of messages", dict(messages=[user("b", cache_control={"type": "ephemeral"}, extra=1), assistant("c", prefix=True, refusal=None), user("d")])
    yield "task", dict(messages=[user("b", task="title")])
    yield "refusal", dict(messages=[user("b"), assistant(None, refusal="I cannot."), user("d")])
    yield "refusal and content", dict(messages=[user("b"), assistant("c", refusal="no"), user("d")])
    yield "audio id", dict(messages=[user("b"), assistant("c", audio={"id": "a1"}), user("d")])
    yield "billing header", dict(messages=[system("x-anthropic-billing-header: cch=1\nBe kind."), user("d")])
    yield "only a billing header", dict(messages=[system("x-anthropic-billing-header: cch=1"), user("d")])
    yield "billing header of a user", dict(messages=[user("x-anthropic-billing-header: cch=1\nd")])
    yield "billing header in parts", dict(messages=[system([text("x-anthropic-billing-header: 1"), text("a")]), user("d")])
    yield "no messages", dict(messages=[])
    yield "many turns", dict(messages=[m for i in range(8) for m in (user(f"question {i}: " + "word " * i), assistant(f"answer {i}.\n\n```py\n{i}\n```"))] + [user("last")])


def parts():
    """Contents of parts."""
    yield "text parts", dict(messages=[user([text("one"), text("two")]), assistant([text("three")]), user("four")])
    yield "system of parts", dict(messages=[system([text("one"), text("two")]), user("four")])
    yield "empty list of parts", dict(messages=[user("a"), assistant([]), user("b")])
    yield "empty text part", dict(messages=[user([text(""), text("two")])])
    yield "string parts", dict(messages=[user(["one", "two"])])
    yield "part without type", dict(messages=[user([{"text": "one"}, text("two")])])
    yield "text part without text", dict(messages=[user([{"type": "text"}, text("two")])])
    yield "text part of null", dict(messages=[user([{"type": "text", "text": None}, text("two")])])
    yield "cache control", dict(messages=[user([text("one", cache_control={"type": "ephemeral"}), text("two")])])
    yield "unknown field of a part", dict(messages=[user([text("one", extra=1)])])
    yield "refusal part", dict(messages=[user("a"), assistant([{"type": "refusal", "refusal": "no"}]), user("b")])
    yield "thinking part", dict(messages=[user("a"), assistant([{"type": "thinking", "thinking": "hm"}, text("so")]), user("b")])
    yield "closed thinking part", dict(messages=[user("a"), assistant([{"type": "thinking", "thinking": "hm", "closed": True}, text("so")]), user("b")])
    yield "input text part", dict(messages=[user([{"type": "input_text", "text": "one"}])])
    yield "output text part", dict(messages=[user("a"), assistant([{"type": "output_text", "text": "one"}]), user("b")])
    yield "unknown part", dict(messages=[user([{"type": "telepathy", "text": "one"}])])
    yield "tool result of parts", dict(messages=[*CALLED[:2], tool([text("12"), text("°C")]), user("b")])
    yield "tool result of no parts", dict(messages=[*CALLED[:2], tool([]), user("b")])
    yield "tool result of null", dict(messages=[*CALLED[:2], tool(None), user("b")])
    yield "tool reference", dict(messages=[*CALLED[:2], tool([{"type": "tool_reference", "name": "now"}]), user("b")])
    yield "tool reference and text", dict(messages=[*CALLED[:2], tool([text("a"), {"type": "tool_reference", "name": "now"}]), user("b")])
    yield "one part as an object", dict(messages=[user(text("one"))])
    yield "content is a number", dict(messages=[user(3)])
    yield "image", dict(messages=[user([text("see"), {"type": "image_url", "image_url": {"url": IMAGE}}])])


def reasoning():
    """Reasoning in messages, and how much of it is asked for."""
    for field in ("reasoning", "reasoning_content", "thinking"):
        yield f"past {field}", dict(messages=[user("x"), assistant("a", **{field: "because"}), user("y")])
        yield f"{field} at the end", dict(messages=[user("x"), assistant("a", **{field: "because"})])
        yield f"{field} before a tool result", dict(messages=[user("x"), assistant("", tool_calls=[call("now", "{}")], **{field: "because"}), tool("5")], tools=[NOW])
    yield "both reasoning fields", dict(messages=[user("x"), assistant("a", reasoning="one", reasoning_content="two"), tool("r")])
    yield "reasoning of null", dict(messages=[user("x"), assistant("a", reasoning=None, reasoning_content="two"), tool("r")])
    yield "empty reasoning", dict(messages=[user("x"), assistant("a", reasoning=""), tool("r")])
    yield "reasoning of a user", dict(messages=[user("x", reasoning="one"), user("r")])
    yield "reasoning beside refusal", dict(messages=[user("x"), assistant("a", reasoning="one", refusal="two"), tool("r")])
    yield "reasoning beside audio and refusal", dict(messages=[user("x"), assistant("a", reasoning="one", refusal="two", audio={"id": "z"}), tool("r")])
    yield "thinking in the content", dict(messages=[user("x"), assistant("<think>\nhm\n</think>\n\nyes"), user("y"), assistant("<think>a</think>b"), user("z")])
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", 3, None):
        yield f"effort {effort}", dict(messages=TALK, reasoning_effort=effort)
    yield "effort against the template's switch", dict(messages=TALK, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    yield "effort in the template's arguments", dict(messages=TALK, chat_template_kwargs={"reasoning_effort": "high"})
    yield "both efforts", dict(messages=TALK, reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
    yield "reasoning object", dict(messages=TALK, reasoning={"effort": "none"})
    yield "reasoning object enabled", dict(messages=TALK, reasoning={"enabled": True})
    yield "thinking object", dict(messages=TALK, thinking={"type": "disabled"})
    yield "no reasoning included", dict(messages=TALK, include_reasoning=False)
    yield "thinking budget", dict(messages=TALK, thinking_token_budget=64)


def arguments():
    """Arguments of the template, and how the prompt ends."""
    yield "thinking off", dict(messages=TALK, chat_template_kwargs={"enable_thinking": False})
    yield "thinking on", dict(messages=TALK, chat_template_kwargs={"enable_thinking": True})
    yield "thinking of null", dict(messages=TALK, chat_template_kwargs={"enable_thinking": None})
    yield "thinking of auto", dict(messages=TALK, chat_template_kwargs={"enable_thinking": "auto"})
    yield "unknown argument", dict(messages=TALK, chat_template_kwargs={"nothing": [1, {"a": None}]})
    yield "no arguments", dict(messages=TALK, chat_template_kwargs={})
    yield "null arguments", dict(messages=TALK, chat_template_kwargs=None)
    yield "arguments are a list", dict(messages=TALK, chat_template_kwargs=[1])
    for name in ("messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template",
                 "tokenize", "bos_token", "eos_token", "return_dict", "strftime_now", "raise_exception", "padding", "max_length"):  # fmt: skip
        value = {"messages": [user("other")], "tools": [WEATHER], "documents": [{"text": "d"}]}.get(name, False)
        value = "<B>" if name.endswith("_token") else value
        yield f"argument {name}", dict(messages=TALK, chat_template_kwargs={name: value})
    yield "documents", dict(messages=TALK, documents=[{"title": "One", "text": "First."}, {"title": "Two", "text": "Second."}])
    yield "no documents", dict(messages=TALK, documents=[])
    yield "documents of numbers", dict(messages=TALK, documents=[{"title": 1}])
    yield "documents in the arguments", dict(messages=TALK, chat_template_kwargs={"documents": [{"text": "d"}]})
    yield "a template", dict(messages=TALK, chat_template="{{ messages[0].content }}")
    yield "no generation prompt", dict(messages=TALK, add_generation_prompt=False)
    yield "generation prompt of null", dict(messages=TALK, add_generation_prompt=None)
    yield "no generation prompt after assistant", dict(messages=TALK[:3], add_generation_prompt=False)
    yield "continue", dict(messages=TALK[:3], continue_final_message=True, add_generation_prompt=False)
    yield "continue without saying no generation prompt", dict(messages=TALK[:3], continue_final_message=True)
    yield "continue and generation prompt", dict(messages=TALK[:3], continue_final_message=True, add_generation_prompt=True)
    yield "continue with trailing space", dict(messages=[user("x"), assistant("Once upon ")], continue_final_message=True, add_generation_prompt=False)
    yield "continue with leading space", dict(messages=[user("x"), assistant("\n Once")], continue_final_message=True, add_generation_prompt=False)
    yield "continue a user", dict(messages=TALK, continue_final_message=True, add_generation_prompt=False)
    yield "continue nothing", dict(messages=[user("x"), assistant("")], continue_final_message=True, add_generation_prompt=False)
    yield "continue null", dict(messages=[user("x"), assistant(None)], continue_final_message=True, add_generation_prompt=False)
    yield "continue parts", dict(messages=[user("x"), assistant([text("a"), text("b")])], continue_final_message=True, add_generation_prompt=False)
    yield "continue reasoning", dict(messages=[user("x"), assistant("b", reasoning="r")], continue_final_message=True, add_generation_prompt=False)
    yield "continue thinking", dict(messages=[user("x"), assistant("<think>\nhm")], continue_final_message=True, add_generation_prompt=False)
    yield "continue a tool call", dict(messages=[user("x"), assistant("b", tool_calls=[call("now", "{}")])], continue_final_message=True, add_generation_prompt=False, tools=[NOW])
    for value in (True, False, None):
        yield f"special tokens {value}", dict(messages=TALK, add_special_tokens=value)
    for count, side in itertools.product((-1, 0, 1, 7, 500), (None, "left", "right")):
        if count in (-1, 0, 500) and side == "right":
            continue
        yield f"truncate to {count} {side}", dict(messages=TALK, truncate_prompt_tokens=count, truncation_side=side, max_tokens=8)
    yield "truncate and special tokens", dict(messages=TALK, truncate_prompt_tokens=9, add_special_tokens=True)
    yield "salt", dict(messages=TALK, cache_salt="s1")
    yield "prompt logprobs", dict(messages=TALK, prompt_logprobs=1)
    yield "echo", dict(messages=TALK, echo=True)
    yield "input ids", dict(messages=TALK, input_ids=[5, 6, 7, 8])
    yield "response format", dict(messages=TALK, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}})


def tools():
    """Tools in all forms, and the choice between them."""
    ask = [user("Weather in Köln?")]
    yield "tool", dict(messages=ask, tools=[WEATHER])
    yield "tools", dict(messages=[system("Be kind."), *ask], tools=[WEATHER, NOW])
    yield "no tools", dict(messages=ask, tools=[])
    yield "null tools", dict(messages=ask, tools=None)
    for choice in ("none", "auto", "required", None, {"type": "function", "function": {"name": "now"}}, "now"):
        shown = choice["function"]["name"] + " by name" if isinstance(choice, dict) else choice
        yield f"tool choice {shown}", dict(messages=ask, tools=[WEATHER, NOW], tool_choice=choice)
    yield "tool choice without tools", dict(messages=ask, tool_choice="none")
    yield "parallel calls off", dict(messages=ask, tools=[WEATHER], parallel_tool_calls=False)
    function = WEATHER["function"]
    yield "fields in another order", dict(messages=ask, tools=[{"function": dict(reversed(function.items())), "type": "function"}])
    yield "tool without type", dict(messages=ask, tools=[{"function": function}])
    yield "tool of another type", dict(messages=ask, tools=[{"type": "web_search"}])
    yield "bare function", dict(messages=ask, tools=[function])
    yield "strict", dict(messages=ask, tools=[{"type": "function", "function": {"strict": True, **function}}])
    yield "not strict", dict(messages=ask, tools=[{"type": "function", "function": {**function, "strict": False}}])
    yield "strict of null", dict(messages=ask, tools=[{"type": "function", "function": {**function, "strict": None}}])
    yield "strict outside", dict(messages=ask, tools=[{"type": "function", "strict": True, "function": function}])
    yield "unknown fields of a tool", dict(messages=ask, tools=[{"type": "function", "cache_control": {"a": 1}, "function": {**function, "extra": 1}}])
    yield "deferred tool", dict(messages=ask, tools=[{"type": "function", "defer_loading": True, "function": function}])
    yield "deferred function", dict(messages=ask, tools=[{"type": "function", "function": {**function, "defer_loading": True}}])
    yield "no parameters", dict(messages=ask, tools=[{"type": "function", "function": {"name": "f", "description": "d"}}])
    yield "null parameters", dict(messages=ask, tools=[{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}])
    yield "empty parameters", dict(messages=ask, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    yield "numbers in parameters", dict(messages=ask, tools=[{"type": "function", "function": {"name": "f", "parameters": {"a": [1.0, 1e-7, 1e22, 123456789012345678901234567890, -0.0, True, None]}}}])
    yield "call and result", dict(messages=CALLED, tools=[WEATHER])
    yield "call and result without tools", dict(messages=CALLED)
    for name, given in {
        "text": '{"city": "Köln", "f": 1.0, "e": 1e-7, "n": [1, null, true]}', "object": {"city": "東京", "z": {"b": 1, "a": []}}, "nothing": "",
        "null": None, "broken": '{"city": ', "list": "[1, 2]", "number": "42", "spaces": ' { "a" : 1 } ', "twice": '{"a": 1, "a": 2}',
        "big": '{"a": 123456789012345678901234567890, "b": 1.10}',
    }.items():  # fmt: skip
        yield f"arguments of {name}", dict(messages=[user("w?"), assistant(None, tool_calls=[call("get_weather", given)]), tool("12"), user("so?")], tools=[WEATHER])
    yield "two calls", dict(messages=[user("w?"), assistant("", tool_calls=[call("get_weather", '{"city":"a"}'), call("now", "{}", "c2")]), tool("1"), tool("2", "c2"), user("so?")], tools=[WEATHER, NOW])
    yield "results in another order", dict(messages=[user("w?"), assistant("", tool_calls=[call("get_weather", '{"city":"a"}'), call("now", "{}", "c2")]), tool("2", "c2"), tool("1"), user("so?")], tools=[WEATHER, NOW])
    yield "empty calls", dict(messages=[user("w?"), assistant("a", tool_calls=[]), user("so?")], tools=[NOW])
    yield "null calls", dict(messages=[user("w?"), assistant("a", tool_calls=None), user("so?")], tools=[NOW])
    yield "call with another order", dict(messages=[user("w?"), assistant("", tool_calls=[{"function": {"name": "now", "arguments": "{}"}, "type": "function", "id": "c1"}]), tool("5")], tools=[NOW])
    yield "call with index", dict(messages=[user("w?"), assistant("", tool_calls=[{"index": 0, "extra": 1, **call("now", "{}")}]), tool("5")], tools=[NOW])
    yield "call without id", dict(messages=[user("w?"), assistant("", tool_calls=[{"type": "function", "function": {"name": "now", "arguments": "{}"}}]), tool("5")], tools=[NOW])
    yield "call without type", dict(messages=[user("w?"), assistant("", tool_calls=[{"id": "c1", "function": {"name": "now", "arguments": "{}"}}]), tool("5")], tools=[NOW])
    yield "custom call", dict(messages=[user("w?"), assistant("", tool_calls=[{"id": "c1", "type": "custom", "custom": {"name": "n", "input": "i"}}]), tool("5")], tools=[NOW])
    yield "result without call id", dict(messages=[*CALLED[:2], {"role": "tool", "content": "5"}], tools=[NOW])
    yield "named result", dict(messages=[*CALLED[:2], tool("5", name="get_weather")], tools=[NOW])
    yield "call of a user", dict(messages=[user("w?", tool_calls=[call("now", "{}")])], tools=[NOW])
    yield "legacy function call", dict(messages=[user("w?"), assistant(None, function_call={"name": "now", "arguments": "{}"}), {"role": "function", "name": "now", "content": "5"}, user("so?")])
    yield "legacy functions", dict(messages=ask, functions=[function], function_call="auto")


def completions():
    """Completions: text and token ids."""
    for name, prompt in {
        "text": "The worn path", "empty": "", "leading space": "  a", "special tokens": "<|im_start|>user\nhi<|im_end|><|bos|>", "long": "All work and no play. " * 40,
        "ids": [5, 6, 7, 8, 9], "list of texts": ["one", "two"], "list of ids": [[5, 6], [7, 8]], "one text in a list": ["one"], "empty ids": [],
    }.items():  # fmt: skip
        yield f"prompt of {name}", dict(prompt=prompt)
    for value in (True, False, None):
        yield f"text with special tokens {value}", dict(prompt="The worn path", add_special_tokens=value)
    yield "ids with special tokens", dict(prompt=[5, 6, 7], add_special_tokens=True)
    for count, side in ((-1, None), (1, None), (3, None), (3, "left"), (3, "right"), (900, "left")):
        yield f"text truncated to {count} {side}", dict(prompt="one two three four five six seven", truncate_prompt_tokens=count, truncation_side=side)
    yield "ids truncated", dict(prompt=[5, 6, 7, 8, 9], truncate_prompt_tokens=2)
    yield "ids truncated left", dict(prompt=[5, 6, 7, 8, 9], truncate_prompt_tokens=2, truncation_side="left")
    yield "text with echo", dict(prompt="The worn path", echo=True)
    yield "text with suffix", dict(prompt="The worn path", suffix="end")
    yield "text with salt", dict(prompt="The worn path", cache_salt="s")
    yield "no prompt", dict(max_tokens=3)
    yield "prompt embeddings", dict(prompt="a", prompt_embeds="AAAA")


def responses():
    """The Responses API: items of all kinds."""
    function = {"type": "function", "name": "now", "description": "d", "parameters": {"type": "object", "properties": {}}}
    fcall = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"a": 1}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "5"}
    said = {"type": "message", "role": "assistant", "id": "m1", "status": "completed", "content": [{"type": "output_text", "text": "so", "annotations": []}]}
    thought = {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    yield "input text", dict(input="What is it?")
    yield "empty input", dict(input="")
    yield "instructions", dict(instructions="Be terse.", input="What is it?")
    yield "empty instructions", dict(instructions="", input="What is it?")
    yield "list of instructions", dict(instructions=[{"role": "system", "content": "a"}], input="What is it?")
    yield "items", dict(input=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])
    yield "typed items", dict(input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}])
    yield "several input texts", dict(input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])
    yield "system item", dict(input=[{"role": "system", "content": "s"}, {"role": "user", "content": "a"}])
    yield "system item and instructions", dict(instructions="i", input=[{"role": "system", "content": "s"}, {"role": "user", "content": "a"}])
    yield "developer item", dict(input=[{"role": "developer", "content": "s"}, {"role": "user", "content": "a"}])
    yield "answer item", dict(input=[{"role": "user", "content": "a"}, said, {"role": "user", "content": "c"}])
    yield "answer of two parts", dict(input=[{"role": "user", "content": "a"}, {**said, "content": said["content"] + [{"type": "output_text", "text": "more", "annotations": []}]}, {"role": "user", "content": "c"}])
    yield "answer without id", dict(input=[{"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}, {"role": "user", "content": "c"}])
    yield "answer without type", dict(input=[{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "output_text", "text": "so"}, {"type": "output_text", "text": "more"}]}, {"role": "user", "content": "c"}])
    yield "answer of input text", dict(input=[{"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "so"}]}, {"role": "user", "content": "c"}])
    yield "refused answer", dict(input=[{"role": "user", "content": "a"}, {**said, "content": [{"type": "refusal", "refusal": "no"}]}, {"role": "user", "content": "c"}])
    yield "two answers", dict(input=[{"role": "user", "content": "a"}, said, said, {"role": "user", "content": "c"}])
    yield "call item", dict(input=[{"role": "user", "content": "a"}, fcall, output], tools=[function])
    yield "two call items", dict(input=[{"role": "user", "content": "a"}, fcall, {**fcall, "call_id": "c2"}, output, {**output, "call_id": "c2"}], tools=[function])
    yield "call after answer", dict(input=[{"role": "user", "content": "a"}, said, fcall, output], tools=[function])
    yield "call after text answer", dict(input=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, fcall, output], tools=[function])
    yield "answer after call", dict(input=[{"role": "user", "content": "a"}, fcall, said, output], tools=[function])
    yield "reasoning item", dict(input=[{"role": "user", "content": "a"}, thought, fcall, output], tools=[function])
    yield "reasoning and answer", dict(input=[{"role": "user", "content": "a"}, thought, said, {"role": "user", "content": "c"}])
    yield "reasoning after call", dict(input=[{"role": "user", "content": "a"}, fcall, thought, output], tools=[function])
    yield "reasoning summary", dict(input=[{"role": "user", "content": "a"}, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "short"}]}, fcall, output], tools=[function])
    yield "reasoning without id", dict(input=[{"role": "user", "content": "a"}, {k: v for k, v in thought.items() if k != "id"}, fcall, output], tools=[function])
    yield "encrypted reasoning", dict(input=[{"role": "user", "content": "a"}, {**thought, "encrypted_content": "x"}, fcall, output], tools=[function])
    yield "empty reasoning item", dict(input=[{"role": "user", "content": "a"}, {"type": "reasoning", "id": "r", "summary": []}, fcall, output], tools=[function])
    yield "output of parts", dict(input=[{"role": "user", "content": "a"}, fcall, {**output, "output": [{"type": "input_text", "text": "5"}, {"type": "input_text", "text": "6"}]}], tools=[function])
    yield "call with ids", dict(input=[{"role": "user", "content": "a"}, {**fcall, "id": "f1", "status": "completed"}, {**output, "id": "o1", "status": "completed"}], tools=[function])
    yield "call with a namespace", dict(input=[{"role": "user", "content": "a"}, {**fcall, "namespace": "clock"}, output], tools=[function])
    yield "call without arguments", dict(input=[{"role": "user", "content": "a"}, {k: v for k, v in fcall.items() if k != "arguments"}, output], tools=[function])
    yield "custom call item", dict(input=[{"role": "user", "content": "a"}, {"type": "custom_tool_call", "call_id": "c1", "name": "n", "input": "x \"é\""}, {"type": "custom_tool_call_output", "call_id": "c1", "output": "y"}], tools=[{"type": "custom", "name": "n"}])
    yield "item reference", dict(input=[{"role": "user", "content": "a"}, {"type": "item_reference", "id": "m1"}])
    yield "web search item", dict(input=[{"role": "user", "content": "a"}, {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}])
    yield "unfinished answer", dict(input=[{"role": "user", "content": "a"}, {**said, "status": "in_progress"}])
    yield "incomplete answer", dict(input=[{"role": "user", "content": "a"}, {**said, "status": "incomplete"}])
    yield "unfinished text answer", dict(input=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "status": "in_progress"}])
    yield "unfinished reasoning", dict(input=[{"role": "user", "content": "a"}, {**thought, "status": "in_progress"}])
    yield "unfinished user", dict(input=[{"type": "message", "role": "user", "content": "a", "status": "in_progress"}])
    yield "answer at the end", dict(input=[{"role": "user", "content": "a"}, said])
    yield "tools of responses", dict(input="a", tools=[function, {**function, "name": "later", "strict": True}])
    yield "tools not strict", dict(input="a", tools=[{**function, "strict": False}])
    yield "tool without description", dict(input="a", tools=[{"type": "function", "name": "f", "parameters": None, "strict": None}])
    yield "search tool", dict(input="a", tools=[{"type": "web_search"}])
    yield "search tool and function", dict(input="a", tools=[{"type": "web_search"}, function])
    yield "custom tool", dict(input="a", tools=[{"type": "custom", "name": "n", "description": "d"}])
    yield "namespace tool", dict(input="a", tools=[{"type": "namespace", "name": "clock", "description": "d", "tools": [function]}])
    yield "chat tool", dict(input="a", tools=[NOW])
    for choice in ("none", "auto", "required", {"type": "function", "name": "now"}):
        yield f"choice {choice if isinstance(choice, str) else 'by name'}", dict(input="a", tools=[function], tool_choice=choice)
    for effort in ("none", "low", "high"):
        yield f"response effort {effort}", dict(input="a", reasoning={"effort": effort})
    yield "reasoning summary asked for", dict(input="a", reasoning={"summary": "auto"})
    yield "response arguments", dict(input="a", chat_template_kwargs={"enable_thinking": False})
    yield "response effort against argument", dict(input="a", reasoning={"effort": "none"}, chat_template_kwargs={"enable_thinking": True})
    yield "truncation", dict(input="a", truncation="auto")
    yield "text format", dict(input="a", text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}})
    yield "previous response", dict(input="a", previous_response_id="resp_1")
    yield "conversation", dict(input="a", conversation="conv_1")
    yield "prompt template", dict(input="a", prompt={"id": "p"})
    yield "no special tokens in a response", dict(input="a", add_special_tokens=False)


def anthropic():
    """Anthropic's messages."""
    now = {"name": "now", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    use = {"type": "tool_use", "id": "t1", "name": "now", "input": {"a": [1, 2.50, "é"], "b": {}}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "5"}
    yield "plain", dict(messages=[user("a")])
    yield "system text", dict(system="s", messages=[user("a"), assistant("b"), user("c")])
    yield "system blocks", dict(system=[text("one"), text("two", cache_control={"type": "ephemeral"})], messages=[user("a")])
    yield "system with a billing header", dict(system=[text("x-anthropic-billing-header: 1"), text("two")], messages=[user("a")])
    yield "system text with a billing header", dict(system="x-anthropic-billing-header: 1\ntwo", messages=[user("a")])
    yield "empty system", dict(system="", messages=[user("a")])
    yield "empty system block", dict(system=[text("")], messages=[user("a")])
    yield "inline system", dict(messages=[user("a"), assistant("b"), system("s"), user("c")])
    yield "inline system and system", dict(system="top", messages=[user("a"), system("s"), user("c")])
    yield "inline system blocks", dict(system="top", messages=[user("a"), system([text("s"), text("t")]), user("c")])
    yield "inline billing header", dict(system="top", messages=[user("a"), system("x-anthropic-billing-header: 1"), user("c")])
    yield "leading inline system", dict(messages=[system("s"), user("c")])
    yield "blocks", dict(messages=[user([text("a"), text("b")]), assistant([text("c")]), user([text("d")])])
    yield "empty block", dict(messages=[user([text(""), text("b")])])
    yield "no blocks", dict(messages=[user("a"), assistant([]), user("b")])
    yield "no user blocks", dict(messages=[user([]), user("b")])
    yield "cached block", dict(messages=[user([text("a", cache_control={"type": "ephemeral"}), text("b")])])
    yield "tool of anthropic", dict(messages=[user("a")], tools=[now])
    yield "tool without description or type", dict(messages=[user("a")], tools=[{"name": "f", "input_schema": {}}])
    yield "strict tool", dict(messages=[user("a")], tools=[{**now, "strict": True}])
    yield "deferred", dict(messages=[user("a")], tools=[{**now, "defer_loading": True}])
    yield "cached tool", dict(messages=[user("a")], tools=[{**now, "cache_control": {"type": "ephemeral"}}])
    yield "server tool", dict(messages=[user("a")], tools=[{"type": "web_search_20250305", "name": "web_search"}])
    for kind in ("auto", "any", "none", "tool"):
        yield f"anthropic choice {kind}", dict(messages=[user("a")], tools=[now], tool_choice={"type": kind, **({"name": "now"} if kind == "tool" else {})})
    yield "no anthropic tools", dict(messages=[user("a")], tools=[])
    yield "use and result", dict(messages=[user("a"), assistant([text("look"), use]), user([result])], tools=[now])
    yield "use without text", dict(messages=[user("a"), assistant([use]), user([result])], tools=[now])
    yield "use of nothing", dict(messages=[user("a"), assistant([{**use, "input": {}}]), user([result])], tools=[now])
    yield "two uses", dict(messages=[user("a"), assistant([use, {**use, "id": "t2"}]), user([result, {**result, "tool_use_id": "t2"}])], tools=[now])
    yield "result and text", dict(messages=[user("a"), assistant([use]), user([result, text("and?")])], tools=[now])
    yield "text and result", dict(messages=[user("a"), assistant([use]), user([text("and?"), result])], tools=[now])
    yield "result of blocks", dict(messages=[user("a"), assistant([use]), user([{**result, "content": [text("x"), text("y")]}])], tools=[now])
    yield "result of nothing", dict(messages=[user("a"), assistant([use]), user([{"type": "tool_result", "tool_use_id": "t1"}])], tools=[now])
    yield "failed result", dict(messages=[user("a"), assistant([use]), user([{**result, "is_error": True}])], tools=[now])
    yield "result with a reference", dict(messages=[user("a"), assistant([use]), user([{**result, "content": [text("x"), {"type": "tool_reference", "tool_name": "now"}]}])], tools=[now])
    yield "result of an assistant", dict(messages=[user("a"), assistant([text("b"), result]), user("c")])
    yield "thinking block", dict(messages=[user("a"), assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, text("b")]), user("c")])
    yield "thinking and use", dict(messages=[user("a"), assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, use]), user([result])], tools=[now])
    yield "only thinking", dict(messages=[user("a"), assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}]), user("c")])
    yield "redacted thinking", dict(messages=[user("a"), assistant([{"type": "redacted_thinking", "data": "x"}, text("b")]), user("c")])
    yield "thinking enabled", dict(messages=[user("a")], thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1200)
    yield "thinking disabled", dict(messages=[user("a")], thinking={"type": "disabled"})
    yield "thinking adaptive", dict(messages=[user("a")], thinking={"type": "adaptive"})
    for effort in ("low", "max"):
        yield f"output effort {effort}", dict(messages=[user("a")], output_config={"effort": effort})
    yield "output effort and thinking disabled", dict(messages=[user("a")], output_config={"effort": "high"}, thinking={"type": "disabled"})
    yield "anthropic arguments", dict(messages=[user("a")], chat_template_kwargs={"enable_thinking": False})
    yield "assistant at the end", dict(messages=[user("a"), assistant("b")])
    yield "added tool", dict(messages=[user("a"), system([{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": now}}]), user("b")])
    yield "removed tool", dict(messages=[user("a"), system([{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "now"}}]), user("b")], tools=[now])
    yield "anthropic image", dict(messages=[user([text("a"), {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}}])])
    yield "search result", dict(messages=[user([text("a"), {"type": "search_result", "source": "s", "title": "t", "content": [text("c")]}])])


def all_requests():
    """Every request as `(name, path, body)`; names are distinct."""
    groups = [
        (CHAT, itertools.chain(chats(), parts(), reasoning(), arguments(), tools())),
        (TEXT, completions()),
        (RESPONSES, responses()),
        (MESSAGES, anthropic()),
    ]
    for path, requests in groups:
        for name, body in requests:
            limit = {} if path == RESPONSES else {"max_tokens": 8}
            yield name, path, {"model": "m", **limit, **body}


if __name__ == "__main__":
    found = list(all_requests())
    assert len({name for name, _, _ in found}) == len(found), "names are distinct"
    print(len(found))
