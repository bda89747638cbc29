//! Traces: the client's context goes on to the pod, and spans go to a collector.

use crate::collector::messages::any_value::Value;
use crate::collector::messages::{Span, metric, number_data_point};
use crate::collector::{Collector, CollectorAnswer, Export};
use crate::support::engines::Exchange;
use crate::support::gateway::{Gateway, command, eventually, folder};
use crate::support::recorder::Recorder;
use serde_json::json;
use std::fs;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn ask(gateway: &Gateway) -> Exchange {
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "vendor=1")];
    let body = json!({"prompt": "private words", "max_tokens": 1});
    Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body)
}

/// A gateway in front of a pod, with more keys of `telemetry`.
fn exporting(test: &str, pod: &Recorder, collector: &Collector, keys: &str) -> Gateway {
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ndrain: {{lame_duck: 0s}}\n\
         telemetry: {{otlp: \"http://{}\", {keys}}}\n",
        pod.address, collector.address
    );
    Gateway::configured(test, &text, 1)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn spans(export: &Export) -> Vec<Span> {
    let resources = export.traces().resource_spans;
    resources.into_iter().flat_map(|it| it.scope_spans).flat_map(|it| it.spans).collect()
}

fn exported(gateway: &Gateway, fate: &str) -> u64 {
    gateway.metric(&format!("wornpath_traces_total{{fate=\"{fate}\"}}")) as u64
}

#[test]
fn without_a_collector_the_clients_trace_context_goes_on_untouched() {
    let pod = Recorder::start();
    let text = format!("pods: [{{url: \"http://{}\"}}]\n", pod.address);
    let gateway = Gateway::configured("traces_off", &text, 1);
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    let sent = pod.posted().remove(0);
    assert_eq!(sent.header("traceparent"), Some(&*format!("00-{TRACE}-{PARENT}-01")));
    assert_eq!(sent.header("tracestate"), Some("vendor=1"));
}

#[test]
fn a_collector_gets_a_span_for_the_request_and_below_it_for_everything_that_was_done() {
    for (protocol, path) in [
        ("http/protobuf", "/v1/traces"),
        ("grpc", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
    ] {
        let pod = Recorder::start();
        let collector = Collector::start();
        let keys = format!("share: 0, protocol: {protocol}");
        let gateway = exporting("traces_on", &pod, &collector, &keys);
        assert_eq!(ask(&gateway).finish().unwrap().status, 200);
        let untraced = gateway.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
        assert_eq!(untraced.status, 200);
        eventually("spans came", || !collector.exports().is_empty());
        let export = collector.exports().remove(0);
        assert_eq!(export.path, path);
        assert!(!export.is_compressed);
        let resource = export.traces().resource_spans.remove(0).resource.unwrap();
        let service = &resource.attributes[0];
        let name = service.value.clone().unwrap().value;
        assert_eq!(service.key, "service.name");
        assert_eq!(name, Some(Value::String("wornpath".to_owned())));
        let spans = spans(&export);
        assert!(
            spans.iter().all(|span| hex(&span.trace_id) == TRACE),
            "only what was to be traced"
        );
        let root = &spans[0];
        assert_eq!((hex(&root.parent_span_id).as_str(), root.kind), (PARENT, 2));
        let names: Vec<_> = spans[1..].iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["prepare", "lookup", "filter", "score", "pick", "hold", "call"]);
        let told = |span: usize| format!("{:?}", spans[span].attributes);
        for (span, wanted) in
            [(3, "healthy -0, model -0"), (4, "predicted_ttft x1"), (6, "backlog")]
        {
            assert!(told(span).contains(wanted), "no {wanted} in {}", told(span));
        }
        assert!(told(5).contains("wornpath.pod"), "the picked pod is named");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        for span in &spans[1..] {
            assert_eq!(span.parent_span_id, root.span_id);
            let start = span.start_time_unix_nano;
            assert!(start <= span.end_time_unix_nano, "{span:?}");
            assert!(start >= root.start_time_unix_nano, "{span:?}");
        }
        let ended = u128::from(root.end_time_unix_nano);
        assert!(now.as_nanos().abs_diff(ended) < 60_000_000_000);
        assert!(!format!("{export:?}").contains("private"), "no prompt is told");
        let sent = pod.posted().remove(0);
        let below = format!("00-{TRACE}-{}-01", hex(&root.span_id));
        assert_eq!(sent.header("traceparent"), Some(&*below), "the pod's part lies below ours");
        assert_eq!(sent.header("tracestate"), Some("vendor=1"));
        assert_eq!(pod.posted()[1].header("traceparent"), None);
        eventually("it is counted", || exported(&gateway, "exported") == 1);
    }
}

#[test]
fn queued_spans_and_metrics_are_exported_before_the_process_ends() {
    let pod = Recorder::start();
    let collector = Collector::start();
    let mut gateway = exporting("traces_end", &pod, &collector, "share: 1, metrics: 1h");
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    gateway.signal("-TERM");
    eventually("it ended", || gateway.child.try_wait().unwrap().is_some());
    let paths: Vec<_> = collector.exports().into_iter().map(|export| export.path).collect();
    assert_eq!(paths, ["/v1/traces", "/v1/metrics"]);
}

#[test]
fn a_malformed_trace_context_does_not_go_on_and_a_trace_of_our_own_begins() {
    let pod = Recorder::start();
    let collector = Collector::start();
    let gateway = exporting("traces_malformed", &pod, &collector, "share: 1");
    let malformed = format!("ff-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", malformed.as_str()), ("tracestate", "vendor=1")];
    let body = json!({"prompt": "a", "max_tokens": 1});
    let answer = Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body);
    assert_eq!(answer.finish().unwrap().status, 200);
    let sent = pod.posted().remove(0);
    let own = sent.header("traceparent").unwrap();
    assert!(own.starts_with("00-") && !own.contains(TRACE), "{own}");
    assert_eq!(sent.header("tracestate"), None);
}

