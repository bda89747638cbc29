//! The cases that public endpoint pickers test, in our words, and those of the protocol.

use super::super::proto::ListValue;
use super::*;
use crate::observe::summary::RequestEnd;
use hyper::StatusCode;
use std::time::Duration;

fn list(texts: &[&str]) -> Value {
    let values = texts.iter().map(|it| text(it)).collect();
    Value { kind: Some(value::Kind::ListValue(ListValue { values })) }
}

/// A profile that does not read the prompt.
fn profile(rules: &str) -> String {
    format!(
        "profiles:\n  p:\n    prepare: []\n    filter: [healthy, model]\n{rules}\n    pick: max_score\n"
    )
}

#[tokio::test]
async fn a_pick_is_a_list_in_header_and_metadata_and_the_body_follows_it() {
    let bench = Bench::new();
    let body = prompt("hello");
    let mut asked = bench.ask(&[], &body).await;
    let destinations = asked.picked().destinations();
    assert_eq!(destinations.len(), 3, "the chosen pod and two fallbacks");
    assert!(destinations.iter().all(|at| PODS.contains(&at.as_str())), "{destinations:?}");
    let Response::RequestBody(chunk) = asked.stream.answer().await else { panic!() };
    assert_eq!(streamed(chunk.response), (Bytes::from(body), true));
    assert_eq!(bench.load(), 1);
    drop(asked);
    assert_eq!(bench.load(), 0);
    let [left] = &bench.ended()[..] else { panic!() };
    assert_eq!((left.ended, left.status), (RequestEnd::ClientLeft, 499));
}

#[tokio::test]
async fn a_picker_for_clusters_that_take_one_address_names_one() {
    let pods = PODS.map(|at| format!("  - {{url: \"http://{at}\", model: m}}\n")).concat();
    let text = format!(
        "listen: {{epp: {{address: \"127.0.0.1:9002\", destinations: one}}}}\npods:\n{pods}"
    );
    let bench = Bench::of_text(&text);
    assert_eq!(bench.ask(&[], &prompt("x")).await.picked().destinations().len(), 1);
}

#[tokio::test]
async fn picks_stay_inside_the_subset_and_an_empty_one_is_refused() {
    let bench = Bench::new();
    for hint in [
        list(&["192.168.1.2:8000"]),
        text(" 192.168.1.2:8000 "),
        list(&["192.168.1.2", "10.0.0.9:8000"]),
    ] {
        let asked = bench.ask_in_subset(hint, &prompt("x")).await;
        assert_eq!(asked.picked().destinations(), ["192.168.1.2:8000"]);
    }
    for hint in [list(&[]), text("10.0.0.9:8000"), text("192.168.1.2:9")] {
        let refused = bench.ask_in_subset(hint, &prompt("x")).await.refused();
        assert_eq!(code(&refused), 503);
        assert_eq!(dropped(&refused).unwrap(), "rejected-no-endpoints");
    }
    let namespace = ("envoy.lb.subset_hint".to_owned(), Struct::default());
    let metadata = Metadata { filter_metadata: [namespace].into() };
    let asked = bench.ask_about(head(&[]), Some(metadata), &prompt("x")).await;
    assert_eq!(asked.picked().destinations().len(), 3);
}

#[tokio::test]
async fn test_headers_choose_pods_and_name_the_selected_and_the_serving_one_only_if_allowed() {
    let pods = PODS.map(|at| format!("  - {{url: \"http://{at}\", model: m}}\n")).concat();
    let bench = Bench::of_text(&format!(
        "listen: {{epp: {{address: \"127.0.0.1:9002\", test_hooks: true}}}}\npods:\n{pods}"
    ));
    for (selection, expected) in [("192.168.1.3:8000", PODS[2]), ("10.0.0.1, 192.168.1.2", PODS[1])]
    {
        let selection = [("test-epp-endpoint-selection", selection)];
        let mut asked = bench.ask(&selection, &prompt("x")).await;
        assert_eq!(asked.picked().destinations(), [expected]);
        let Response::RequestBody(_) = asked.stream.answer().await else { panic!() };
        let head = response_head(&[(":status", "200")], true);
        asked.stream.send(head, Some(served_by(PODS[0]))).await;
        let Response::ResponseHeaders(answer) = asked.stream.answer().await else { panic!() };
        let changes = answer.response.unwrap().header_mutation.unwrap().set_headers;
        let shown = |name: &str| header(changes.iter(), name).unwrap();
        assert_eq!(shown("x-conformance-test-selected-endpoint"), expected);
        assert_eq!(shown("x-conformance-test-served-endpoint"), PODS[0]);
    }
    let nowhere = [("test-epp-endpoint-selection", "256.256.256.256")];
    assert_eq!(code(&bench.ask(&nowhere, &prompt("x")).await.refused()), 503);
    let asked = Bench::new().ask(&nowhere, &prompt("x")).await;
    assert_eq!(asked.picked().destinations().len(), 3, "ordinary clients do not choose");
}

