"""OpenAI's API over a scheduler, with the metrics and the management calls of vLLM that a router uses."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator

from events import EventPublisher
from http_server import Request, Response, error_response, json_response
from scheduler import Scheduler, Sequence, StepResult
from text import Stream, Text, TokenIds

VERSION = "0.0.0+gpu-engine"
# Fields that would change the answer, and the values that do not.
NOT_SUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (None, 1), "best_of": (None, 1), "echo": (None, False), "logprobs": (None, False), "prompt_logprobs": (None,),
    "stop": (None, [], ""), "tools": (None, []), "suffix": (None, ""), "cache_salt": (None,),
}  # fmt: skip


class BadRequest(ValueError):
    """The client's fault."""


class Api:
    """One engine behind HTTP. Everything but the scheduler runs on one asyncio loop."""

    def __init__(self, model: str, text: Text | TokenIds, context: int, publisher: EventPublisher, scheduler: Scheduler):
        self.model, self.text, self.context, self.publisher, self.scheduler = model, text, context, publisher, scheduler
        self.started = time.time()
        self._queues: dict[Sequence, asyncio.Queue[tuple[int, str | None]]] = {}

    def take(self, result: StepResult) -> None:
        """What a step changed. Events go out first, so that no client can act on an answer before them."""
        if result.events:
            self.publisher.publish(result.events)
        for sequence, token, end in result.tokens:
            queue = self._queues.get(sequence)
            if queue is not None:
                queue.put_nowait((token, end))

    async def answer(self, request: Request) -> Response:
        routes = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/v1/completions"): self._completion,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/reset_prefix_cache"): self._reset,
        }
        route = routes.get((request.method, request.path))
        if route is None:
            return error_response(404, f"{request.method} {request.path} is not served here")
        try:
            return await route(request)
        except BadRequest as error:
            return error_response(400, str(error))

    async def _health(self, _: Request) -> Response:
        return json_response({})

    async def _version(self, _: Request) -> Response:
        return json_response({"version": VERSION})

    async def _models(self, _: Request) -> Response:
        card = {
            "id": self.model, "object": "model", "created": int(self.started), "owned_by": "wornpath",
            "root": self.model, "parent": None, "max_model_len": self.context,
        }  # fmt: skip
        return json_response({"object": "list", "data": [card]})

    async def _reset(self, _: Request) -> Response:
        was_reset = await asyncio.wrap_future(self.scheduler.reset_cache())
        return json_response({}) if was_reset else error_response(409, "requests are running")

    async def _metrics(self, _: Request) -> Response:
        running, waiting = self.scheduler.load()
        pool, counters = self.scheduler.pool, self.scheduler.counters
        labels = f'engine="0",model_name="{self.model}"'
        gauges = {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
            "vllm:kv_cache_usage_perc": pool.usage(),
        }
        totals = {
            "vllm:prefix_cache_queries_total": counters.prompt_tokens,
            "vllm:prefix_cache_hits_total": counters.cached_tokens,
            "vllm:prompt_tokens_total": counters.prompt_tokens,
            "vllm:generation_tokens_total": counters.generated_tokens,
        }
        lines = [f"process_start_time_seconds {self.started}"]
        for kind, metrics in (("gauge", gauges), ("counter", totals)):
            for name, value in metrics.items():
                lines += [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}"]
        config = f'block_size="{pool.block_tokens}",num_gpu_blocks="{pool.count}",{labels}'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{config}}} 1"]
        return Response(200, "text/plain; version=0.0.4", ("\n".join(lines) + "\n").encode())

    async def _completion(self, request: Request) -> Response:
        body = self._body(request)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            # Tokenizers let other threads run; a long prompt must not delay the answers of others.
            prompt = await asyncio.to_thread(self._encode, self.text.encode, prompt)
        return await self._generate(body, prompt, CompletionForm(self.model))

    async def _chat(self, request: Request) -> Response:
        body = self._body(request)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("`messages` must be a list with a message")
        prompt = await asyncio.to_thread(self._encode, self.text.encode_chat, messages)
        return await self._generate(body, prompt, ChatForm(self.model))

    def _body(self, request: Request) -> dict:
        try:
            body = json.loads(request.body)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise BadRequest("the body is not an object")
        if body.get("model") not in (None, self.model):
            raise BadRequest(f"model `{body['model']}` is not served here; `{self.model}` is")
        for name, neutral in NOT_SUPPORTED.items():
            if body.get(name) not in neutral:
                raise BadRequest(f"`{name}` is {body[name]!r}; this engine only takes requests without it")
        return body

    def _encode(self, encode, prompt) -> list[int]:
        try:
            return encode(prompt)
        except Exception as error:  # of a template, anything
            raise BadRequest(f"the prompt cannot be read: {error}") from error

    async def _generate(self, body: dict, prompt: object, form: "CompletionForm") -> Response:
        sequence = self._sequence(body, prompt)
        queue: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()
        self._queues[sequence] = queue
        await asyncio.to_thread(self.scheduler.submit, sequence)
        parts = self._parts(sequence, queue)
        if body.get("stream"):
            asks_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return Response(200, "text/event-stream", self._events(sequence, parts, form, asks_usage))
        text, end = "", None
        async for part, end in parts:
            text += part
        answer = form.whole(text, end)
        if body.get("return_token_ids"):
            answer["choices"][0]["token_ids"] = sequence.answer()
        return json_response(answer | {"usage": usage(sequence)})

    def _sequence(self, body: dict, prompt: object) -> Sequence:
        if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
            raise BadRequest("`prompt` must be text or a list of token ids")
        if not all(0 <= token < self.text.vocabulary for token in prompt):
            raise BadRequest(f"a token id is not below {self.text.vocabulary}")
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        if type(most) is not int or most < 1:
            raise BadRequest(f"`max_tokens` is {most!r}; it must be a positive number")
        if len(prompt) + most > self.context:
            raise BadRequest(f"{len(prompt)} tokens of prompt and {most} of answer exceed the context of {self.context}")
        stop_tokens = frozenset() if body.get("ignore_eos") else self.text.stop_tokens
        return Sequence(prompt, most, stop_tokens)

    async def _parts(
        self, sequence: Sequence, queue: asyncio.Queue[tuple[int, str | None]]
    ) -> AsyncGenerator[tuple[str, str | None], None]:
        """The answer as it grows. If its reader leaves, the sequence is cancelled."""
        stream, end = Stream(self.text), None
        try:
            while end is None:
                token, end = await queue.get()
                yield stream.add(token, end is not None), end
        finally:
            del self._queues[sequence]
            if end is None:
                self.scheduler.cancel(sequence)

    async def _events(
        self, sequence: Sequence, parts: AsyncGenerator[tuple[str, str | None], None], form: "CompletionForm", asks_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        try:
            async for part, end in parts:
                yield event(form.chunk(part, end))
        finally:
            await parts.aclose()
        if asks_usage:
            yield event(form.empty() | {"usage": usage(sequence)})
        yield b"data: [DONE]\n\n"


def event(value: dict) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def usage(sequence: Sequence) -> dict:
    prompt, answer = len(sequence.prompt), len(sequence.answer())
    details = {"cached_tokens": sequence.cached}
    return {
        "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
        "prompt_tokens_details": details,
    }  # fmt: skip


class CompletionForm:
    """How answers of `/v1/completions` look."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, model: str):
        self._head = {"id": f"{self.prefix}-{time.monotonic_ns():x}", "created": int(time.time()), "model": model}

    def whole(self, text: str, end: str | None) -> dict:
        return self._answer(self.kind, [self._choice(text, end)])

    def chunk(self, text: str, end: str | None) -> dict:
        return self._answer(self.chunk_kind, [self._part(text, end)])

    def empty(self) -> dict:
        """The chunk with the token counts."""
        return self._answer(self.chunk_kind, [])

    def _answer(self, kind: str, choices: list[dict]) -> dict:
        return self._head | {"object": kind, "choices": choices}

    def _choice(self, text: str, end: str | None) -> dict:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": end}

    def _part(self, text: str, end: str | None) -> dict:
        return self._choice(text, end)


class ChatForm(CompletionForm):
    """How answers of `/v1/chat/completions` look."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _choice(self, text: str, end: str | None) -> dict:
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": end}

    def _part(self, text: str, end: str | None) -> dict:
        delta = {"role": "assistant", "content": text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