#[test]
fn a_collector_that_is_down_costs_no_request_and_is_counted() {
    for (test, protocol) in [("traces_down", "http/protobuf"), ("traces_down_grpc", "grpc")] {
        let pod = Recorder::start();
        let text = format!(
            "pods: [{{url: \"http://{}\"}}]\ntelemetry:\n  {{otlp: \"http://127.0.0.1:9\", \
             share: 1, timeout: 500ms, protocol: {protocol}}}\n",
            pod.address
        );
        let gateway = Gateway::configured(test, &text, 1);
        for _ in 0..5 {
            assert_eq!(ask(&gateway).finish().unwrap().status, 200);
        }
        eventually("it is counted", || exported(&gateway, "failed") == 5);
        eventually("it is told", || gateway.log().contains("trace export failed"));
        assert!(gateway.log().contains("refused"), "{}", gateway.log());
    }
}

#[test]
fn a_collector_that_hangs_costs_no_request_and_is_counted() {
    let pod = Recorder::start();
    let collector = Collector::answering(&[CollectorAnswer::Hangs]);
    let gateway = exporting("traces_hang", &pod, &collector, "share: 1, timeout: 500ms");
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    eventually("it hangs", || collector.exports().len() == 1);
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    eventually("the first is given up", || exported(&gateway, "failed") == 1);
    eventually("the second comes after it", || exported(&gateway, "exported") == 1);
    assert!(gateway.log().contains("no response within 500ms"), "{}", gateway.log());
}

#[test]
fn an_export_is_tried_again_if_the_collector_is_overloaded_and_only_then() {
    let overloaded = CollectorAnswer::Refuses { http: 503, grpc: 14 };
    let wrong = CollectorAnswer::Refuses { http: 400, grpc: 3 };
    for (test, protocol) in [("traces_retry", "http/protobuf"), ("traces_retry_grpc", "grpc")] {
        let pod = Recorder::start();
        let collector = Collector::answering(&[overloaded, overloaded]);
        let keys = format!("share: 1, protocol: {protocol}");
        let gateway = exporting(test, &pod, &collector, &keys);
        assert_eq!(ask(&gateway).finish().unwrap().status, 200);
        eventually("it is exported", || exported(&gateway, "exported") == 1);
        assert_eq!(collector.exports().len(), 3);
        assert_eq!(spans(&collector.exports()[0]), spans(&collector.exports()[2]));
        assert_eq!(exported(&gateway, "failed"), 0);

        let collector = Collector::answering(&[wrong]);
        let gateway = exporting(test, &pod, &collector, &keys);
        assert_eq!(ask(&gateway).finish().unwrap().status, 200);
        eventually("it failed", || exported(&gateway, "failed") == 1);
        assert_eq!(collector.exports().len(), 1);
    }
}

#[test]
fn what_a_collector_rejects_of_an_export_counts_as_failed() {
    for (test, protocol) in [("traces_part", "http/protobuf"), ("traces_part_grpc", "grpc")] {
        let pod = Recorder::start();
        let collector = Collector::answering(&[CollectorAnswer::Rejects(3)]);
        let keys = format!("share: 1, protocol: {protocol}");
        let gateway = exporting(test, &pod, &collector, &keys);
        assert_eq!(ask(&gateway).finish().unwrap().status, 200);
        eventually("it failed", || exported(&gateway, "failed") == 1);
        eventually("it is told", || gateway.log().contains("collector rejected 3: too old"));
    }
}

