//! The metrics page after real traffic, as Prometheus reads it in both formats.

use crate::collector::Collector;
use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually, folder};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A gateway that has streamed, answered and refused requests, some of them traced.
fn with_traffic(test: &str, engines: &Engines, collector: &Collector) -> Gateway {
    let told = &engines.engines[0];
    let text = format!(
        "telemetry: {{otlp: \"http://{}\", share: 0}}\nmetrics: {{tenants: 1}}\n\
         models: [{{name: m, tokenizer: bytes}}]\n\
         pods: [{{name: \"a \\\"quoted\\\" pod\", url: \"http://{}\", model: m, engine: vllm, events: \"zmq://{}?replay={}\"}}]\n\
         tenants:\n  \
         - {{name: gold, key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"}}\n  \
         - {{name: tin, key_digest: \"sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\"}}\n",
        collector.address, told.http, told.events, told.replay
    );
    let gateway = Gateway::configured(test, &text, 1);
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    for (key, stream) in [("a", true), ("a", false), ("b", true), ("wrong", false)] {
        let key = format!("Bearer {key}");
        let headers = [("authorization", key.as_str()), ("traceparent", parent.as_str())];
        let prompt = "words that are shared ".repeat(30);
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 8, "stream": stream});
        let asked = Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body);
        asked.finish().unwrap();
    }
    gateway
}

/// The page in the format of this `accept`, and its content type.
fn page(address: &str, accept: &str) -> (String, String) {
    let head = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\naccept: {accept}\r\n");
    let answer = Exchange::send(address, &head, "").finish().unwrap();
    assert_eq!(answer.status, 200);
    (answer.header("content-type").unwrap().to_owned(), answer.text)
}

/// What Prometheus' own tool says; none where it is not installed.
fn promtool(arguments: &[&str], folder: &Path, input: &str) -> Option<Result<(), String>> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(folder).stdin(Stdio::piped());
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        let is_required = std::env::var("WORNPATH_PEERS").is_ok_and(|it| it == "required");
        assert!(!is_required, "promtool is missing, and WORNPATH_PEERS=required");
        eprintln!("NOT SHOWN: Prometheus' own opinion, because there is no promtool");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    Some(if output.status.success() { Ok(()) } else { Err(told) })
}

/// The page with a time for every sample, which reading it into a database needs.
fn with_times(page: &str) -> String {
    let dated = |line: &str| match (line.starts_with('#'), line.split_once(" # {")) {
        (true, _) => format!("{line}\n"),
        (false, Some((sample, exemplar))) => format!("{sample} 1700000000 # {{{exemplar}\n"),
        (false, None) => format!("{line} 1700000000\n"),
    };
    page.lines().map(dated).collect()
}

