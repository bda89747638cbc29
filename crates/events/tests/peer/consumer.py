"""A consumer on libzmq: subscribes to what begins with `kv`, prints what it gets, then asks for a replay from 7.

Arguments: port of PUB, port of ROUTER.
"""

import sys

import zmq

context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.setsockopt(zmq.SUBSCRIBE, b"kv")
sub.setsockopt(zmq.HEARTBEAT_IVL, 50)
sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1000)
sub.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
while True:
    frames = sub.recv_multipart()
    print(len(frames), len(frames[-1]), frames[0].decode(), flush=True)
    if frames[-1] == b"end":
        break

dealer = context.socket(zmq.DEALER)
dealer.connect(f"tcp://127.0.0.1:{sys.argv[2]}")
dealer.send_multipart([b"", (7).to_bytes(8, "big")])
print(*dealer.recv_multipart(), flush=True)
context.destroy(linger=0)
