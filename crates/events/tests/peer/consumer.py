"""A consumer on libzmq: subscribes to topics that begin with `kv`, prints a message, waits longer than libzmq's heartbeat
timeout for a disconnection, then requests a replay from 7.

Arguments: port of PUB, port of ROUTER.
"""

import sys

import zmq

context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.setsockopt(zmq.SUBSCRIBE, b"kv")
sub.setsockopt(zmq.HEARTBEAT_IVL, 50)
sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 200)
monitor = sub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
sub.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
frames = sub.recv_multipart()
print(len(frames), len(frames[-1]), frames[0].decode(), flush=True)
# libzmq disconnects from a peer that does not answer its pings within the timeout.
print("disconnected" if monitor.poll(600) else "still connected", flush=True)

dealer = context.socket(zmq.DEALER)
dealer.connect(f"tcp://127.0.0.1:{sys.argv[2]}")
dealer.send_multipart([b"", (7).to_bytes(8, "big")])
print(*dealer.recv_multipart(), flush=True)
context.destroy(linger=0)