#[test]
fn exports_are_compressed_and_carry_the_headers_of_a_file() {
    let secret = folder("traces_headers").join("headers");
    fs::write(&secret, "api-key=s%20cret\nx-team=router\n").unwrap();
    for (test, protocol) in [("traces_gzip", "http/protobuf"), ("traces_gzip_grpc", "grpc")] {
        let pod = Recorder::start();
        let collector = Collector::start();
        let keys = format!(
            "share: 1, compression: gzip, headers_file: \"{}\", protocol: {protocol}",
            secret.display()
        );
        let gateway = exporting(test, &pod, &collector, &keys);
        assert_eq!(ask(&gateway).finish().unwrap().status, 200);
        eventually("spans came", || !collector.exports().is_empty());
        let export = collector.exports().remove(0);
        assert!(export.is_compressed);
        assert_eq!((export.header("api-key"), export.header("x-team")), ("s cret", "router"));
        assert_eq!(spans(&export).len(), 8);
        let log = gateway.log();
        assert!(!log.contains("s cret") && !log.contains("s%20cret"), "{log}");
    }
}

#[test]
fn the_variables_of_opentelemetry_apply_where_the_configuration_says_nothing() {
    let pod = Recorder::start();
    let [traces, metrics] = [Collector::start(), Collector::start()];
    let path = folder("traces_variables").join("wornpath.yaml");
    let text = format!("pods: [{{url: \"http://{}\"}}]\ntelemetry: {{share: 1}}\n", pod.address);
    fs::write(&path, text).unwrap();
    let arguments = ["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"];
    let mut command = command(&arguments);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", traces.address))
        .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("http://{}/own", metrics.address))
        .env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a,other=b")
        .env("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "api-key=c")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .env("OTEL_METRICS_EXPORTER", "otlp")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "50")
        .env("OTEL_SERVICE_NAME", "edge")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test%20bed,service.name=x");
    let gateway = Gateway::spawn(command, &arguments, 1);
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    eventually("spans came", || !traces.exports().is_empty());
    eventually("metrics came", || !metrics.exports().is_empty());
    let trace = traces.exports().remove(0);
    let metric = metrics.exports().remove(0);
    assert_eq!(trace.path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!((trace.header("api-key"), trace.header("other")), ("a", "b"));
    assert_eq!((metric.path.as_str(), metric.header("api-key")), ("/own", "c"));
    assert!(!metric.headers.contains_key("other"), "those of one signal replace the general ones");
    assert!(trace.is_compressed && metric.is_compressed);
    let resource = trace.traces().resource_spans.remove(0).resource.unwrap();
    let attributes = format!("{:?}", resource.attributes);
    assert!(attributes.contains("edge") && attributes.contains("test bed"), "{attributes}");
    assert!(!attributes.contains("\"x\""), "{attributes}");
}

#[test]
fn a_collector_gets_the_metrics_that_prometheus_gets() {
    for (test, protocol) in [("metrics_http", "http/protobuf"), ("metrics_grpc", "grpc")] {
        let pod = Recorder::start();
        let collector = Collector::start();
        let keys = format!("share: 0, metrics: 50ms, protocol: {protocol}");
        let gateway = exporting(test, &pod, &collector, &keys);
        let untraced = gateway.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
        assert_eq!(untraced.status, 200);
        let requests = |export: &Export| {
            let metrics = export.metrics().resource_metrics.remove(0).scope_metrics.remove(0);
            let metric =
                metrics.metrics.into_iter().find(|it| it.name == "wornpath_requests_total");
            let Some(metric::Data::Sum(sum)) = metric.unwrap().data else { panic!("no sum") };
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
            sum.data_points
        };
        eventually("the request is counted", || {
            collector.exports().last().is_some_and(|export| !requests(export).is_empty())
        });
        let last = collector.exports().pop().unwrap();
        let point = requests(&last).remove(0);
        assert_eq!(point.value, Some(number_data_point::Value::AsInt(1)));
        assert!(
            0 < point.start_time_unix_nano && point.start_time_unix_nano < point.time_unix_nano
        );
        assert!(format!("{:?}", point.attributes).contains("completions"));
        let metrics = last.metrics().resource_metrics.remove(0).scope_metrics.remove(0).metrics;
        let seconds = metrics.iter().find(|it| it.name == "wornpath_request_seconds").unwrap();
        assert_eq!(seconds.unit, "s");
        let Some(metric::Data::Histogram(histogram)) = &seconds.data else {
            panic!("no histogram")
        };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.bucket_counts.iter().sum::<u64>()), (1, 1));
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(point.sum.unwrap() > 0.0);
        eventually("exports are counted", || {
            gateway.metric("wornpath_metric_exports_total{fate=\"exported\"}") >= 1.0
        });
        let page = gateway.get("/metrics").text;
        for metric in &metrics {
            assert!(page.contains(&format!("# TYPE {} ", metric.name)), "{}", metric.name);
        }
    }
}