#[tokio::test]
async fn answers_carry_the_score_of_every_candidate_if_that_is_set() {
    let pods = PODS.map(|at| format!("  - {{url: \"http://{at}\", model: m}}\n")).concat();
    let scores = profile("    score: [queue_depth]");
    let bench = Bench::of_text(&format!(
        "listen: {{epp: {{address: \"127.0.0.1:9002\", scores: true}}}}\npods:\n{pods}{scores}"
    ));
    for (entry, waiting) in bench.gateway.snapshot().entries().iter().zip([3, 0, 10]) {
        entry.pod.state().report(waiting, 0.5);
    }
    for _ in 0..3 {
        let asked = bench.ask(&[], &prompt("x")).await;
        let picked = asked.picked();
        let scores = picked.scores.clone();
        assert_eq!(scores.len(), 3, "{scores:?}");
        assert!(scores[PODS[1]] > scores[PODS[0]] && scores[PODS[0]] > scores[PODS[2]]);
        assert_eq!(picked.destinations(), [PODS[1], PODS[0], PODS[2]], "the best first");
    }
    assert!(Bench::new().ask(&[], &prompt("x")).await.picked().scores.is_empty());
}

#[tokio::test]
async fn a_pod_that_has_the_adapter_loaded_is_picked_again_though_its_cache_is_fuller() {
    let bench =
        Bench::with(&profile("    score: [{lora_affinity: {weight: 2}}, kv_usage, queue_depth]"));
    let body = json!({"model": "a", "prompt": "x"}).to_string();
    let load = |numbers: [(u32, f64); 3]| {
        let snapshot = bench.gateway.snapshot();
        for (entry, (waiting, usage)) in snapshot.entries().iter().zip(numbers) {
            entry.pod.state().report(waiting, usage);
        }
    };
    load([(0, 0.2), (0, 0.1), (10, 0.2)]);
    assert_eq!(bench.ask(&[], &body).await.picked().destinations()[0], PODS[1]);
    load([(0, 0.1), (0, 0.6), (0, 0.1)]);
    assert_eq!(bench.ask(&[], &body).await.picked().destinations()[0], PODS[1]);
    let base = bench.ask(&[], &prompt("x")).await.picked().destinations();
    assert_ne!(base[0], PODS[1], "requests without an adapter are not drawn to it");
}

#[tokio::test]
async fn without_pods_a_request_is_refused_and_counted_as_refused() {
    let listen = "listen: {epp: \"127.0.0.1:9002\", admin: \"127.0.0.1:9090\"}\n";
    let bench = Bench::of_text(listen);
    let refused = bench.ask(&[], &prompt("x")).await.refused();
    assert_eq!(
        (code(&refused), dropped(&refused).unwrap().as_str()),
        (503, "rejected-no-endpoints")
    );
    let [summary] = &bench.ended()[..] else { panic!() };
    assert_eq!((summary.ended, summary.status), (RequestEnd::Refused, 503));
}

#[tokio::test]
async fn a_body_without_a_model_or_without_json_is_bad() {
    let bench = Bench::new();
    for body in [r#"{"prompt": "x"}"#, r#"{"model": ""}"#, "{", "no JSON", ""] {
        let refused = bench.ask(&[], body).await.refused();
        assert_eq!((code(&refused), dropped(&refused)), (400, None), "{body}");
        let error: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
        assert!(error["error"]["message"].is_string(), "{error}");
    }
}

