//! What isolated tenants send to each path, and what of it reaches an engine.

use crate::served::Served;
use serde_json::{Value, json};
use std::collections::HashSet;
use wornpath_execution::transfer_fields;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// A chat with one part of content.
fn chat(part: &Value) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": [part]}]})
}

fn image(uuid: &Value) -> Value {
    json!({"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": uuid})
}

#[test]
fn every_body_has_the_salt_of_its_tenant_and_no_other() {
    let served = Served::isolated("");
    let mut salts = HashSet::new();
    for (path, body) in [
        (CHAT, json!({"messages": [{"role": "user", "content": "hi"}]})),
        (COMPLETIONS, json!({"prompt": "hi"})),
        ("/v1/responses", json!({"input": "hi"})),
        ("/v1/embeddings", json!({"input": "hi"})),
        ("/pooling", json!({"input": "hi"})),
        ("/classify", json!({"input": "hi"})),
        ("/v1/rerank", json!({"query": "q", "documents": ["d"]})),
        ("/v2/rerank", json!({"query": "q", "documents": ["d"]})),
        ("/score", json!({"text_1": "q", "text_2": ["d"]})),
        ("/tokenize", json!({"prompt": "hi"})),
        ("/invocations", json!({"prompt": "hi"})),
    ] {
        let mut body = body;
        body["model"] = json!("m");
        body["cache_salt"] = json!("theirs");
        for key in ["key-a", "key-b"] {
            let arrived = served.forwarded(key, path, &body);
            let salt = arrived["cache_salt"].as_str().unwrap();
            assert_eq!(salt.len(), 32, "{path}");
            salts.insert(salt.to_owned());
        }
    }
    assert_eq!(salts.len(), 2, "one for each tenant");
}

#[test]
fn a_field_that_names_cached_blocks_is_refused_wherever_engines_read_it() {
    let served =
        Served::isolated(", allow_fields: [vllm_xargs, \"vllm_xargs.kv_transfer_params\"]");
    for field in transfer_fields() {
        let body = json!({"model": "m", "prompt": "hi", *field: {"remote_host": "h"}});
        let message = served.refused(COMPLETIONS, JSON, body.to_string().as_bytes());
        assert!(message.contains(&format!("`{field}` is reserved for the router")), "{message}");
        // vLLM merges these arguments with the field itself, and a string makes its scheduler fail.
        let body = json!({"model": "m", "prompt": "hi", "vllm_xargs": {*field: "x"}});
        let message = served.refused(COMPLETIONS, JSON, body.to_string().as_bytes());
        assert!(message.contains(&format!("`vllm_xargs.{field}` is reserved")), "{message}");
    }
    let escaped =
        br#"{"model":"m","prompt":"hi","vllm_\u0078args":{"kv_transfer_\u0070arams":"x"}}"#;
    assert!(served.refused(COMPLETIONS, JSON, escaped).contains("`vllm_xargs.kv_transfer_params`"));
}

#[test]
fn arguments_for_extensions_pass_if_they_are_known_or_allowed() {
    let served = Served::isolated(", allow_fields: [vllm_xargs.mine]");
    let xargs = json!({
        "kv_cache_report_mode": "full", "session_id": "s", "ngram_size": 3, "mine": "1",
    });
    let arrived =
        served.forwarded("key-a", COMPLETIONS, &json!({"prompt": "hi", "vllm_xargs": xargs}));
    let xargs = arrived["vllm_xargs"].as_object().unwrap();
    assert!(!xargs.contains_key("kv_cache_report_mode"), "it reports blocks of other requests");
    assert_ne!(xargs["session_id"], "s");
    assert_eq!((&xargs["ngram_size"], &xargs["mine"]), (&json!(3), &json!("1")));
    let unknown = json!({"prompt": "hi", "vllm_xargs": {"theirs": 1}}).to_string();
    let message = served.refused(COMPLETIONS, JSON, unknown.as_bytes());
    assert!(message.contains("`vllm_xargs.theirs`"), "{message}");
    assert!(message.contains("`isolation.allow_fields`"), "{message}");
}

#[test]
fn the_uuid_of_an_image_is_replaced_by_one_that_only_its_tenant_can_produce() {
    let served = Served::isolated("");
    let uuid = |key: &str, uuid: &str| {
        let arrived = served.forwarded(key, CHAT, &chat(&image(&json!(uuid))));
        arrived["messages"][0]["content"][0]["uuid"].as_str().unwrap().to_owned()
    };
    let of_a = uuid("key-a", "cat");
    assert_eq!(uuid("key-a", "cat"), of_a, "the tenant's own reuse still works");
    let others = HashSet::from([uuid("key-b", "cat"), uuid("key-a", "dog"), uuid("key-b", &of_a)]);
    assert_eq!(others.len(), 3);
    assert!(!others.contains(&of_a) && of_a != "cat");
    let null = served.forwarded("key-a", CHAT, &chat(&image(&json!(null))));
    assert_eq!(null["messages"][0]["content"][0]["uuid"], json!(null));
    let number = chat(&image(&json!(7))).to_string();
    assert!(served.refused(CHAT, JSON, number.as_bytes()).contains("`uuid` must be a string"));
}

