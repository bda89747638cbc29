//! Exports, as a collector reads them with the messages that the OpenTelemetry project publishes.

use crate::peer::{Peer, has};
use crate::support::engines::Exchange;
use crate::support::gateway::Gateway;
use crate::support::recorder::Recorder;
use serde_json::{Value, json};

const COLLECTOR: &str = "../../../cli/tests/serve/collector.py";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The next export with this key that is not empty there.
fn next(collector: &mut Peer, over: &str, key: &str) -> Value {
    loop {
        let line = collector.line();
        let mut export: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        assert_eq!(export["unknownBytes"], 0, "fields of another number or type: {export}");
        assert_eq!(export["over"], over);
        if let Some(Value::Array(all)) = export.get_mut(key) {
            return all.remove(0);
        }
    }
}

fn metric<'a>(export: &'a Value, name: &str) -> &'a Value {
    let metrics = export["scopeMetrics"][0]["metrics"].as_array().unwrap();
    metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// A 64-bit integer, which is a string in JSON.
fn number(value: &Value) -> u64 {
    value.as_str().unwrap_or_else(|| panic!("{value}")).parse().unwrap()
}

fn check_traces(export: &Value) {
    let service = json!({"key": "service.name", "value": {"stringValue": "wornpath"}});
    assert_eq!(export["resource"]["attributes"], json!([service]));
    let scope = &export["scopeSpans"][0]["scope"];
    assert_eq!(*scope, json!({"name": "wornpath", "version": env!("CARGO_PKG_VERSION")}));
    let spans = export["scopeSpans"][0]["spans"].as_array().unwrap();
    let names: Vec<_> = spans[1..].iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["prepare", "lookup", "filter", "score", "pick", "hold", "call"]);
    let root = &spans[0];
    assert_eq!((&root["traceId"], &root["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!(root["kind"], "SPAN_KIND_SERVER");
    let has = |key: &str, value: Value| {
        let attributes = root["attributes"].as_array().unwrap();
        assert!(attributes.contains(&json!({"key": key, "value": value})), "{key} in {root}");
    };
    has("http.request.method", json!({"stringValue": "POST"}));
    has("http.response.status_code", json!({"intValue": "200"}));
    has("wornpath.has_waited", json!({"boolValue": false}));
    assert_eq!(spans[7]["kind"], "SPAN_KIND_CLIENT");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let start = number(&root["startTimeUnixNano"]);
    let end = number(&root["endTimeUnixNano"]);
    assert!(start < end && (now.as_nanos() as u64).abs_diff(end) < 60_000_000_000, "{root}");
    for span in &spans[1..] {
        assert_eq!(span["traceId"], TRACE);
        assert_eq!(span["parentSpanId"], root["spanId"]);
        assert!(number(&span["startTimeUnixNano"]) <= number(&span["endTimeUnixNano"]), "{span}");
    }
}

fn check_metrics(export: &Value) {
    let requests = &metric(export, "wornpath_requests_total")["sum"];
    assert_eq!(requests["isMonotonic"], true);
    assert_eq!(requests["aggregationTemporality"], "AGGREGATION_TEMPORALITY_CUMULATIVE");
    let point = &requests["dataPoints"][0];
    assert_eq!(point["asInt"], "1");
    assert!(number(&point["startTimeUnixNano"]) < number(&point["timeUnixNano"]), "{point}");
    assert!(point["attributes"].to_string().contains("completions"), "{point}");
    let usage = &metric(export, "wornpath_pod_kv_usage_ratio")["gauge"]["dataPoints"][0];
    assert!(usage["asDouble"].is_number(), "{usage}");
    let seconds = metric(export, "wornpath_request_seconds");
    assert_eq!(seconds["unit"], "s");
    assert!(!seconds["description"].as_str().unwrap().is_empty());
    let histogram = &seconds["histogram"]["dataPoints"][0];
    assert_eq!(histogram["count"], "1");
    assert!(histogram["sum"].as_f64().unwrap() > 0.0);
    let counts = histogram["bucketCounts"].as_array().unwrap();
    assert_eq!(counts.iter().map(number).sum::<u64>(), 1);
    let bounds = histogram["explicitBounds"].as_array().unwrap();
    assert_eq!(counts.len(), bounds.len() + 1);
}

#[test]
fn a_collector_with_the_published_messages_reads_spans_and_metrics() {
    let probe = "import grpc; from opentelemetry.proto.collector.trace.v1 import trace_service_pb2";
    if !has(probe, "grpcio opentelemetry-proto") {
        return;
    }
    for (protocol, over, compression) in [
        ("http/protobuf", "http", "none"),
        ("http/protobuf", "http", "gzip"),
        ("grpc", "grpc", "gzip"),
    ] {
        let pod = Recorder::start();
        let mut collector = Peer::start(COLLECTOR, &[]);
        let ports = collector.line();
        let (http, grpc) = ports.split_once(' ').unwrap_or_else(|| panic!("{ports:?}"));
        let port = if over == "grpc" { grpc } else { http };
        let text = format!(
            "pods: [{{url: \"http://{}\"}}]\ntelemetry:\n  {{otlp: \"http://127.0.0.1:{port}\", \
             share: 0, metrics: 1h, protocol: {protocol}, compression: {compression}}}\n",
            pod.address
        );
        let gateway = Gateway::configured("otlp_peer", &text, 1);
        let parent = format!("00-{TRACE}-{PARENT}-01");
        let headers = [("traceparent", parent.as_str())];
        let body = json!({"prompt": "a", "max_tokens": 1});
        let exchange = Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body);
        assert_eq!(exchange.finish().unwrap().status, 200);
        check_traces(&next(&mut collector, over, "resourceSpans"));
        // Metrics are exported once more at the end.
        gateway.signal("-TERM");
        check_metrics(&next(&mut collector, over, "resourceMetrics"));
    }
}
