"""A small HTTP/1.1 server on asyncio: what a router needs of an engine, with connections that are kept open."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

MOST_HEAD, MOST_BODY = 64 << 10, 64 << 20
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 409: "Conflict"}


@dataclasses.dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclasses.dataclass
class Response:
    """A whole body, or one that comes in parts."""

    status: int
    kind: str
    body: bytes | AsyncGenerator[bytes, None]


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, "application/json", json.dumps(value).encode())


def error_response(status: int, message: str) -> Response:
    """An error as OpenAI's API has it."""
    return json_response({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)


Answer = Callable[[Request], Awaitable[Response]]


async def listen(host: str, port: int, answer: Answer) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                await write_response(writer, await answer(request))
        except (ConnectionError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or does not speak HTTP
        finally:
            writer.close()

    return await asyncio.start_server(serve, host, port, limit=MOST_HEAD)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; none at its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    size = int(headers.get("content-length", 0))
    if size > MOST_BODY or "transfer-encoding" in headers:
        raise ConnectionError("a body without a length, or above 64 MiB")
    return Request(method, target.split("?")[0], headers, await reader.readexactly(size))


async def write_response(writer: asyncio.StreamWriter, response: Response) -> None:
    head = f"HTTP/1.1 {response.status} {REASONS[response.status]}\r\ncontent-type: {response.kind}\r\n"
    if isinstance(response.body, bytes):
        writer.write(f"{head}content-length: {len(response.body)}\r\n\r\n".encode() + response.body)
        await writer.drain()
        return
    writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
    try:
        async for part in response.body:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            if writer.is_closing():
                raise ConnectionResetError("the client is gone")
    finally:
        await response.body.aclose()  # so that a client that left is noticed by what produces the parts
    writer.write(b"0\r\n\r\n")
    await writer.drain()
