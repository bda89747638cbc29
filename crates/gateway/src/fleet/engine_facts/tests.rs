//! Answers of engines, in the forms that their versions have.

use super::*;

const VLLM_PAGE: &str = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"256\",\
     prefix_caching_hash_algo=\"sha256_cbor\",engine=\"0\"} 1.0\n";

fn answers<'a>(cards: &'a [Value], page: &'a str) -> EngineAnswers<'a> {
    EngineAnswers {
        host: "10.0.0.7",
        cards,
        page,
        version: Value::Null,
        event_sources: None,
        server_info: Value::Null,
        tokenizer_info: Value::Null,
    }
}

fn zmq(address: &str) -> EventSource {
    EventSource::Zmq(address.parse().unwrap())
}

#[test]
fn vllm_says_where_its_model_is_from_and_lists_its_publishers() {
    let cards = [
        json!({"id": "l", "root": "/adapters/l", "parent": "m", "owned_by": "vllm"}),
        json!({"id": "m", "root": "Qwen/Qwen3-8B", "parent": null, "owned_by": "vllm"}),
    ];
    let listed = r#"{"0": {"publisher": "zmq", "endpoint": "tcp://*:5557"}}"#;
    let facts = EngineAnswers {
        version: json!({"version": "0.32.0"}),
        event_sources: Some(listed.into()),
        tokenizer_info: json!({"tokenizer_class": "Qwen2Tokenizer", "chat_template": "t"}),
        ..answers(&cards, VLLM_PAGE)
    };
    let facts = facts.facts();
    assert_eq!(facts.software.as_deref(), Some("vLLM 0.32.0"));
    assert_eq!((facts.kv_tokens, facts.hash.as_deref()), (Some(4096), Some("sha256_cbor")));
    assert_eq!(facts.model.root.as_deref(), Some("Qwen/Qwen3-8B"));
    assert_eq!(facts.model.template.as_deref(), Some("t"));
    assert!(!facts.model.has_byte_tokens);
    // It is asked again when it moves.
    assert_eq!(facts.event_source(None), Some(EventSource::ReportedByEngine));
    assert_eq!(facts.event_source(Some(1)), None, "no such rank");
}

#[test]
fn sglang_repeats_its_options() {
    let cards = [json!({"id": "m", "root": "m", "owned_by": "sglang"})];
    let options = r#"{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657", "topic": "kv"}"#;
    let server = json!({
        "model_path": "/models/a", "tokenizer_path": "Qwen/Qwen3-8B", "revision": "v1", "dp_size": 2,
        "max_total_num_tokens": 5120, "kv_events_config": options, "version": "0.5.3",
    });
    let facts = EngineAnswers { server_info: server.clone(), ..answers(&cards, "") }.facts();
    assert_eq!(facts.software.as_deref(), Some("SGLang 0.5.3"));
    assert_eq!((facts.kv_tokens, facts.ranks), (Some(5120), Some(2)));
    assert_eq!(facts.model.root.as_deref(), Some("Qwen/Qwen3-8B"), "not the name it is served by");
    assert_eq!(facts.model.revision.as_deref(), Some("v1"));
    let second = zmq("zmq://10.0.0.7:5558?replay=10.0.0.7:5658&topic=kv");
    assert_eq!(facts.event_source(Some(1)), Some(second));
    assert_eq!(facts.event_source(None), None, "one pod cannot hold what two ranks cache");
    assert!(
        facts.why_no_events(None).contains("--pod URL,ranks=2"),
        "{}",
        facts.why_no_events(None)
    );
    let one = EngineAnswers {
        server_info: json!({"dp_size": 1, "kv_events_config": options}),
        ..answers(&cards, "")
    };
    let first = zmq("zmq://10.0.0.7:5557?replay=10.0.0.7:5657&topic=kv");
    assert_eq!(one.facts().event_source(None), Some(first));
}

#[test]
fn an_engine_that_says_nothing_leaves_everything_unknown_and_the_cure_is_named() {
    let facts = answers(&[], "").facts();
    assert_eq!(facts, EngineFacts::default());
    assert_eq!(facts.event_source(None), None);
    assert!(facts.why_no_events(None).contains("events=zmq://HOST:PORT"));
    let garbage = EngineAnswers {
        event_sources: Some(Bytes::from_static(b"<html>")),
        server_info: json!({"kv_events_config": "{", "dp_size": "x"}),
        ..answers(&[], "vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"x\"} 1\n")
    };
    assert_eq!(garbage.facts(), EngineFacts::default());
}

#[test]
fn an_engine_without_publishers_is_told_from_one_that_does_not_say() {
    let none = EngineAnswers { event_sources: Some(Bytes::from_static(b"{}")), ..answers(&[], "") };
    let why = none.facts().why_no_events(None);
    assert!(why.contains("publishes no cache events"), "{why}");
}

#[test]
fn what_an_engine_says_is_bounded() {
    let long = "x".repeat(MAX_NAME + 1);
    let cards = [json!({"id": "m", "root": long, "owned_by": "a\nb"})];
    let options = json!({"endpoint": "tcp://*:5557", "topic": long}).to_string();
    let facts = EngineAnswers {
        version: json!({"version": long}),
        server_info: json!({"dp_size": 60_000, "kv_events_config": options, "revision": "a\rb"}),
        tokenizer_info: json!({"chat_template": "x".repeat(MAX_TEMPLATE + 1)}),
        ..answers(&cards, "")
    };
    assert_eq!(facts.facts(), EngineFacts::default());
}

#[test]
fn the_cache_of_a_hybrid_model_has_no_size_in_tokens() {
    let hybrid = "vllm:cache_config_info{block_size=\"16\",effective_attention_block_size=\"256\",num_gpu_blocks=\"9\"} 1\n";
    assert_eq!(answers(&[], hybrid).facts().kv_tokens, None);
}
