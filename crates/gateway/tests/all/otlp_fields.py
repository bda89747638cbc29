"""Compares our messages of OTLP, a FileDescriptorSet on standard input, with those that OpenTelemetry publishes.

It prints how many fields it has compared, and fails at the first that has another number, type or label.
"""

import sys

from google.protobuf import descriptor_pb2, descriptor_pool
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

ROOTS = [
    ("ExportTraces", traces.ExportTraceServiceRequest),
    ("ExportMetrics", metrics.ExportMetricsServiceRequest),
    ("ExportResponse", traces.ExportTraceServiceResponse),
    ("ExportResponse", metrics.ExportMetricsServiceResponse),
    ("RpcStatus", status_pb2.Status),
    ("RetryInfo", error_details_pb2.RetryInfo),
]
compared = set()


def compare(ours, theirs):
    for field in ours.fields:
        key = (theirs.full_name, field.number)
        if key in compared:
            continue
        compared.add(key)
        name = f"{ours.name}.{field.name} = {field.number}"
        other = theirs.fields_by_number.get(field.number)
        assert other, f"{name}: {theirs.full_name} has no field of that number"
        # Ours are shorter: `string` is `string_value` there.
        assert other.name.startswith(field.name), f"{name}: it is {other.full_name}"
        assert field.type == other.type, f"{name}: {other.full_name} has another type"
        assert field.is_repeated == other.is_repeated, f"{name}: {other.full_name} has another label"
        if field.message_type:
            compare(field.message_type, other.message_type)
        if field.enum_type:
            for value in field.enum_type.values:
                known = other.enum_type.values_by_number.get(value.number)
                assert known and known.name == value.name, f"{value.name} = {value.number}: {known and known.name}"


pool = descriptor_pool.DescriptorPool()
for file in descriptor_pb2.FileDescriptorSet.FromString(sys.stdin.buffer.read()).file:
    pool.Add(file)
for name, theirs in ROOTS:
    compare(pool.FindMessageTypeByName(f"otlp.{name}"), theirs.DESCRIPTOR)
print(len(compared))
