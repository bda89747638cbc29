//! Streams whose pod is lost go on with another one.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// A gateway in front of all engines that continues streams.
fn gateway(test: &str, engines: &Engines, more: &str) -> Gateway {
    gateway_to("openai", test, engines, more)
}

/// The same where the pods are called engines of one kind; vLLM's are asked for token ids.
fn gateway_to(kind: &str, test: &str, engines: &Engines, more: &str) -> Gateway {
    let pod = |http| format!("{{url: \"http://{http}\", engine: {kind}}}");
    let pods: Vec<_> = engines.engines.iter().map(|at| pod(&at.http)).collect();
    let pods = pods.join(", ");
    let text = format!("pods: [{pods}]\ncontinuation: {{mode: on}}\n{more}");
    Gateway::configured(&format!("continuation_{test}"), &text, engines.engines.len())
}

const ROUND_ROBIN: &str = "profiles: {turns: {filter: [healthy, model], pick: round_robin}}\n";

/// Engines of a model, as fast as real ones.
fn engines(count: &str) -> Engines {
    Engines::start_at("2", &["--engines", count, "--model", "m", "--answer-tokens", "60"])
}

fn chat(text: &str) -> Value {
    json!({
        "model": "m", "messages": [{"role": "user", "content": text}], "stream": true,
        "temperature": 0, "max_tokens": 50, "stream_options": {"include_usage": true},
    })
}

fn completion(text: &str) -> Value {
    json!({"model": "m", "prompt": text, "stream": true, "max_tokens": 50})
}

fn message(text: &str) -> Value {
    json!({
        "model": "m", "system": "be brief", "messages": [{"role": "user", "content": text}],
        "max_tokens": 50, "stream": true, "temperature": 0,
    })
}

fn response(text: &str) -> Value {
    json!({"model": "m", "instructions": "be brief", "input": text, "max_output_tokens": 50, "stream": true})
}

/// The named events of a stream without what differs between two requests of the same content.
fn named(stream: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    for event in stream.split_terminator("\n\n") {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let mut data: Value = serde_json::from_str(data).unwrap();
        for place in [
            "/message/id",
            "/response/id",
            "/response/created_at",
            "/item_id",
            "/item/id",
            "/response/output/0/id",
        ] {
            if let Some(value) = data.pointer_mut(place) {
                *value = json!(null);
            }
        }
        if let Some(cached) = data.pointer_mut("/response/usage/input_tokens_details") {
            *cached = json!(null);
        }
        if let Some(usage) = data["usage"].as_object_mut() {
            // Engines repeat it or do not.
            usage.remove("input_tokens");
        }
        events.push((name.to_owned(), data));
    }
    events
}

/// The ids by which the events of a stream belong together.
fn named_ids(stream: &str) -> Vec<Value> {
    let mut ids = Vec::new();
    for data in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let data: Value = serde_json::from_str(data).unwrap();
        for place in ["/response/id", "/item_id", "/item/id"] {
            ids.extend(data.pointer(place).cloned());
        }
    }
    ids.sort_by_key(Value::to_string);
    ids.dedup();
    ids
}

/// The events of a stream without what differs between two requests of the same content.
fn content(stream: &str) -> Vec<Value> {
    let names = ["id", "created"];
    let mut events = Vec::new();
    for event in stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        let mut event: Value = serde_json::from_str(event).unwrap_or_else(|_| json!(event));
        for name in names {
            if let Some(value) = event.get_mut(name) {
                *value = json!(null);
            }
        }
        if let Some(details) = event.pointer_mut("/usage/prompt_tokens_details") {
            *details = json!(null);
        }
        events.push(event);
    }
    events
}

