//! The answers of `wornpath engine`, and its faults.

use crate::support::engines::{Engines, Exchange};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::EngineHash;
use wornpath_sim::replay::{ProfileText, ReplayFleet, Trace, replay};
use wornpath_sim::{EngineProfile, EngineSettings, RequestId, SimEngine, SimOutcome, SimRequest};

const STORY: &str = "Once upon a time there was a king who had three daughters and no sons at all.";

#[test]
fn a_repeated_prompt_is_cached_and_gets_the_same_answer() {
    let served = Engines::start(&[]);
    let body = json!({"prompt": STORY, "max_tokens": 12});
    let first = served.complete(0, &body);
    let second = served.complete(0, &body);
    assert_eq!(first.cached_tokens(), 0);
    assert_eq!(second.cached_tokens(), 64, "{}", second.text);
    assert_eq!(first.json()["choices"], second.json()["choices"]);
    assert_eq!(first.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(first.json()["usage"]["completion_tokens"], 12);
    assert_eq!(served.metric(0, "vllm:prefix_cache_hits_total"), 64.0);
    assert_eq!(served.metric(0, "vllm:generation_tokens_total"), 24.0);
    assert_eq!(served.post(0, "/reset_prefix_cache", &json!({})).status, 200);
    assert_eq!(served.complete(0, &body).cached_tokens(), 0);
    let salted = json!({"prompt": STORY, "max_tokens": 12, "cache_salt": "tenant"});
    assert_eq!(served.complete(0, &salted).cached_tokens(), 0, "another salt shares nothing");
    assert_eq!(served.complete(0, &salted).cached_tokens(), 64);
}

#[test]
fn a_streamed_answer_says_what_the_whole_one_says_and_the_next_turn_finds_it_cached() {
    let served = Engines::start(&["--answer-tokens", "40"]);
    let messages = json!([{"role": "user", "content": STORY}]);
    let whole = served.post(0, "/v1/chat/completions", &json!({"messages": messages}));
    let content = whole.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stream =
        json!({"messages": messages, "stream": true, "stream_options": {"include_usage": true}});
    let streamed = served.post(0, "/v1/chat/completions", &stream);
    assert!(streamed.head.contains("text/event-stream"), "{}", streamed.head);
    let events = streamed.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let chunks: Vec<Value> =
        chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let said: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(said, content);
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[chunks.len() - 1]["usage"]["completion_tokens"], 40);

    let next = json!([
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "Go on."},
    ]);
    let before = whole.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = served.post(0, "/v1/chat/completions", &json!({"messages": next})).cached_tokens();
    // All of prompt and answer but the last token, which nothing was computed from.
    assert_eq!(cached, (before + 39) / 16 * 16);
}

/// The names of a text's full blocks, by any hash of whole prefixes.
fn chain(text: &str) -> Arc<[EngineHash]> {
    let bytes = text.as_bytes();
    let name = |end: usize| {
        let mut hasher = DefaultHasher::new();
        bytes[..end].hash(&mut hasher);
        EngineHash(hasher.finish())
    };
    (1..=bytes.len() / 16).map(|block| name(16 * block)).collect()
}

#[test]
fn the_served_engine_and_the_model_in_virtual_time_hit_alike() {
    let served = Engines::start(&["--kv-tokens", "480"]);
    let settings = EngineSettings { kv_tokens: Some(480), ..EngineSettings::default() };
    let mut model = SimEngine::new(&EngineProfile::built_in("8b-h200").unwrap(), &settings);
    let mut hits = 0;
    // Conversations that go on by turns and together do not fit into the cache.
    let mut texts: Vec<String> = (0..5).map(|number| format!("{number} {STORY}")).collect();
    for (round, number) in (0_u64..).zip([0, 1, 0, 2, 3, 0, 4, 1, 2, 0, 3, 4, 4, 1]) {
        let text: &mut String = &mut texts[number];
        let response = served.complete(0, &json!({"prompt": *text, "max_tokens": 30}));
        let answer = response.json()["choices"][0]["text"].as_str().unwrap().to_owned();
        let whole = format!("{text}{answer}");
        let request = SimRequest {
            chain: chain(&whole),
            ..SimRequest::anonymous(RequestId(round), text.len(), answer.len())
        };
        let now = Duration::from_secs(100 * round);
        let mut outputs = Vec::new();
        model.advance(now, &mut outputs);
        outputs.clear();
        model.submit(now, request).unwrap();
        while let Some(time) = model.next_event_time() {
            model.advance(time, &mut outputs);
        }
        let cached = outputs.iter().find_map(|output| match output.outcome {
            SimOutcome::Admitted { cached_tokens, .. } => Some(cached_tokens as u64),
            _ => None,
        });
        assert_eq!(Some(response.cached_tokens()), cached, "round {round}");
        hits += response.cached_tokens();
        *text = format!("{whole} And then?");
    }
    let asked = served.metric(0, "vllm:prefix_cache_queries_total") as u64;
    assert!(hits > asked / 4 && hits < asked * 3 / 4, "some of both: {hits} of {asked}");
}