#[test]
fn a_uuid_is_replaced_in_every_field_that_holds_media_and_in_every_spelling() {
    let served = Served::isolated("");
    let part = image(&json!("theirs"));
    let content = json!({"content": [part]});
    for (path, body) in [
        (CHAT, chat(&part)),
        ("/v1/chat/completions/batch", json!({"messages": [[{"content": [part]}]]})),
        ("/v1/embeddings", json!({"messages": [{"content": [part]}]})),
        ("/v1/embeddings", json!({"input": [[{"content": [part]}]]})),
        ("/pooling", json!({"data": content})),
        ("/v1/responses", json!({"input": [{"role": "user", "content": [part]}]})),
        ("/v1/responses", json!({"input": [{"type": "function_call_output", "output": [part]}]})),
        ("/score", json!({"data_1": content, "data_2": [content]})),
        ("/rerank", json!({"query": content, "documents": [content]})),
        ("/invocations", json!({"query": "q", "documents": [content]})),
        ("/tokenize", json!({"messages": [{"content": [part]}]})),
        (CHAT, json!({"messages": [], "mm_processor_kwargs": {"uuid": "theirs"}})),
    ] {
        let arrived = served.forwarded("key-a", path, &body);
        assert!(!arrived.to_string().contains("theirs"), "{path}: {arrived}");
    }
    let twice = br#"{"messages":[{"content":[{"uuid":"theirs","\u0075uid":"theirs"}]}]}"#;
    assert_eq!(served.send("key-a", CHAT, JSON, twice).status, 200);
    let arrived = String::from_utf8(served.arrived().body).unwrap();
    assert!(!arrived.contains("theirs"), "{arrived}");
}