/// The ids that a stream has.
fn ids(stream: &str) -> Vec<Value> {
    let events = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: {"));
    let mut ids: Vec<_> = events
        .map(|event| serde_json::from_str::<Value>(&format!("{{{event}")).unwrap()["id"].clone())
        .collect();
    ids.dedup();
    ids
}

fn counted(gateway: &Gateway, outcome: &str, reason: &str) -> u64 {
    let labels = format!("{{outcome=\"{outcome}\",reason=\"{reason}\"}}");
    gateway.metric(&format!("wornpath_continuations_total{labels}")) as u64
}

/// The engine that answers a stream, of two.
fn busy(engines: &Engines) -> usize {
    let running = |engine| engines.metric(engine, "vllm:num_requests_running") as u64 == 1;
    eventually("one of the engines answers", || running(0) || running(1));
    if running(0) { 0 } else { 1 }
}

#[test]
fn a_stream_whose_engine_dies_is_the_same_for_its_client() {
    for (kind, path, body) in [
        ("openai", CHAT, chat("hello")),
        ("openai", ASK, completion("once upon a time")),
        ("vllm", CHAT, chat("hello")),
        ("vllm", ASK, completion("once upon a time")),
    ] {
        let engines = engines("2");
        let gateway = gateway_to(kind, "dies", &engines, "");
        let whole = gateway.post(path, &body);
        assert!(whole.text.ends_with("data: [DONE]\n\n"), "{}", whole.text);
        let mut stream = gateway.open(path, &body);
        let begun = stream.read_past("\"finish_reason\":null");
        let victim = busy(&engines);
        engines.control("POST", &format!("/engines/{victim}/crash"), "");
        let answer = stream.finish_after(&begun).unwrap();
        assert_eq!(content(&answer), content(&whole.text));
        assert_eq!(ids(&answer).len(), 1, "{answer}");
        assert!(!answer.contains("token_ids\":["), "the client did not ask: {answer}");
        assert_eq!(counted(&gateway, "continued", "lost"), 1);
        eventually("nothing is kept", || gateway.metric("wornpath_continuation_bytes") as u64 == 0);
        let recent = gateway.ask("GET", "/decisions", "").json();
        let moved = recent["decisions"].as_array().unwrap().iter();
        let moved: Vec<_> = moved.filter(|decision| decision["continued"] == 1).collect();
        assert_eq!(moved.len(), 1, "{recent}");
        assert_eq!(moved[0]["pod"], json!(engines.engines[1 - victim].http), "{recent}");
    }
}

#[test]
fn a_message_or_response_whose_engine_dies_is_the_same_for_its_client() {
    for (path, body, piece) in
        [(MESSAGES, message("hello"), "text_delta"), (RESPONSES, response("hello"), "text.delta")]
    {
        let engines = engines("2");
        let gateway = gateway_to("vllm", "named", &engines, "");
        let whole = gateway.post(path, &body);
        assert_eq!(whole.status, 200, "{}", whole.text);
        let mut stream = gateway.open(path, &body);
        let begun = stream.read_past(piece);
        let victim = busy(&engines);
        engines.control("POST", &format!("/engines/{victim}/crash"), "");
        let answer = stream.finish_after(&begun).unwrap();
        assert_eq!(named(&answer), named(&whole.text));
        let ids = if path == RESPONSES { 2 } else { 0 };
        assert_eq!(named_ids(&answer).len(), ids, "{answer}");
        assert_eq!(counted(&gateway, "continued", "lost"), 1);
        eventually("nothing is kept", || gateway.metric("wornpath_continuation_bytes") as u64 == 0);
    }
}

#[test]
fn a_message_or_response_that_breaks_anywhere_goes_on() {
    for (path, body) in [(MESSAGES, message("hello")), (RESPONSES, response("hello"))] {
        let engines = Engines::start(&["--engines", "2", "--model", "m", "--answer-tokens", "60"]);
        let more = format!("{ROUND_ROBIN}timeouts: {{between_bytes: 500ms}}\n");
        let gateway = gateway("named_anywhere", &engines, &more);
        let whole = gateway.post(path, &body);
        let mut continued = 0;
        for (fault, reason) in [
            ("{\"cut_after_tokens\": 1}", "lost"),
            ("{\"cut_after_tokens\": 20}", "lost"),
            ("{\"cut_after_tokens\": 50}", "lost"),
            ("{\"stall_after_tokens\": 9}", "stalled"),
        ] {
            engines.set_faults(0, fault);
            let before = counted(&gateway, "continued", reason);
            for answer in (0..2).map(|_| gateway.post(path, &body)) {
                assert_eq!(named(&answer.text), named(&whole.text), "{fault}");
            }
            continued += counted(&gateway, "continued", reason) - before;
        }
        assert!(continued >= 4, "{path}: {continued}");
    }
}

#[test]
fn a_stream_whose_engine_stalls_or_cuts_it_goes_on() {
    for (fault, reason) in
        [("{\"stall_after_tokens\": 9}", "stalled"), ("{\"cut_after_tokens\": 9}", "lost")]
    {
        let engines = Engines::start(&["--engines", "2", "--model", "m"]);
        let more = format!("{ROUND_ROBIN}timeouts: {{between_bytes: 500ms}}\n");
        let gateway = gateway("stalls", &engines, &more);
        let whole = gateway.post(CHAT, &chat("hello"));
        engines.set_faults(0, fault);
        let answers: Vec<_> = (0..2).map(|_| gateway.post(CHAT, &chat("hello"))).collect();
        for answer in &answers {
            assert_eq!(content(&answer.text), content(&whole.text));
        }
        assert_eq!(counted(&gateway, "continued", reason), 1);
    }
}

#[test]
fn what_cannot_be_continued_ends_with_an_error_that_says_why() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let gateway = gateway("errors", &engines, ROUND_ROBIN);
    (0..2).for_each(|engine| engines.set_faults(engine, "{\"cut_after_tokens\": 3}"));
    let broken = |path: &str, body: Value, reason: &str, text: &str| {
        let answer = gateway.post(path, &body);
        let last = answer.text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with("event: error\ndata: {"), "{last}");
        assert!(last.contains("upstream_lost") && last.contains(text), "{last}");
        assert!(!answer.text.contains("[DONE]"));
        assert_eq!(counted(&gateway, "broken", reason), 1, "{reason}");
    };
    let mut seeded = chat("hello");
    seeded["seed"] = json!(7);
    broken(CHAT, seeded, "seed", "`seed`");
    let mut formatted = chat("hello");
    formatted["response_format"] = json!({"type": "json_object"});
    broken(CHAT, formatted, "grammar", "grammar");
    let mut thinking = message("hello");
    thinking["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    broken(MESSAGES, thinking, "reasoning", "reasoning");
    let mut tools = message("hello");
    tools["tools"] = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    broken(MESSAGES, tools, "tools", "tools");
    let mut stored = response("hello");
    stored["previous_response_id"] = json!("resp_1");
    broken(RESPONSES, stored, "prompt", "prompt");
    // Both engines cut it, and then no other is left.
    broken(ASK, completion("a"), "no_pod", "no other pod");
}

