"""The official clients of OpenAI and Anthropic against a gateway: `clients.py http://127.0.0.1:PORT MODEL ENGINE [WHAT]`.

Prints one line for each thing that was shown, and ends with status 1 at the first that was not. What begins with
`broken_` needs an engine that breaks its answers, and is shown only if WHAT names it.
"""

import json
import sys
import time
import urllib.request

import anthropic
import openai

gateway, model, engine = sys.argv[1:4]
ours = openai.OpenAI(base_url=f"{gateway}/v1", api_key="unused", max_retries=0, timeout=20)
theirs = anthropic.Anthropic(base_url=gateway, api_key="unused", max_retries=0, timeout=20)
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def running():
    """Requests that the engine works on."""
    page = urllib.request.urlopen(f"{engine}/metrics", timeout=10).read().decode()
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
    return float(lines[0].rsplit(" ", 1)[1])


def eventually(what, is_so):
    for _ in range(400):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


def openai_chat():
    answer = ours.chat.completions.create(model=model, messages=HELLO, max_tokens=7)
    assert len(answer.choices[0].message.content) == 7, answer
    assert answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 7, answer
    assert answer._request_id, "every answer has an x-request-id"


def openai_stream():
    stream = ours.chat.completions.create(
        model=model, messages=HELLO, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for chunk in stream:
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    assert len(text) == 9, text
    assert usage.completion_tokens == 9, usage


def openai_tools():
    function = {"name": "look_up", "parameters": {"type": "object", "properties": {"words": {"type": "string"}}}}
    tools = [{"type": "function", "function": function}]
    asked = dict(model=model, messages=HELLO, tools=tools, tool_choice="required", max_tokens=5)
    call = ours.chat.completions.create(**asked).choices[0].message.tool_calls[0]
    assert call.function.name == "look_up", call
    whole = json.loads(call.function.arguments)
    pieces = ""
    for chunk in ours.chat.completions.create(**asked, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            pieces += part.function.arguments or ""
    assert json.loads(pieces) == whole, pieces


def openai_completions():
    answer = ours.completions.create(model=model, prompt="Once upon a time", max_tokens=4)
    assert len(answer.choices[0].text) == 4, answer


def openai_responses():
    answer = ours.responses.create(model=model, input="Hello", instructions="Be brief", max_output_tokens=4)
    assert len(answer.output_text) == 4, answer
    assert answer.usage.output_tokens == 4, answer


def openai_responses_stream():
    asked = dict(model=model, input="Hello", instructions="Be brief", max_output_tokens=5)
    events = list(ours.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert events[0].type == "response.created" and events[-1].type == "response.completed", events
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    whole = events[-1].response
    assert len(text) == 5 and whole.output_text == text, whole
    assert whole.usage.output_tokens == 5 and whole.usage.input_tokens_details.cached_tokens is not None, whole
    # The client's own assembly of the events comes to the same.
    with ours.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == text


def openai_embeddings():
    answer = ours.embeddings.create(model=model, input=["one", "two"], encoding_format="float")
    assert [len(item.embedding) for item in answer.data] == [64, 64], answer


def openai_models():
    assert [card.id for card in ours.models.list()] == [model]


def openai_errors():
    for kind, asked in [
        (openai.NotFoundError, dict(model="unknown", messages=HELLO)),
        (openai.BadRequestError, dict(model=model, messages=HELLO, max_tokens=0)),
        (openai.BadRequestError, dict(model=model, messages="no list")),
    ]:
        try:
            ours.chat.completions.create(**asked)
        except kind as error:
            assert error.body["message"] and error.body["type"], error.body
            assert error.request_id, error
        else:
            raise AssertionError(f"{kind.__name__} expected")


def openai_cancellation():
    stream = ours.chat.completions.create(model=model, messages=HELLO, max_tokens=100000, stream=True,
                                          extra_body={"ignore_eos": True})
    next(iter(stream))
    assert running() >= 1
    stream.close()
    eventually("the engine stopped", lambda: running() == 0)


def anthropic_messages():
    answer = theirs.messages.create(model=model, max_tokens=6, system="Be brief", messages=HELLO)
    assert len(answer.content[0].text) == 6, answer
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 6, answer


def anthropic_stream():
    with theirs.messages.stream(model=model, max_tokens=8, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert len(text) == 8 and whole.usage.output_tokens == 8, whole


def anthropic_tools():
    tools = [{"name": "look_up", "input_schema": {"type": "object", "properties": {"words": {"type": "string"}}}}]
    asked = dict(model=model, max_tokens=5, messages=HELLO, tools=tools, tool_choice={"type": "any"})
    answer = theirs.messages.create(**asked)
    assert answer.stop_reason == "tool_use" and answer.content[0].name == "look_up", answer
    with theirs.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].input == answer.content[0].input, streamed


def anthropic_models():
    # The list is OpenAI's, of which this client reads the names.
    assert [card.id for card in theirs.models.list()] == [model]


def anthropic_errors():
    for kind, asked in [
        (anthropic.NotFoundError, dict(model="unknown", max_tokens=5, messages=HELLO)),
        (anthropic.BadRequestError, dict(model=model, max_tokens=0, messages=HELLO)),
    ]:
        try:
            theirs.messages.create(**asked)
        except kind as error:
            assert error.body, error
        else:
            raise AssertionError(f"{kind.__name__} expected")


def anthropic_cancellation():
    with theirs.messages.stream(model=model, max_tokens=100000, messages=HELLO,
                                extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert running() >= 1
    eventually("the engine stopped", lambda: running() == 0)


def broken_responses():
    asked = dict(model=model, input="Hello", max_output_tokens=9)
    pieces = []
    try:
        for event in ours.responses.create(**asked, stream=True):
            pieces.append(event)
    except openai.APIError as error:
        assert error.body["type"] == "upstream_lost", error.body
    else:
        raise AssertionError(f"a broken stream looks whole: {pieces}")
    assert [event.type for event in pieces].count("response.output_text.delta") == 3, pieces
    # What comes over the wire is the interface's own error event, numbered on.
    raw = [json.loads(line[6:]) for line in ours.responses.with_raw_response.create(**asked, stream=True)
           .http_response.iter_lines() if line.startswith("data: ")]
    last = openai.types.responses.ResponseErrorEvent.model_validate(raw[-1])
    assert (last.code, last.sequence_number) == ("upstream_lost", len(raw) - 1), raw[-1]


names = sys.argv[4:] or [name for name in list(globals()) if name.startswith(("openai_", "anthropic_"))]
for shown in [globals()[name] for name in names]:
    shown()
    print("shown:", shown.__name__)
