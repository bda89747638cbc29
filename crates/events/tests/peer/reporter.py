"""An engine that reports its cache by gRPC, from the proto file itself: stubs are made by protoc as users make them.

Arguments: address, proto file, a folder for the stubs, token, and for TLS the file of whom to believe. Commands, one a line, are reports as JSON in protobuf's own form;
prints `wish` for every wish, and `end STATUS` when the stream has ended. Ends with its standard input.
"""

import importlib
import pathlib
import queue
import sys
import threading

import grpc
from google.protobuf import json_format
from grpc_tools import protoc

address, proto, folder, token, *authority = sys.argv[1:]
proto = pathlib.Path(proto)
arguments = ["", f"-I{proto.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(proto)]
assert protoc.main(arguments) == 0
sys.path.insert(0, folder)
messages = importlib.import_module("events_pb2")
services = importlib.import_module("events_pb2_grpc")

reports = queue.Queue()
if authority:
    credentials = grpc.ssl_channel_credentials(pathlib.Path(authority[0]).read_bytes())
    channel = grpc.secure_channel(address, credentials, [("grpc.ssl_target_name_override", "localhost")])
else:
    channel = grpc.insecure_channel(address)
call = services.CacheEventsStub(channel).Follow(iter(reports.get, None), metadata=[("authorization", f"Bearer {token}")])


def listen():
    try:
        for wish in call:
            print("wish" if wish.sync else "nothing", flush=True)
        print("end OK", flush=True)
    except grpc.RpcError as error:
        print("end", error.code().name, error.details(), flush=True)


threading.Thread(target=listen, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    reports.put(json_format.Parse(line, messages.Report()))
reports.put(None)