#[test]
fn prometheus_reads_the_page_in_both_formats() {
    let engines = Engines::start(&["--model", "m"]);
    let collector = Collector::start();
    let gateway = with_traffic("metrics_formats", &engines, &collector);
    let folder = folder("metrics_formats_read");
    for address in [&gateway.address, gateway.admin.as_ref().unwrap()] {
        let (kind, text) = page(address, "text/plain;version=0.0.4");
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        if let Some(Err(told)) = promtool(&["check", "metrics"], &folder, &text) {
            panic!("{told}\n{text}");
        }
        // As Prometheus asks by default.
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,\
                      application/openmetrics-text;version=0.0.1;q=0.4,text/plain;q=0.2,*/*;q=0.1";
        let (kind, text) = page(address, accept);
        assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(text.ends_with("\n# EOF\n") && text.contains(&format!("trace_id=\"{TRACE}\"")));
        fs::write(folder.join("page.txt"), with_times(&text)).unwrap();
        let read = ["tsdb", "create-blocks-from", "openmetrics", "page.txt", "blocks"];
        if let Some(Err(told)) = promtool(&read, &folder, "") {
            panic!("{told}\n{text}");
        }
    }
}

#[test]
fn the_page_has_times_and_tokens_by_model_and_tenant_and_the_process() {
    // Real engines' speed: faster ones send several tokens in one chunk.
    let engines = Engines::start_at("1", &["--model", "m"]);
    let collector = Collector::start();
    let gateway = with_traffic("metrics_traffic", &engines, &collector);
    let of = |name: &str, tenant: &str| {
        let labels = format!("profile=\"cache-aware\",model=\"m\",tenant=\"{tenant}\"");
        gateway.metric(&format!("wornpath_traffic_{name}{{{labels}}}"))
    };
    eventually("all requests have ended", || of("request_seconds_count", "gold") == 2.0);
    assert_eq!(of("request_seconds_count", "other"), 1.0, "one tenant has series of its own");
    assert_eq!(
        (of("first_token_seconds_count", "gold"), of("queue_seconds_count", "gold")),
        (1.0, 2.0)
    );
    let gaps = of("inter_token_seconds_count", "gold");
    assert!((5.0..9.0).contains(&gaps), "eight tokens have about seven gaps, not {gaps}");
    let first = of("first_token_seconds_sum", "gold");
    assert!(first > 0.0 && first < of("request_seconds_sum", "gold"), "{first}");
    let output = "profile=\"cache-aware\",model=\"m\",tenant=\"gold\",source=\"engine\"";
    let output = gateway.metric(&format!("wornpath_traffic_output_tokens_total{{{output}}}"));
    assert_eq!(output, 16.0);
    assert!(of("cached_tokens_total", "gold") > 100.0);
    assert!(gateway.metric("process_resident_memory_bytes") > 1e6);
    assert!(gateway.metric("process_open_fds") > 3.0);
    let refused = "profile=\"\",model=\"\",tenant=\"\",status=\"401\",end=\"refused\"";
    assert_eq!(gateway.metric(&format!("wornpath_traffic_requests_total{{{refused}}}")), 1.0);
}

/// The query of the page on autoscaling, on counters that grow by known amounts.
#[test]
fn the_documented_query_gives_the_hit_rate_that_leaves_with_each_pod() {
    let page_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/autoscaling.md");
    let docs = fs::read_to_string(page_path).unwrap();
    let query = docs.split("```\n").find(|block| block.starts_with("sum by (pod)")).unwrap().trim();
    // Amounts a minute whose quotients are exact in binary.
    let series = |name: &str, pod: &str, a_minute: u32| {
        let labels = format!("profile=\"cache-aware\",pod=\"{pod}\"");
        json!({"series": format!("{name}{{{labels}}}"), "values": format!("0+{a_minute}x30")})
    };
    let [told, unique] =
        ["wornpath_prompt_tokens_told_total", "wornpath_cached_tokens_unique_total"];
    let sample =
        |pod: &str, value: f64| json!({"labels": format!("{{pod=\"{pod}\"}}"), "value": value});
    let tests = json!({
        "rule_files": [],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [
                series(told, "a", 32_000), series(told, "b", 32_000),
                series(unique, "a", 16_000), series(unique, "b", 8_000),
            ],
            "promql_expr_test": [{
                "expr": query, "eval_time": "20m",
                "exp_samples": [sample("a", 0.25), sample("b", 0.125)],
            }],
        }],
    });
    let folder = folder("metrics_documented_query");
    fs::write(folder.join("tests.yml"), tests.to_string()).unwrap();
    if let Some(Err(why)) = promtool(&["test", "rules", "tests.yml"], &folder, "") {
        panic!("{why}\n{query}");
    }
    let engines = Engines::start(&["--model", "m"]);
    let collector = Collector::start();
    let gateway = with_traffic("metrics_query", &engines, &collector);
    let (_, text) = page(&gateway.address, "text/plain;version=0.0.4");
    for name in [told, unique] {
        assert!(query.contains(name), "{query}");
        let has_pod = |line: &str| line.starts_with(&format!("{name}{{")) && line.contains("pod=");
        assert!(text.lines().any(has_pod), "no {name} by pod\n{text}");
    }
}
