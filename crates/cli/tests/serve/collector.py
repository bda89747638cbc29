"""A collector of OTLP over HTTP and gRPC, with the messages and services that OpenTelemetry publishes.

It prints its two ports, and then every export as a line of JSON. It ends with its input.
"""

import base64
import gzip
import http.server
import json
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_service

printing = threading.Lock()


def with_hex_ids(value):
    """The same with ids in hexadecimal; protobuf's JSON has them in base64."""
    if isinstance(value, list):
        return [with_hex_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: base64.b64decode(item).hex() if key in ids else with_hex_ids(item) for key, item in value.items()}


def show(over, request):
    known = type(request)()
    known.CopyFrom(request)
    known.DiscardUnknownFields()
    line = with_hex_ids(MessageToDict(known))
    line |= {"over": over, "unknownBytes": request.ByteSize() - known.ByteSize()}
    with printing:
        print(json.dumps(line), flush=True)


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        kinds = {
            "/v1/traces": (traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse),
            "/v1/metrics": (metrics.ExportMetricsServiceRequest, metrics.ExportMetricsServiceResponse),
        }
        request, response = kinds[self.path]
        assert self.headers["content-type"] == "application/x-protobuf"
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        show("http", request.FromString(body))
        answer = response().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Traces(trace_service.TraceServiceServicer):
    def Export(self, request, context):
        show("grpc", request)
        return traces.ExportTraceServiceResponse()


class Metrics(metrics_service.MetricsServiceServicer):
    def Export(self, request, context):
        show("grpc", request)
        return metrics.ExportMetricsServiceResponse()


web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
threading.Thread(target=web.serve_forever, daemon=True).start()
server = grpc.server(futures.ThreadPoolExecutor(2))
trace_service.add_TraceServiceServicer_to_server(Traces(), server)
metrics_service.add_MetricsServiceServicer_to_server(Metrics(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(web.server_port, port, flush=True)
sys.stdin.read()