#[tokio::test]
async fn a_request_without_a_body_is_picked_at_once_and_without_a_model() {
    let bench = Bench::new();
    let get = [(":method", "GET"), (":path", "/v1/models/m")];
    let head = HttpHeaders { headers: Some(header_map(&get)), end_of_stream: true };
    let mut stream = bench.stream();
    stream.send(Request::RequestHeaders(head), None).await;
    let first = stream.next().await;
    let mut asked = Asked { first, stream };
    assert_eq!(asked.picked().destinations().len(), 3);
    asked.stream.send(response_head(&[(":status", "204")], true), None).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseHeaders(_)));
    asked.stream.close().await;
    assert!(asked.stream.next().await.is_none());
    assert_eq!((bench.load(), bench.ended()[0].status), (0, 204));
}

#[tokio::test]
async fn a_request_without_a_body_is_refused_without_a_pod_and_for_a_path_that_engines_do_not_get()
{
    let none = "listen: {epp: \"127.0.0.1:9002\", admin: \"127.0.0.1:9090\"}\n";
    for (bench, path, expected) in [
        (Bench::of_text(none), "/v1/models", (503, Some("rejected-no-endpoints"))),
        (Bench::new(), "/reset_prefix_cache", (404, None)),
    ] {
        let get = [(":method", "GET"), (":path", path)];
        let head = HttpHeaders { headers: Some(header_map(&get)), end_of_stream: true };
        let mut stream = bench.stream();
        stream.send(Request::RequestHeaders(head), None).await;
        let first = stream.next().await;
        let refused = Asked { first, stream }.refused();
        assert_eq!((code(&refused), dropped(&refused).as_deref()), expected, "{path}");
    }
}

#[tokio::test]
async fn the_pod_with_the_shorter_queue_and_the_emptier_cache_is_picked() {
    let bench = Bench::with(&profile("    score: [queue_depth, kv_usage]"));
    for (order, numbers) in
        [([1, 0, 2], [(3, 0.2), (0, 0.1), (10, 0.3)]), ([2, 1, 0], [(3, 0.9), (3, 0.8), (3, 0.1)])]
    {
        let snapshot = bench.gateway.snapshot();
        for (entry, (waiting, usage)) in snapshot.entries().iter().zip(numbers) {
            entry.pod.state().report(waiting, usage);
        }
        let picked = bench.ask(&[], &prompt("x")).await.picked().destinations();
        assert_eq!(picked, order.map(|at| PODS[at]), "{numbers:?}");
    }
}

#[tokio::test]
async fn a_model_is_rewritten_in_the_body_with_its_length_under_both_names_of_the_header() {
    for name in ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"] {
        let bench = Bench::new();
        let body = r#"{"model":"the public name","prompt":"x"}"#;
        let length = body.len().to_string();
        let mut asked = bench.ask(&[(name, "m"), ("content-length", &length)], body).await;
        let length = asked.picked().header("content-length").unwrap();
        let Response::RequestBody(chunk) = asked.stream.answer().await else { panic!() };
        let (rewritten, is_last) = streamed(chunk.response);
        assert_eq!((rewritten.len().to_string(), is_last), (length, true));
        let rewritten: serde_json::Value = serde_json::from_slice(&rewritten).unwrap();
        assert_eq!(rewritten, json!({"model": "m", "prompt": "x"}));
    }
}

#[tokio::test]
async fn a_known_objective_gives_its_priority_and_an_unknown_one_passes() {
    let bench = Bench::new();
    let settings = bench.gateway.settings();
    let priority = |name: &'static str, objective: &'static str| {
        let mut headers = hyper::HeaderMap::new();
        headers.insert(name, hyper::header::HeaderValue::from_static(objective));
        super::super::head::add_present_names(&mut headers);
        let epp = settings.epp.as_ref().unwrap();
        let hints = super::super::hints::hints(&headers, None, epp);
        (hints.priority.map(|it| it.level()), hints.fairness.map(|it| it.as_str().to_owned()))
    };
    for name in ["x-llm-d-inference-objective", "x-gateway-inference-objective"] {
        assert_eq!(priority(name, "urgent"), (Some(7), None));
        assert_eq!(priority(name, "unheard of"), (None, None));
    }
    for name in ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"] {
        assert_eq!(priority(name, "team-a"), (None, Some("team-a".to_owned())));
    }
    let unknown = [("x-llm-d-inference-objective", "unheard of")];
    assert_eq!(bench.ask(&unknown, &prompt("x")).await.picked().destinations().len(), 3);
}

