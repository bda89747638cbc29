//! Traces: the client's context goes on to the pod, and spans go to a collector.

use crate::support::engines::Exchange;
use crate::support::gateway::{Gateway, eventually};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn ask(gateway: &Gateway) -> Exchange {
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "vendor=1")];
    let body = json!({"prompt": "private words", "max_tokens": 1});
    Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body)
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
    let pod = Recorder::start();
    let collector = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ntelemetry: {{otlp: \"http://{}\", share: 0}}\n",
        pod.address, collector.address
    );
    let gateway = Gateway::configured("traces_on", &text, 1);
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    let untraced = gateway.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(untraced.status, 200);
    eventually("spans came", || !collector.posted().is_empty());
    let export = collector.posted().remove(0);
    assert_eq!(export.path, "/v1/traces");
    assert_eq!(export.header("content-type"), Some("application/json"));
    let resource = &export.body["resourceSpans"][0];
    let service = &resource["resource"]["attributes"][0];
    assert_eq!(*service, json!({"key": "service.name", "value": {"stringValue": "wornpath"}}));
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "only what was to be traced");
    let root = &spans[0];
    assert_eq!((&root["parentSpanId"], &root["kind"]), (&json!(PARENT), &json!(2)));
    let names: Vec<_> = spans[1..].iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["prepare", "lookup", "filter", "score", "pick", "hold", "call"]);
    for (span, wanted) in [(3, "healthy -0, model -0"), (4, "predicted_ttft x1"), (6, "backlog")] {
        let told = spans[span]["attributes"].to_string();
        assert!(told.contains(wanted), "no {wanted} in {told}");
    }
    assert!(spans[5]["attributes"].to_string().contains("wornpath.pod"), "who was picked");
    let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for span in &spans[1..] {
        assert_eq!(span["parentSpanId"], root["spanId"]);
        let start = time(span, "startTimeUnixNano");
        let end = time(span, "endTimeUnixNano");
        assert!(start <= end && start >= time(root, "startTimeUnixNano"), "{span}");
    }
    assert!(now.as_nanos().abs_diff(time(root, "endTimeUnixNano")) < 60_000_000_000);
    assert!(!export.body.to_string().contains("private"), "no prompt is told");
    let sent = pod.posted().remove(0);
    let below = format!("00-{TRACE}-{}-01", root["spanId"].as_str().unwrap());
    assert_eq!(sent.header("traceparent"), Some(&*below), "the pod's part lies below ours");
    assert_eq!(sent.header("tracestate"), Some("vendor=1"));
    assert_eq!(pod.posted()[1].header("traceparent"), None);
    eventually("it is counted", || {
        gateway.metric("wornpath_traces_total{fate=\"exported\"}") as u64 == 1
    });
}

#[test]
fn queued_spans_are_exported_before_the_process_ends() {
    let pod = Recorder::start();
    let collector = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ntelemetry: {{otlp: \"http://{}\", share: 1}}\ndrain: {{lame_duck: 0s}}\n",
        pod.address, collector.address
    );
    let mut gateway = Gateway::configured("traces_end", &text, 1);
    assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    gateway.signal("-TERM");
    eventually("it ended", || gateway.child.try_wait().unwrap().is_some());
    assert!(!collector.posted().is_empty());
}

#[test]
fn a_malformed_trace_context_does_not_go_on_and_a_trace_of_our_own_begins() {
    let pod = Recorder::start();
    let collector = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ntelemetry: {{otlp: \"http://{}\", share: 1}}\n",
        pod.address, collector.address
    );
    let gateway = Gateway::configured("traces_malformed", &text, 1);
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
    let pod = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ntelemetry: {{otlp: \"http://127.0.0.1:9\", share: 1}}\n",
        pod.address
    );
    let gateway = Gateway::configured("traces_down", &text, 1);
    for _ in 0..5 {
        assert_eq!(ask(&gateway).finish().unwrap().status, 200);
    }
    eventually("it is counted", || {
        gateway.metric("wornpath_traces_total{fate=\"failed\"}") as u64 == 5
    });
    eventually("it is told", || gateway.log().contains("trace export failed"));
}
