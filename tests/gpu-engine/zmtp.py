"""The two ZeroMQ sockets of an engine, PUB and ROUTER, in the few parts of ZMTP 3.0 that they need.

No library is needed, so that an engine starts where nothing can be installed. Everything runs on one asyncio loop.
"""

import asyncio
from collections.abc import Awaitable, Callable

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
# A peer that reads more slowly than this loses messages, as with ZeroMQ's own limit.
MOST_BUFFERED = 64 << 20

Frames = list[bytes]


def framed(frames: Frames) -> bytes:
    """A message as it is on the wire."""
    return b"".join(_frame(MORE if at + 1 < len(frames) else 0, body) for at, body in enumerate(frames))


def _frame(flags: int, body: bytes) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body


def _command(name: bytes, content: bytes) -> bytes:
    return _frame(COMMAND, bytes([len(name)]) + name + content)


def _ready(kind: bytes) -> bytes:
    name = b"Socket-Type"
    return _command(b"READY", bytes([len(name)]) + name + len(kind).to_bytes(4, "big") + kind)


class Peer:
    """A connection after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self.topics: list[bytes] = []

    async def handshake(self, kind: bytes) -> None:
        self._writer.write(GREETING)
        greeting = await self._reader.readexactly(len(GREETING))
        if greeting[0] != 0xFF or greeting[10] < 3 or not greeting[12:].startswith(b"NULL\0"):
            raise ConnectionError(f"the peer does not speak ZMTP 3 without encryption: {greeting!r}")
        self._writer.write(_ready(kind))

    def send_or_drop(self, message: bytes) -> None:
        """Sends a message that is framed already, unless too much is buffered."""
        if self._writer.transport.get_write_buffer_size() < MOST_BUFFERED:
            self._writer.write(message)

    async def send(self, message: bytes) -> None:
        """Sends a message that is framed already, as fast as the peer reads."""
        self._writer.write(message)
        await self._writer.drain()

    async def receive(self) -> Frames:
        """The next message. Commands are answered."""
        frames: Frames = []
        while True:
            flags = (await self._reader.readexactly(1))[0]
            size = int.from_bytes(await self._reader.readexactly(8 if flags & LONG else 1), "big")
            body = await self._reader.readexactly(size)
            if flags & COMMAND:
                self._obey(body)
                continue
            frames.append(body)
            if not flags & MORE:
                return frames

    def _obey(self, body: bytes) -> None:
        name, content = body[1 : 1 + body[0]], body[1 + body[0] :]
        if name == b"PING":
            self._writer.write(_command(b"PONG", content[2:]))
        elif name == b"SUBSCRIBE":
            self.topics.append(content)

    def close(self) -> None:
        self._writer.close()


Receive = Callable[[Peer, Frames], Awaitable[None]]


async def listen(kind: str, host: str, port: int, peers: set[Peer], receive: Receive) -> asyncio.Server:
    """Accepts peers, keeps them in `peers` while they are connected, and passes on what they send."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        try:
            await peer.handshake(kind.encode())
            peers.add(peer)
            while True:
                await receive(peer, await peer.receive())
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # it is gone
        finally:
            peers.discard(peer)
            peer.close()

    return await asyncio.start_server(serve, host, port)