#[tokio::test]
async fn repeated_headers_stay_and_forged_ones_go() {
    let bench = Bench::new();
    let headers = [
        ("x-twice", "1"),
        ("x-twice", "2"),
        ("x-prefiller-host-port", "10.0.0.1:22"),
        ("x-gateway-destination-endpoint", "10.0.0.1:22"),
        ("x-wornpath-pod", "forged"),
        ("x-data-parallel-rank", "3"),
        ("x-request-id", "id-1"),
    ];
    let picked = bench.ask(&headers, &prompt("x")).await.picked();
    assert!(!picked.metadata.contains("10.0.0.1"));
    let mutation = picked.answer.header_mutation.unwrap();
    assert!(header(mutation.set_headers.iter(), "x-twice").is_none());
    let mut removed = mutation.remove_headers;
    removed.sort();
    assert_eq!(removed, ["x-data-parallel-rank", "x-prefiller-host-port", "x-wornpath-pod"]);
    assert!(header(mutation.set_headers.iter(), "x-request-id").is_none(), "it is unchanged");
}

#[tokio::test]
async fn the_pod_that_served_gets_the_load_and_the_summary() {
    let bench = Bench::new();
    let mut asked = bench.ask(&[], &prompt(&"word ".repeat(300))).await;
    let destinations = asked.picked().destinations();
    let Response::RequestBody(_) = asked.stream.answer().await else { panic!() };
    let of = |at: &str| {
        let snapshot = bench.gateway.snapshot();
        let entries = snapshot.entries().iter();
        let mut found = entries.filter(|entry| entry.endpoint.url().ends_with(at));
        found.next().unwrap().pod.state().requests()
    };
    assert_eq!((of(&destinations[0]), of(&destinations[1])), (1, 0));
    let metadata = Some(served_by(&destinations[1]));
    asked.stream.send(response_head(&[(":status", "200")], false), metadata).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseHeaders(_)));
    assert_eq!((of(&destinations[0]), of(&destinations[1])), (0, 1));
    let is_suspect = |at: &str| {
        let snapshot = bench.gateway.snapshot();
        let mut entries = snapshot.entries().iter();
        let entry = entries.find(|entry| entry.endpoint.url().ends_with(at)).unwrap();
        entry.endpoint.tick(bench.gateway.now())
    };
    assert!(is_suspect(&destinations[0]), "it was passed over, so it is probed at once");
    assert!(!is_suspect(&destinations[1]));
    asked.stream.send(response_body(b"{}", true), None).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseBody(_)));
    asked.stream.close().await;
    assert!(asked.stream.next().await.is_none());
    let [summary] = &bench.ended()[..] else { panic!() };
    let (_, pod) = summary.pod.as_ref().unwrap();
    assert_eq!((pod.as_str(), summary.retries), (destinations[1].as_str(), 1));
    assert_eq!(bench.load(), 0);
}

#[tokio::test]
async fn prefill_and_decode_pods_are_named_by_one_workflow() {
    let pods = "pods:\n  - {url: \"http://192.168.1.1:8000\", model: m, role: prefill}\n  - {url: \"http://192.168.1.2:8000\", model: m, role: decode}\n";
    let workflow = "profiles:\n  pd:\n    prepare: []\n    selectors:\n      prefill: {filter: [healthy, model], pick: max_score}\n      \
                    decode: {filter: [healthy, model], pick: max_score}\n    workflow: {prefill_decode: {min_uncached_tokens: 1}}\n";
    let bench = Bench::of(&format!("{pods}{workflow}"));
    let forged = [("x-prefiller-host-port", "10.0.0.1:22")];
    let mut asked = bench.ask(&forged, &prompt(&"word ".repeat(50))).await;
    let picked = asked.picked();
    assert_eq!(picked.destinations(), ["192.168.1.2:8000"]);
    assert_eq!(picked.header("x-prefiller-host-port").unwrap(), "192.168.1.1:8000");
    assert_eq!(bench.load(), 2, "both pods have work");
    let Response::RequestBody(_) = asked.stream.answer().await else { panic!() };
    asked.stream.send(response_head(&[(":status", "200")], false), None).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseHeaders(_)));
    asked.stream.send(response_body(b"{\"a\":", false), None).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseBody(_)));
    assert_eq!(bench.load(), 1, "with the first byte the prompt is computed");
    asked.stream.send(response_body(b"1}", true), None).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseBody(_)));
    assert_eq!(bench.load(), 0);
}

