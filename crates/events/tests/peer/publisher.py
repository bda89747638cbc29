"""A publisher of events as vLLM has one, on libzmq: a PUB socket, and a ROUTER socket that replays.

Prints the two ports. Reads commands, one a line:
  send HEX       publishes a payload under the next number
  lose HEX       keeps a payload for replay only
Ends with its standard input. Arguments: port of PUB, port of ROUTER (0 for any), topic, and `topic` or `bare` for replay
with or without a topic frame.
"""

import os
import sys

import zmq

pub_port, router_port, topic, form = sys.argv[1:]
context = zmq.Context()


def bind(kind, port):
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 1000)
    if port == "0":
        return socket, socket.bind_to_random_port("tcp://127.0.0.1")
    socket.bind(f"tcp://127.0.0.1:{port}")
    return socket, port


pub, pub_port = bind(zmq.PUB, pub_port)
router, router_port = bind(zmq.ROUTER, router_port)
print(pub_port, router_port, flush=True)

ring, pending = [], b""
poller = zmq.Poller()
poller.register(0, zmq.POLLIN)
poller.register(router, zmq.POLLIN)
while True:
    ready = dict(poller.poll())
    if router in ready:
        client, empty, start = router.recv_multipart()
        assert empty == b"", empty
        head = [client, b""] + ([topic.encode()] if form == "topic" else [])
        for number, payload in enumerate(ring):
            if number >= int.from_bytes(start, "big"):
                router.send_multipart(head + [number.to_bytes(8, "big"), payload])
        end = [client, b""] + ([b""] if form == "topic" else [])
        router.send_multipart(end + [b"\xff" * 8, b""])
    if 0 in ready:
        read = os.read(0, 1 << 16)
        if not read:
            break
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            command, payload = line.decode().split(" ")
            number = len(ring).to_bytes(8, "big")
            ring.append(bytes.fromhex(payload))
            if command == "send":
                pub.send_multipart([topic.encode(), number, ring[-1]])
            else:
                assert command == "lose", command
context.destroy(linger=1000)
