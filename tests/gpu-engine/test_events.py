"""The wire: msgpack, and ZeroMQ as a subscriber and a replaying router see it."""

import asyncio
import struct
import unittest

import zmtp
from events import EventPublisher, pack
from fleet import free_ports


class PackTest(unittest.TestCase):
    def test_every_length_has_the_bytes_that_msgpack_gives_it(self):
        for value, expected in [
            (None, "c0"), (True, "c3"), (0, "00"), (127, "7f"), (128, "cc80"), (256, "cd0100"), (65536, "ce00010000"),
            (2**64 - 1, "cfffffffffffffffff"), (1.5, "cb3ff8000000000000"), ("", "a0"), ("x" * 31, "bf" + "78" * 31),
            ("x" * 32, "d920" + "78" * 32), ("x" * 256, "da0100" + "78" * 256), (b"ab", "c4026162"),
            (b"x" * 256, "c50100" + "78" * 256), ([1, []], "920190"), ([0] * 16, "dc0010" + "00" * 16), ({"a": 1}, "81a16101"),
            ({str(at): at for at in range(16)}, "de0010" + "".join(pack(str(at)).hex() + f"{at:02x}" for at in range(16))),
        ]:  # fmt: skip
            self.assertEqual(pack(value).hex(), expected, repr(value)[:40])

    def test_what_events_never_contain_is_refused(self):
        for value in (-1, 2**64, object(), {1: 2}.keys()):
            with self.assertRaises((ValueError, TypeError)):
                pack(value)


class StreamTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.publisher = EventPublisher()
        self.writers: list[asyncio.StreamWriter] = []
        self.events, self.replay = free_ports(2)
        self.servers = await self.publisher.listen("127.0.0.1", self.events, self.replay)

    async def asyncTearDown(self):
        for server in self.servers:
            server.close()
        for writer in self.writers:
            writer.close()
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)

    async def connect(self, port: int, kind: bytes) -> tuple[zmtp.Peer, asyncio.StreamReader]:
        """A peer after its handshake, and its bytes from the engine's READY on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = zmtp.Peer(reader, writer)
        await peer.handshake(kind)
        self.writers.append(writer)
        return peer, reader

    async def subscribe(self, peer: zmtp.Peer, topic: bytes) -> None:
        await peer.send(zmtp.framed([b"\x01" + topic]))
        while not any(topic in one.topics for one in self.publisher._subscribers):
            await asyncio.sleep(0)

    async def test_a_subscriber_gets_numbered_batches_of_its_topics(self):
        peer, _ = await self.connect(self.events, b"SUB")
        await self.subscribe(peer, b"kv")
        for number in range(2):
            self.publisher.publish([{"type": "BlockRemoved", "block_hashes": [b"x" * 300]}])
            topic, sequence, payload = await peer.receive()
            self.assertEqual((topic, sequence), (b"kv-events", struct.pack(">Q", number)))
            self.assertTrue(payload.endswith(b"x" * 300 + b"\x00"))

    async def test_a_ping_is_answered_with_its_context_and_other_topics_are_not_sent(self):
        peer, reader = await self.connect(self.events, b"SUB")
        await self.subscribe(peer, b"other")
        self.publisher.publish([{"type": "AllBlocksCleared"}])
        ready = await reader.readexactly(2)
        await reader.readexactly(ready[1])
        ping = b"\x04PING\x00\x64abc"
        await peer.send(bytes([zmtp.COMMAND, len(ping)]) + ping)
        pong = b"\x04PONGabc"
        self.assertEqual(await reader.readexactly(2 + len(pong)), bytes([zmtp.COMMAND, len(pong)]) + pong)

    async def test_a_replay_begins_where_it_is_asked_to_and_has_an_end(self):
        for number in range(5):
            self.publisher.publish([{"type": "AllBlocksCleared"}] * number)
        dealer, _ = await self.connect(self.replay, b"DEALER")
        await dealer.send(zmtp.framed([b"", struct.pack(">Q", 3)]))
        answers = [await dealer.receive() for _ in range(3)]
        self.assertEqual([answer[2] for answer in answers], [struct.pack(">Q", 3), struct.pack(">Q", 4), b"\xff" * 8])
        self.assertEqual([len(answer) for answer in answers], [4, 4, 4])


if __name__ == "__main__":
    unittest.main()