#[test]
fn a_uuid_in_a_tools_arguments_or_schema_is_the_clients_own() {
    let served = Served::isolated("");
    let call = json!({"id": "1", "function": {"name": "f", "arguments": {"uuid": "mine"}}});
    let schema =
        json!({"properties": {"uuid": {"type": "string"}, "rid": {}, "session_params": {}}});
    let body = json!({
        "messages": [{"role": "assistant", "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    });
    let mut arrived = served.forwarded("key-a", CHAT, &body);
    arrived.as_object_mut().unwrap().remove("cache_salt");
    assert_eq!(arrived, body);
}

#[test]
fn a_path_that_engines_do_not_salt_is_refused_unless_it_is_allowed() {
    let served = Served::isolated("");
    let form = [("content-type", "multipart/form-data; boundary=b")];
    let body = b"--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        let message = served.refused(path, &form, body);
        assert!(message.contains(path) && message.contains("`isolation.allow_paths`"), "{message}");
    }
    for (path, body) in [
        ("/v2/embed", json!({"model": "m", "texts": ["hi"], "cache_salt": "theirs"})),
        ("/generate", json!({"text": "hi"})),
        ("/encode", json!({"text": "hi"})),
        ("/v1/new", json!({"model": "m"})),
        ("/v1/chat/completions/", chat(&json!("hi"))),
        ("/v1/chat/completions/render", chat(&json!("hi"))),
    ] {
        let message = served.refused(path, JSON, body.to_string().as_bytes());
        assert!(message.contains(path) && message.contains("`isolation.allow_paths`"), "{message}");
    }
}

#[test]
fn at_an_allowed_path_a_form_passes_and_json_gets_the_salt() {
    let served = Served::isolated(", allow_paths: [/v1/audio/transcriptions, /v1/messages]");
    let form = [("content-type", "multipart/form-data; boundary=b")];
    let body = b"--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
    let answer = served.send("key-a", "/v1/audio/transcriptions", &form, body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(served.arrived().body, body);
    let part = image(&json!("theirs"));
    let mut body = json!({
        "model": "m", "new": 1, "cache_salt": "theirs", "messages": [{"content": [part]}],
    });
    let arrived = served.forwarded("key-a", "/v1/messages", &body);
    assert!(!arrived.to_string().contains("theirs") && arrived["new"] == 1, "{arrived}");
    body["kv_transfer_params"] = json!({});
    assert_eq!(served.post("key-a", "/v1/messages", &body).status, 400);
    let not_json = served.send("key-a", "/v1/audio/transcriptions", JSON, b"\xef\xbb\xbf{}");
    assert_eq!(not_json.status, 400, "{}", not_json.text);
}

#[test]
fn a_stored_response_of_an_engine_cannot_be_reached() {
    let served = Served::isolated("");
    let body = json!({"model": "m", "input": "hi", "previous_response_id": "resp_1"}).to_string();
    let message = served.refused("/v1/responses", JSON, body.as_bytes());
    assert!(message.contains("`previous_response_id`"), "{message}");
    assert!(served.refused("/v1/responses/resp_1/cancel", JSON, b"").contains("all tenants alike"));
    let get = served.ask("GET", "/v1/responses/r", &[("authorization", "Bearer key-a")], b"");
    assert_eq!(get.status, 400, "{}", get.text);
    let null = json!({"model": "m", "input": "hi", "previous_response_id": null});
    assert_eq!(served.post("key-a", "/v1/responses", &null).status, 200);
}

#[test]
fn json_that_is_sent_as_something_else_is_refused() {
    let served = Served::isolated("");
    let body = br#"{"model":"m","prompt":"hi","cache_salt":"theirs"}"#;
    for kind in ["multipart/form-data; boundary=b", "multipart/form-data", "text/plain", "x"] {
        for path in [COMPLETIONS, "/pooling", "/score", "/v1/embeddings"] {
            let message = served.refused(path, &[("content-type", kind)], body);
            assert!(message.contains(path) && message.contains("application/json"), "{message}");
        }
    }
    let twice = [("content-type", "application/json"), ("content-type", "text/plain")];
    assert!(served.refused(COMPLETIONS, &twice, body).contains("several content types"));
    for kind in ["application/json", "Application/JSON; charset=utf-8", "application/x+json", ""] {
        assert_eq!(served.send("key-a", COMPLETIONS, &[("content-type", kind)], body).status, 200);
        assert_ne!(served.arrived().json()["cache_salt"], "theirs", "{kind}");
    }
}

#[test]
fn a_body_that_engines_read_otherwise_than_the_router_is_refused() {
    let served = Served::isolated("");
    let plain = r#"{"input":"hi","cache_salt":"theirs"}"#;
    let utf16: Vec<u8> = plain.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let utf16_big: Vec<u8> = plain.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let utf32: Vec<u8> = plain.chars().flat_map(|one| u32::from(one).to_le_bytes()).collect();
    let with_mark = |mark: &[u8], body: &[u8]| [mark, body].concat();
    let deep = format!("{{\"input\":{}{},\"cache_salt\":\"x\"}}", "[".repeat(200), "]".repeat(200));
    let bodies = [
        with_mark(b"\xef\xbb\xbf", plain.as_bytes()),
        with_mark(b"\xff\xfe", &utf16),
        with_mark(b"\xfe\xff", &utf16_big),
        utf16,
        utf16_big,
        utf32,
        br#"{"input":"hi","cache_salt":"theirs","dimensions":NaN}"#.to_vec(),
        b"{\"input\":\"\xff\",\"cache_salt\":\"theirs\"}".to_vec(),
        br#"{"input":"hi","user":"\ud800"}"#.to_vec(),
        b"{\"input\":\"hi\",\"cache_salt\":\"theirs\"}\0".to_vec(),
        br#"{"input":"hi","cache_salt":"theirs"} {}"#.to_vec(),
        br#"[{"input":"hi","cache_salt":"theirs"}]"#.to_vec(),
        br#"{"input":"hi","user":"1","user":"2"}"#.to_vec(),
        br#"{"input":"hi","user":"1","\u0075ser":"2"}"#.to_vec(),
        deep.into_bytes(),
    ];
    for body in &bodies {
        for path in ["/v1/embeddings", "/pooling"] {
            for headers in [JSON, &[], &[("content-type", "")]] {
                let message = served.refused(path, headers, body);
                assert!(!message.is_empty(), "{}", String::from_utf8_lossy(body));
            }
        }
    }
    assert!(served.refused("/pooling", JSON, &bodies[0]).contains("byte order mark"));
    assert!(served.refused("/pooling", JSON, &bodies[3]).contains("NUL"));
}

#[test]
fn an_unknown_field_is_refused_by_name_unless_it_is_allowed() {
    let served = Served::isolated(", allow_fields: [mine, prompt_embeds]");
    for field in ["new_field", "nvext", "extra_body", "session_params", "extra_key", "input_embeds"]
    {
        let body = json!({"model": "m", "prompt": "hi", field: {"x": 1}}).to_string();
        let message = served.refused(COMPLETIONS, JSON, body.as_bytes());
        assert!(message.contains(&format!("`{field}`")), "{message}");
        assert!(message.contains("`isolation.allow_fields`"), "{message}");
    }
    let body = json!({"model": "m", "prompt": "hi", "mine": {"x": 1}, "prompt_embeds": "x"});
    assert_eq!(served.forwarded("key-a", COMPLETIONS, &body)["mine"], json!({"x": 1}));
}

#[test]
fn an_ordinary_request_arrives_as_it_was_sent() {
    let served = Served::isolated("");
    let body: Value = serde_json::from_str(
        r#"{
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.7,
        "top_p": 1, "n": 1, "stream": false, "stream_options": null, "stop": ["x"],
        "max_tokens": 5, "max_completion_tokens": 5, "presence_penalty": 0,
        "frequency_penalty": 0, "logit_bias": {"1": 2}, "user": "u", "seed": 1, "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": true, "response_format": {"type": "text"},
        "logprobs": true, "top_logprobs": 2, "metadata": {"k": "v"}, "store": false,
        "service_tier": "auto", "reasoning_effort": "low", "prediction": null, "audio": null,
        "modalities": ["text"], "verbosity": "low", "web_search_options": {},
        "safety_identifier": "s", "prompt_cache_key": "k", "top_k": 1, "min_p": 0,
        "repetition_penalty": 1, "length_penalty": 1, "ignore_eos": true, "min_tokens": 1,
        "stop_token_ids": [1], "skip_special_tokens": true, "guided_json": {}, "guided_regex": "",
        "guided_choice": [], "guided_grammar": "", "structured_outputs": {}, "chat_template": "t",
        "chat_template_kwargs": {"enable_thinking": false}, "include_reasoning": true,
        "prompt_logprobs": 1, "return_token_ids": true, "add_generation_prompt": true,
        "continue_final_message": false, "add_special_tokens": false, "bad_words": [],
        "allowed_token_ids": [1], "truncate_prompt_tokens": 5, "documents": [],
        "separate_reasoning": true, "regex": "", "ebnf": "", "stop_regex": "",
        "thinking_token_budget": 5, "use_beam_search": false, "echo": false
    }"#,
    )
    .unwrap();
    let mut arrived = served.forwarded("key-a", CHAT, &body);
    arrived.as_object_mut().unwrap().remove("cache_salt").unwrap();
    assert_eq!(arrived, body);
}

#[test]
fn ids_of_sessions_and_requests_are_those_of_the_tenant() {
    let served = Served::isolated("");
    let mut seen = HashSet::new();
    for key in ["key-a", "key-b"] {
        let body = json!({"prompt": "hi", "session_id": "s", "request_id": "s", "rid": "s"});
        let arrived = served.forwarded(key, COMPLETIONS, &body);
        for field in ["session_id", "request_id", "rid"] {
            seen.insert(arrived[field].as_str().unwrap().to_owned());
        }
        let headers = [("content-type", "application/json"), ("x-session-id", "s")];
        assert_eq!(served.send(key, COMPLETIONS, &headers, br#"{"prompt":"hi"}"#).status, 200);
        let header = served.arrived().header("x-session-id").unwrap().to_owned();
        assert_eq!(arrived["session_id"], json!(header), "one session, however it is named");
    }
    assert_eq!(seen.len(), 6);
    assert!(!seen.contains("s"));
}

#[test]
fn headers_that_steer_or_observe_an_engine_do_not_reach_it() {
    let served = Served::isolated("");
    let headers = [
        ("content-type", "application/json"),
        ("x-override-bootstrap-host", "h"),
        ("x-override-rid", "r"),
        ("endpoint-load-metrics-format", "json"),
        ("x-mine", "1"),
    ];
    assert_eq!(served.send("key-a", COMPLETIONS, &headers, br#"{"prompt":"hi"}"#).status, 200);
    let arrived = served.arrived();
    for (name, _) in &headers[1..4] {
        assert_eq!(arrived.header(name), None, "{name}");
    }
    assert_eq!((arrived.header("x-mine"), arrived.path.as_str()), (Some("1"), COMPLETIONS));
}

#[test]
fn without_isolation_everything_passes_as_it_is() {
    let served = Served::with_tenants("");
    let body = br#"{"prompt":"hi","new":1,"cache_salt":"mine","rid":"r","vllm_xargs":{"x":1}}"#;
    assert_eq!(served.send("key-a", COMPLETIONS, JSON, body).status, 200);
    assert_eq!(served.arrived().body, body);
    let text = [("content-type", "text/plain")];
    assert_eq!(served.send("key-a", "/v2/embed", &text, b"\xff").status, 200);
    assert_eq!(served.arrived().body, b"\xff");
}