#[tokio::test]
async fn modes_that_cannot_work_end_the_stream_with_a_status() {
    let bench = Bench::new();
    let buffered = ProtocolConfiguration {
        request_body_mode: BodySendMode::Buffered.into(),
        response_body_mode: BodySendMode::None.into(),
    };
    let first = |observability_mode, protocol_config, request| ProcessingRequest {
        request: Some(request),
        metadata_context: None,
        observability_mode,
        protocol_config,
    };
    for (message, says) in [
        (
            first(false, Some(buffered), Request::RequestHeaders(head(&[]))),
            "`request_body_mode` is BUFFERED",
        ),
        (first(true, None, Request::RequestHeaders(head(&[]))), "observability_mode"),
        (first(false, None, response_body(b"x", true)), "must be `request_headers`"),
    ] {
        let mut stream = bench.stream();
        stream.send_raw(framed(&message)).await;
        let status = stream.next().await.unwrap().unwrap_err();
        assert!(status.message().contains(says), "{status}");
        assert!(stream.next().await.is_none());
    }
    assert_eq!(bench.load(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_by_its_length_or_when_it_is_exceeded() {
    let bench = Bench::with("limits: {body: 1MiB}\n");
    let announced = bench.ask(&[("content-length", "104857600")], "x").await.refused();
    assert_eq!(code(&announced), StatusCode::PAYLOAD_TOO_LARGE.as_u16());
    let mut stream = bench.stream();
    stream.send(Request::RequestHeaders(head(&[])), None).await;
    for _ in 0..20 {
        stream.body(&[b'a'; 60_000], false).await;
    }
    let Response::ImmediateResponse(refused) = stream.answer().await else { panic!() };
    assert_eq!(code(&refused), 413);
    assert!(stream.next().await.is_none());
    assert_eq!(bench.gateway.bodies().held(), 0);
}

#[tokio::test]
async fn a_body_counts_in_the_budget_until_the_data_plane_has_taken_all_of_it() {
    let bench = Bench::new();
    let body = prompt(&"word ".repeat(60_000));
    let mut asked = bench.ask(&[], &body).await;
    assert_eq!(asked.picked().destinations().len(), 3);
    let mut left = body.len();
    while left > 0 {
        assert_eq!(bench.gateway.bodies().held(), body.len(), "{left} bytes are not taken");
        let Response::RequestBody(chunk) = asked.stream.answer().await else { panic!() };
        left -= streamed(chunk.response).0.len();
    }
    assert_eq!((bench.gateway.bodies().held(), bench.load()), (0, 1));
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_leaves_nothing_behind() {
    let rules = "    filter: [healthy, model, {concurrency: {requests: 1, on_empty: hold}}]\n    pick: max_score\n    hold: {deadline: 60s}\n";
    let pods = "pods: [{url: \"http://192.168.1.1:8000\", model: m}]\n";
    let bench = Bench::of(&format!("{pods}profiles:\n  p:\n    prepare: []\n{rules}"));
    let first = bench.ask(&[], &prompt("x")).await;
    assert_eq!(first.picked().destinations().len(), 1);
    let mut second = bench.stream();
    second.send(Request::RequestHeaders(head(&[])), None).await;
    second.body(prompt("y").as_bytes(), true).await;
    let waited = tokio::time::timeout(Duration::from_millis(50), second.next()).await;
    assert!(waited.is_err(), "it waits");
    assert_eq!(bench.gateway.waiting(), 1);
    second.close().await;
    assert!(second.next().await.is_none());
    assert_eq!((bench.gateway.waiting(), bench.load()), (0, 1));
    let [left] = &bench.ended()[..] else { panic!() };
    assert_eq!(left.ended, RequestEnd::ClientLeft);
}