#[test]
fn a_draining_pod_gives_its_streams_away() {
    for (path, body, piece) in [
        (CHAT, chat("hello"), "\"finish_reason\":null"),
        (MESSAGES, message("hello"), "text_delta"),
        (RESPONSES, response("hello"), "text.delta"),
    ] {
        let engines = engines("2");
        let gateway = gateway("drain", &engines, "drain: {move_after: 0s}\n");
        let whole = gateway.post(path, &body);
        let mut stream = gateway.open(path, &body);
        let begun = stream.read_past(piece);
        let pod = &engines.engines[busy(&engines)].http;
        assert_eq!(gateway.ask("POST", &format!("/pods/{pod}/drain"), "").status, 200);
        let answer = stream.finish_after(&begun).unwrap();
        if path == CHAT {
            assert_eq!(content(&answer), content(&whole.text));
        } else {
            assert_eq!(named(&answer), named(&whole.text));
        }
        assert_eq!(counted(&gateway, "continued", "drained"), 1);
    }
}

#[test]
fn a_pod_that_drains_alone_keeps_its_streams() {
    let engines = engines("1");
    let url = &engines.engines[0].http;
    let gateway = gateway("alone", &engines, "drain: {move_after: 0s}\n");
    let whole = gateway.post(CHAT, &chat("hello"));
    let mut stream = gateway.open(CHAT, &chat("hello"));
    let begun = stream.read_past("\"finish_reason\":null");
    assert_eq!(gateway.ask("POST", &format!("/pods/{url}/drain"), "").status, 200);
    let answer = stream.finish_after(&begun).unwrap();
    assert_eq!(content(&answer), content(&whole.text));
    assert_eq!(counted(&gateway, "continued", "drained"), 0);
}

#[test]
fn no_stream_is_continued_by_default() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    (0..2).for_each(|engine| engines.set_faults(engine, "{\"cut_after_tokens\": 3}"));
    let answer = gateway.post(CHAT, &chat("hello"));
    assert!(answer.text.contains("upstream_lost"), "{}", answer.text);
    assert_eq!(counted(&gateway, "broken", "off"), 1);
}