#[test]
fn the_served_engine_and_a_replay_hit_alike() {
    const KV: usize = 960;
    let served = Engines::start(&["--kv-tokens", &KV.to_string()]);
    // Six documents, each asked about again and again, of which some fit into the cache together.
    let order = [0, 1, 0, 2, 3, 0, 4, 1, 2, 5, 0, 3, 4, 4, 1, 5, 2, 0, 1];
    let prompts: Vec<String> = (0..)
        .zip(order)
        .map(|(round, document): (usize, usize)| {
            let text = format!("{document}{STORY}").repeat(2 + document % 3);
            format!("{text} Question {round:03}?")
        })
        .collect();
    let mut lines = String::new();
    for (round, prompt) in prompts.iter().enumerate() {
        let ids: Vec<u64> = chain(prompt).iter().map(|name| name.0).collect();
        let start = if round == 0 { "timestamp" } else { "delay" };
        let line = json!({
            (start): 0, "session_id": 1, "input_length": prompt.len(), "output_length": 1, "hash_ids": ids,
        });
        lines += &format!("{line}\n");
    }
    let trace = Trace::read("asked", &lines, 16.try_into().unwrap()).unwrap();
    let fleet = ReplayFleet {
        kv_tokens: Some(KV),
        ..ReplayFleet::new(EngineProfile::built_in("8b-h200").unwrap(), 1, 1)
    };
    let yaml = include_str!("../../../../../profiles/least-load.yaml");
    let records = replay(&trace, ProfileText { name: "least-load", yaml }, &fleet).unwrap();
    let asked = |prompt: &String| {
        served.complete(0, &json!({"prompt": prompt, "max_tokens": 1})).cached_tokens()
    };
    let found: Vec<u64> = prompts.iter().map(asked).collect();
    let replayed: Vec<u64> = records.iter().map(|record| record.cached_tokens as u64).collect();
    assert_eq!(found, replayed);
    assert!(found.iter().any(|tokens| *tokens > 0), "{found:?}");
    let again = (1..order.len()).filter(|at| order[..*at].contains(&order[*at]));
    assert!(again.into_iter().any(|at| found[at] == 0), "something was evicted: {found:?}");
}

#[test]
fn models_embeddings_tokens_and_versions_are_told() {
    let served = Engines::start(&["--model", "base", "--adapter", "tuned"]);
    let models = served.get(0, "/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["parent"]),
        (&json!("base"), &Value::Null)
    );
    assert_eq!(
        (&models["data"][1]["id"], &models["data"][1]["parent"]),
        (&json!("tuned"), &json!("base"))
    );
    assert_eq!(served.get(0, "/health").status, 200);
    assert_eq!(
        served.post(0, "/tokenize", &json!({"prompt": "ab"})).json()["tokens"],
        json!([97, 98])
    );
    let embeddings = served.post(0, "/v1/embeddings", &json!({"input": ["a", "b", "a"]})).json();
    assert_eq!(embeddings["data"][0]["embedding"], embeddings["data"][2]["embedding"]);
    assert_ne!(embeddings["data"][0]["embedding"], embeddings["data"][1]["embedding"]);
    for model in ["base", "tuned"] {
        let body = json!({"model": model, "prompt": STORY});
        assert_eq!(served.complete(0, &body).cached_tokens(), 0, "adapters share no blocks");
    }
}

