"""Publishes cache events as vLLM does: msgpack over a PUB socket, numbered, and again on request over a ROUTER socket."""

import asyncio
import collections
import struct
import time

import zmtp

TOPIC = b"kv-events"
# More than vLLM's 10,000, so that a router that starts late in a long run can still learn everything.
KEPT_BATCHES = 50_000
REPLAY_END = b"\xff" * 8


def pack(value: object) -> bytes:
    """A value as msgpack: the types that events are made of."""
    out = bytearray()
    _pack(value, out)
    return bytes(out)


def _pack(value: object, out: bytearray) -> None:
    match value:
        case None:
            out.append(0xC0)
        case bool():
            out.append(0xC3 if value else 0xC2)
        case int():
            _pack_unsigned(value, out)
        case float():
            out += struct.pack(">Bd", 0xCB, value)
        case str():
            _pack_size(len(encoded := value.encode()), (0xA0, 32), (0xD9, 0xDA, 0xDB), out)
            out += encoded
        case bytes():
            _pack_size(len(value), (0, 0), (0xC4, 0xC5, 0xC6), out)
            out += value
        case list():
            _pack_size(len(value), (0x90, 16), (None, 0xDC, 0xDD), out)
            for element in value:
                _pack(element, out)
        case dict():
            _pack_size(len(value), (0x80, 16), (None, 0xDE, 0xDF), out)
            for key, element in value.items():
                _pack(key, out)
                _pack(element, out)
        case _:
            raise TypeError(f"{type(value).__name__} cannot be packed")


def _pack_unsigned(value: int, out: bytearray) -> None:
    if value < 128:
        if value < 0:
            raise ValueError(f"{value} cannot be packed; events have no negative numbers")
        out.append(value)
        return
    for tag, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        if value < 1 << 8 * size:
            out.append(tag)
            out += value.to_bytes(size, "big")
            return
    raise ValueError(f"{value} cannot be packed; events have numbers of 64 bits")


def _pack_size(size: int, short: tuple[int, int], tags: tuple[int | None, int, int], out: bytearray) -> None:
    """A length: in the first byte if it is below the limit of the short form, else behind a tag for 1, 2 or 4 bytes."""
    base, limit = short
    if size < limit:
        out.append(base | size)
        return
    for tag, width in zip(tags, (1, 2, 4), strict=True):
        if tag is not None and size < 1 << 8 * width:
            out.append(tag)
            out += size.to_bytes(width, "big")
            return
    raise ValueError(f"{size} elements cannot be packed")


class EventPublisher:
    """The event stream of one engine. Everything runs on the loop that listens."""

    def __init__(self) -> None:
        self._subscribers: set[zmtp.Peer] = set()
        self._sequence = 0
        self._kept: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=KEPT_BATCHES)

    async def listen(self, host: str, port: int, replay_port: int) -> list[asyncio.Server]:
        return [
            await zmtp.listen("PUB", host, port, self._subscribers, self._subscribe),
            await zmtp.listen("ROUTER", host, replay_port, set(), self._replay),
        ]

    def publish(self, events: list[dict]) -> None:
        """Sends a batch to all subscribers, and keeps it for replays."""
        payload = pack([time.time(), events, 0])
        message = zmtp.framed([TOPIC, self._sequence.to_bytes(8, "big"), payload])
        self._kept.append((self._sequence, payload))
        self._sequence += 1
        for peer in self._subscribers:
            if any(TOPIC.startswith(topic) for topic in peer.topics):
                peer.send_or_drop(message)

    async def _subscribe(self, peer: zmtp.Peer, frames: zmtp.Frames) -> None:
        """A subscription as a message: 1 or 0, and the topic."""
        wanted, topic = frames[0][:1], frames[0][1:]
        if wanted == b"\x01":
            peer.topics.append(topic)
        elif topic in peer.topics:
            peer.topics.remove(topic)

    async def _replay(self, peer: zmtp.Peer, frames: zmtp.Frames) -> None:
        """A replay request: an empty frame, and the number from which on."""
        start = int.from_bytes(frames[-1], "big")
        for sequence, payload in list(self._kept):
            if sequence >= start:
                await peer.send(zmtp.framed([b"", TOPIC, sequence.to_bytes(8, "big"), payload]))
        await peer.send(zmtp.framed([b"", b"", REPLAY_END, b""]))
