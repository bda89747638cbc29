"""Cache events on the wire: a ZeroMQ publisher over plain sockets (ZMTP 3.0, mechanism NULL), and msgpack."""

import socket
import struct
import threading

GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(body, flags=0):
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body


def message(*parts):
    return b"".join(frame(part, 0 if part is parts[-1] else 1) for part in parts)


def ready(kind=b"PUB"):
    return frame(b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind, 4)


def pack(value):
    """A value in msgpack."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, dict):
        return b"\xdf" + struct.pack(">I", len(value)) + b"".join(pack(key) + pack(item) for key, item in value.items())
    head = b"\xdd" + struct.pack(">I", len(value))
    if isinstance(value, range):
        # Many numbers at once.
        return head + struct.pack(">" + "BI" * len(value), *(part for number in value for part in (0xCE, number)))
    return head + b"".join(pack(item) for item in value)


def stored(hashes, tokens, parent=None, block_size=16):
    """vLLM's event for blocks that were stored, in the layout of arrays."""
    return ["BlockStored", hashes, parent, tokens, block_size, None, "GPU"]


def batch(*events):
    return pack([0.0, list(events), None])


def numbered(sequence, payload, topic=b"kv@a@m"):
    """A message of the event stream."""
    return message(topic, struct.pack(">Q", sequence & (1 << 64) - 1), payload)


def hold(stream):
    """Keeps the connection open until the router closes it."""
    while stream.recv(4096):
        pass


class Publisher:
    """Calls `talk(stream)` for each subscriber; by default after the handshake, with a socket that is subscribed."""

    def __init__(self, talk, shake_hands=True):
        self.talk, self.shake_hands, self.subscribers = talk, shake_hands, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(stream)
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream):
        stream.settimeout(20)
        try:
            if self.shake_hands:
                stream.sendall(GREETING + ready())
                stream.recv(4096)
            self.subscribers += 1
            self.talk(stream)
        except OSError:
            pass  # The router has closed the connection.
        finally:
            stream.close()

    def end(self):
        for stream in [self._listener, *self._open]:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            stream.close()