#[test]
fn a_wrong_request_is_answered_with_what_is_wrong() {
    let served = Engines::start(&["--kv-tokens", "160"]);
    let refusal = |body: &str| {
        let response = Exchange::open(&served.engines[0].http, "POST", "/v1/completions", body);
        let response = response.finish().unwrap();
        (response.status, response.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(refusal("{").0, 400);
    assert!(refusal("{").1.contains("not JSON"), "{}", refusal("{").1);
    assert_eq!(refusal(r#"{"model": "other", "prompt": "a"}"#).0, 404);
    let (status, message) = refusal(&json!({"prompt": "a".repeat(200)}).to_string());
    assert_eq!(status, 400);
    assert!(message.contains("216 tokens; this engine's KV cache holds 160"), "{message}");
    assert_eq!(served.get(0, "/v2/nothing").status, 404);
}

#[test]
fn a_disconnected_client_frees_its_sequence() {
    let served = Engines::start_at("0.2", &[]);
    let body = json!({"prompt": STORY, "stream": true, "max_tokens": 1000, "ignore_eos": true});
    let mut exchange =
        Exchange::open(&served.engines[0].http, "POST", "/v1/completions", &body.to_string());
    exchange.read_past("data: ");
    assert_eq!(served.metric(0, "vllm:num_requests_running"), 1.0);
    drop(exchange);
    while served.metric(0, "vllm:num_requests_running") > 0.0 {}
    assert_eq!(served.metric(0, "vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(served.metric(0, "vllm:request_success_total"), 1.0);
}

#[test]
fn each_fault_of_an_answer_does_what_its_name_says() {
    let served = Engines::start(&[]);
    let body = json!({"prompt": STORY, "max_tokens": 9, "stream": true});
    let open =
        || Exchange::open(&served.engines[0].http, "POST", "/v1/completions", &body.to_string());
    served.set_faults(0, r#"{"refuse": 503}"#);
    let refused = served.complete(0, &body);
    assert_eq!(refused.status, 503);
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    assert_eq!(served.get(0, "/health").status, 200);

    served.set_faults(0, r#"{"cut_after_tokens": 4}"#);
    let cut = open().finish().unwrap_err().text;
    assert_eq!(cut.matches("data: ").count(), 4, "{cut}");
    assert!(!cut.contains("[DONE]"));
    let whole = json!({"prompt": STORY}).to_string();
    let cut = Exchange::open(&served.engines[0].http, "POST", "/v1/completions", &whole).finish();
    assert_eq!(cut.unwrap_err().text, "", "no response at all");

    served.set_faults(0, r#"{"stall_after_tokens": 4}"#);
    let mut stalled = open();
    for _ in 0..4 {
        stalled.read_past("data: ");
    }
    stalled.read_past("\n\r\n");
    assert!(stalled.is_silent_for(Duration::from_millis(300)));

    served.set_faults(0, r#"{"hang": true}"#);
    assert!(open().is_silent_for(Duration::from_millis(300)));
    let mut health = Exchange::open(&served.engines[0].http, "GET", "/health", "");
    assert!(health.is_silent_for(Duration::from_millis(300)));

    served.set_faults(0, "{}");
    assert_eq!(open().finish().unwrap().events().len(), 10);
    let whole = json!({"prompt": STORY, "max_tokens": 9});
    for (told, tokens) in [("zero", 0), ("true", 64), ("all", STORY.len() as u64)] {
        served.set_faults(0, &json!({"cached_tokens": told}).to_string());
        assert_eq!(served.complete(0, &whole).cached_tokens(), tokens);
    }
}

#[test]
fn a_crashed_engine_is_unreachable_until_it_restarts_with_an_empty_cache() {
    let served = Engines::start(&["--engines", "2"]);
    let body = json!({"prompt": STORY});
    served.complete(0, &body);
    let started = served.metric(0, "process_start_time_seconds");
    assert_eq!(served.control("POST", "/engines/0/crash", "").json()["running"], false);
    let address = served.engines[0].http.clone();
    let refused = std::net::TcpStream::connect(&address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(served.complete(1, &body).status, 200, "the others go on");
    assert_eq!(served.control("POST", "/engines/0/restart", "").json()["running"], true);
    assert_eq!(served.complete(0, &body).cached_tokens(), 0);
    assert!(served.metric(0, "process_start_time_seconds") > started);
    assert_eq!(served.control("POST", "/engines/2/crash", "").status, 404);
    assert_eq!(served.control("PUT", "/engines/0/faults", r#"{"slow": -1}"#).status, 400);
}

#[test]
fn decode_takes_over_a_prompt_that_another_engine_computed() {
    let served = Engines::start(&["--engines", "2"]);
    let prefill = |id: u64| {
        let params = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let body = json!({"prompt": STORY, "max_tokens": 1, "kv_transfer_params": params});
        let answer = served.complete(0, &body).json();
        assert_eq!(answer["usage"]["completion_tokens"], 1, "{id}");
        answer["kv_transfer_params"].clone()
    };
    let params = prefill(1);
    assert_eq!(params["do_remote_prefill"], true);
    assert!(served.metric(0, "vllm:kv_cache_usage_perc") > 0.0, "the blocks are leased");
    let decode = |params: &Value| {
        served
            .complete(1, &json!({"prompt": STORY, "max_tokens": 10, "kv_transfer_params": params}))
    };
    let answer = decode(&params);
    assert_eq!(answer.cached_tokens(), STORY.len() as u64 - 1, "all but the last token came over");
    assert_eq!(served.metric(0, "vllm:kv_cache_usage_perc"), 0.0, "the lease has ended");
    let local = served.complete(0, &json!({"prompt": STORY, "max_tokens": 10}));
    assert_eq!(answer.json()["choices"], local.json()["choices"]);
    // A second fetch comes too late, and like vLLM the engine does not notice.
    let corrupt = decode(&params);
    assert_eq!(corrupt.status, 200);
    assert_ne!(corrupt.json()["choices"], local.json()["choices"]);
}

#[test]
fn a_prompt_that_cannot_be_loaded_is_answered_as_vllm_does() {
    let served = Engines::start(&["--engines", "2"]);
    let prefill = || {
        let params = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let body = json!({"prompt": STORY, "max_tokens": 1, "kv_transfer_params": params});
        served.complete(0, &body).json()["kv_transfer_params"].clone()
    };
    let decode = |path: &str, body: Value, params: &Value| {
        let mut all = json!({"max_tokens": 10, "kv_transfer_params": params});
        all.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        Exchange::open(&served.engines[1].http, "POST", path, &all.to_string())
    };
    const COMPLETIONS: &str = "/v1/completions";
    let error = json!({"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500});
    let whole = json!({"prompt": STORY});
    let fails = |params: &Value| {
        let answer = decode(COMPLETIONS, whole.clone(), params).finish().unwrap();
        assert_eq!((answer.status, &answer.json()["error"]), (500, &error));
    };
    served.set_faults(0, r#"{"no_kv_transfer": true}"#);
    fails(&prefill());
    assert_eq!(served.complete(0, &whole).status, 200, "all else is answered");
    served.set_faults(0, "{}");
    let params = prefill();
    served.control("POST", "/engines/0/restart", "");
    fails(&params);
    served.set_faults(0, r#"{"crash_after_prefills": 2}"#);
    let params = [prefill(), prefill()];
    let engines = || served.control("GET", "/engines", "").json()["engines"][0]["running"].clone();
    while engines() == true {
        std::thread::yield_now();
    }
    params.iter().for_each(fails);

    let [params, _] = &params;
    let stream = json!({"prompt": STORY, "stream": true});
    let answer = decode(COMPLETIONS, stream, params).finish().unwrap();
    assert_eq!(answer.events(), [&json!({"error": error}).to_string(), "[DONE]"]);
    let messages = json!([{"role": "user", "content": STORY}]);
    let chat = json!({"messages": messages, "stream": true});
    let answer = decode("/v1/chat/completions", chat.clone(), params).finish().unwrap();
    let events = answer.events();
    assert!(events[0].contains(r#""delta":{"#) && events.len() == 3, "{events:?}");
    assert_eq!(events[1..], [&json!({"error": error}).to_string(), "[DONE]"]);
    let answer = decode("/v1/messages", chat, params).finish().unwrap().text;
    assert!(answer.starts_with("event: message_start\n"), "{answer}");
    assert!(answer.contains("event: error\n") && !answer.contains("message_stop"), "{answer}");
    let responses = json!({"input": STORY, "stream": true});
    let broken = decode("/v1/responses", responses, params).finish().unwrap_err().text;
    assert!(broken.contains("event: response.in_progress\n"), "{broken}");

    let local = served.complete(1, &json!({"prompt": STORY, "max_tokens": 10})).json();
    served.set_faults(1, r#"{"kv_load_failure": "recompute"}"#);
    let answer = decode(COMPLETIONS, whole.clone(), params).finish().unwrap();
    assert_eq!((answer.status, &answer.json()["choices"]), (200, &local["choices"]));
    served.set_faults(1, r#"{"kv_load_failure": "hang"}"#);
    let mut waiting = decode(COMPLETIONS, whole.clone(), params);
    assert!(waiting.is_silent_for(Duration::from_millis(300)));
}

#[test]
fn wrong_arguments_are_refused_with_the_cure() {
    let refusal = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["engine", "--port", "0"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refusal(&["--profile", "9b"]).contains("available: 8b-h200"));
    assert!(refusal(&["--profile", "none.json"]).contains("cannot read engine profile none.json"));
    assert!(refusal(&["--fault", "explode"]).contains("unknown field `explode`"));
    assert!(refusal(&["--speed", "0"]).contains("from 0.001"));
    assert!(refusal(&["--tokenizer", "nowhere"]).contains("nowhere/tokenizer.json"));
    assert!(refusal(&["--hash-algorithm", "md5"]).contains("`md5`"));
}
