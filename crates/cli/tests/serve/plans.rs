//! What pods are really sent: fields that plans add, headers that stay here, steps that start
//! together.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";
const MODEL: &str = "models: [{name: m, tokenizer: bytes}]\n";

/// One pod of each role, and a profile that always needs both.
fn pair(test: &str, transfer: &str) -> (Recorder, Recorder, Gateway) {
    let prefill = Recorder::start();
    let decode = Recorder::start();
    let meeting = prefill.address.port();
    let text = format!(
        "{MODEL}pods:\n  - {{url: \"http://{}\", role: prefill, model: m, bootstrap_port: {meeting}}}\n  \
         - {{url: \"http://{}\", role: decode, model: m}}\nprofiles:\n  pair:\n    prepare: [tokenize, block_hash]\n    \
         selectors:\n      prefill: {{filter: [healthy, model], pick: max_score}}\n      decode: {{filter: [healthy, model], pick: max_score}}\n    \
         workflow: {{prefill_decode: {{min_uncached_tokens: 1, transfer: {transfer}}}}}\n",
        prefill.address, decode.address
    );
    let gateway = Gateway::configured(test, &text, 2);
    (prefill, decode, gateway)
}

#[test]
fn sglangs_pair_gets_the_same_room_at_the_same_time_and_decode_answers() {
    let (prefill, decode, gateway) = pair("plans_bootstrap", "bootstrap");
    let body = json!({"model": "m", "prompt": "hello there", "max_tokens": 7, "x": 1});
    let answer = gateway.post(ASK, &body);
    assert_eq!(
        (answer.status, answer.pod()),
        (200, &*decode.address.to_string()),
        "{}",
        answer.text
    );
    eventually("both were called", || prefill.posted().len() == 1 && decode.posted().len() == 1);
    let [given, taken] = [&prefill, &decode].map(|pod| pod.posted().remove(0));
    assert_eq!(given.body, taken.body, "both get the very same");
    assert_eq!(given.body["bootstrap_host"], "127.0.0.1");
    assert_eq!(given.body["bootstrap_port"], prefill.address.port());
    assert!(given.body["bootstrap_room"].as_u64().unwrap() < 1 << 63);
    assert_eq!((&given.body["max_tokens"], &given.body["x"]), (&json!(7), &json!(1)));
    assert_eq!(given.header("x-request-id"), taken.header("x-request-id"));
    gateway.post(ASK, &body);
    let rooms: Vec<_> =
        decode.posted().iter().map(|sent| sent.body["bootstrap_room"].clone()).collect();
    assert_ne!(rooms[0], rooms[1], "every request has a room of its own");
}

#[test]
fn mooncakes_pair_is_told_the_engine_and_the_transfer() {
    let (prefill, decode, gateway) = pair("plans_mooncake", "mooncake");
    assert_eq!(gateway.post(ASK, &json!({"model": "m", "prompt": "hello"})).status, 200);
    eventually("both were called", || prefill.posted().len() == 1 && decode.posted().len() == 1);
    let [given, taken] = [&prefill, &decode].map(|pod| pod.posted().remove(0).body);
    assert_eq!((&given["max_tokens"], &given["stream"]), (&json!(1), &json!(false)));
    assert_eq!(taken.get("max_tokens"), None);
    let [given, taken] = [given, taken].map(|body| body["kv_transfer_params"].clone());
    assert_eq!(given["transfer_id"], taken["transfer_id"]);
    assert_eq!(taken["remote_engine_id"], "engine-1");
    let meeting = format!("http://127.0.0.1:{}", prefill.address.port());
    assert_eq!(taken["remote_bootstrap_addr"], meeting);
}

#[test]
fn an_engine_that_does_not_report_its_id_is_awaited_no_longer_than_its_step_timeout() {
    let prefill = Recorder::start();
    let decode = Recorder::start();
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "{MODEL}pods:\n  - {{url: \"http://{}\", role: prefill, model: m, bootstrap_port: {}}}\n  \
         - {{url: \"http://{}\", role: decode, model: m}}\nprofiles:\n  pair:\n    prepare: [tokenize, block_hash]\n    \
         selectors:\n      prefill: {{filter: [healthy, model], pick: max_score}}\n      decode: {{filter: [healthy, model], pick: max_score}}\n    \
         workflow: {{prefill_decode: {{min_uncached_tokens: 1, transfer: mooncake, prefill: {{deadline: 300ms}}}}}}\n",
        prefill.address,
        silent.local_addr().unwrap().port(),
        decode.address
    );
    let gateway = Gateway::configured("plans_silent", &text, 2);
    let answer = gateway.post(ASK, &json!({"model": "m", "prompt": "hello"}));
    assert_eq!(answer.status, 504, "there is no other: {}", answer.text);
    assert!(answer.text.contains("after 300ms"), "{}", answer.text);
    assert!(prefill.posted().is_empty() && decode.posted().is_empty());
}

#[test]
fn a_request_with_several_prompts_is_not_split_into_prefill_and_decode() {
    for (transfer, prompt) in [("nixl", json!(["a b", "c d"])), ("bootstrap", json!([[1, 2], [3]]))]
    {
        let (prefill, decode, gateway) = pair(&format!("plans_several_{transfer}"), transfer);
        let body = json!({"model": "m", "prompt": prompt});
        assert_eq!(gateway.post(ASK, &body).status, 200);
        assert!(prefill.posted().is_empty(), "{transfer}");
        assert_eq!(decode.posted().remove(0).body, body, "{transfer}");
    }
}

#[test]
fn nixls_decode_gets_what_prefill_answered_word_for_word() {
    let (prefill, decode, gateway) = pair("plans_nixl", "nixl");
    let body = json!({"model": "m", "prompt": "hello", "max_tokens": 9, "stream": true});
    assert_eq!(gateway.post(ASK, &body).status, 200);
    let given = prefill.posted().remove(0).body;
    assert_eq!((&given["max_tokens"], &given["stream"]), (&json!(1), &json!(false)));
    assert_eq!(given["kv_transfer_params"]["do_remote_decode"], true);
    let taken = decode.posted().remove(0).body;
    assert_eq!((&taken["max_tokens"], &taken["stream"]), (&json!(9), &json!(true)));
    assert_eq!(
        taken["kv_transfer_params"],
        json!({"remote_block_ids": [[1, 2]], "remote_host": "h"})
    );
}

#[test]
fn a_skipped_step_before_prefill_does_not_prevent_the_kv_transfer() {
    let bad = Engines::start(&["--model", "m"]);
    let prefill = Recorder::start();
    let decode = Recorder::start();
    let text = format!(
        "{MODEL}pods:\n  - {{url: \"http://{}\", role: preprocess, model: m}}\n  - {{url: \"http://{}\", role: prefill, model: m}}\n  \
         - {{url: \"http://{}\", role: decode, model: m}}\nroutes: [{{profile: preprocess-prefill-decode}}]\n",
        bad.engines[0].http, prefill.address, decode.address
    );
    let gateway = Gateway::configured("plans_left_out", &text, 3);
    bad.set_faults(0, r#"{"refuse": 500}"#);
    assert_eq!(gateway.post(ASK, &json!({"model": "m", "prompt": "hello"})).status, 200);
    assert_eq!(prefill.posted().len(), 1);
    let taken = decode.posted().remove(0).body;
    assert_eq!(taken["kv_transfer_params"]["remote_host"], "h", "{taken}");
}

/// A profile whose first step writes the messages of the other two.
const REWRITING: &str = "profiles:
  rewriting:
    prepare: [tokenize, block_hash]
    selectors:
      preprocess: {filter: [healthy], pick: max_score}
      prefill: {filter: [healthy, model], score: [cache_affinity], pick: max_score}
      decode: {filter: [healthy, model], score: [{least_load: {of: decode_tokens}}], pick: max_score}
    workflow:
      steps:
        - preprocess: {set: {max_tokens: 12}, brings: {rewritten: /choices/0/message/content}, then: skip}
        - prefill: {prefill_only: true, offers: nixl, lease: 30s, needs: {messages: [{role: user, content: <rewritten>}]}}
        - decode: {takes: nixl, bind: late, needs: {messages: [{role: user, content: <rewritten>}]}}
";

#[test]
fn a_preprocessor_rewrites_the_messages_that_prefill_and_decode_get() {
    const CHAT: &str = "/v1/chat/completions";
    let engines = Engines::start(&["--model", "m", "--engines", "3"]);
    let pods: String = ["preprocess", "prefill", "decode"]
        .iter()
        .zip(&engines.engines)
        .map(|(role, engine)| {
            format!("  - {{url: \"http://{}\", role: {role}, model: m}}\n", engine.http)
        })
        .collect();
    let text = format!("{MODEL}pods:\n{pods}{REWRITING}reveal: pod\n");
    let gateway = Gateway::configured("plans_rewriting", &text, 3);
    let asked = json!({"model": "m", "stream": true, "max_tokens": 20,
        "messages": [{"role": "user", "content": "what is in this picture of a path in the woods"}]});
    let answer = gateway.post(CHAT, &asked);
    assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[2].http), "{}", answer.text);
    assert_eq!(answer.header("x-wornpath-degraded"), None);
    let chunks = answer.events().into_iter().filter_map(|event| {
        serde_json::from_str::<Value>(event).ok()?["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    });
    let streamed: String = chunks.collect();

    // The same by hand, on an engine that took part in nothing.
    let other = Engines::start(&["--model", "m"]);
    let content = |mut body: Value| {
        body["stream"] = json!(false);
        let answer = other.post(0, CHAT, &body).json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let mut rewriting = asked.clone();
    rewriting["max_tokens"] = json!(12);
    let rewritten = content(rewriting);
    let mut expected = asked.clone();
    expected["messages"] = json!([{"role": "user", "content": rewritten}]);
    assert_eq!(streamed, content(expected));
    assert_ne!(streamed, content(asked.clone()), "the text depends on the messages");

    // Its answer is no longer what the profile expects: the client's messages stay.
    engines.set_faults(0, r#"{"refuse": 500}"#);
    let skipped = gateway.post(CHAT, &asked);
    assert_eq!(
        (skipped.status, skipped.header("x-wornpath-degraded")),
        (200, Some("true")),
        "{}",
        skipped.text
    );
}

#[test]
fn a_profile_may_have_a_transfer_protocol_of_its_own() {
    let prefill = Recorder::start();
    let decode = Recorder::start();
    let text = format!(
        "{MODEL}pods:\n  - {{url: \"http://{}\", role: prefill, model: m}}\n  - {{url: \"http://{}\", role: decode, model: m}}\n\
         profiles:\n  own:\n    prepare: [tokenize, block_hash]\n    transfers:\n      mine:\n        prefill: {{cache_job: {{role: producer}}}}\n        \
         brings: {{blocks: /kv_transfer_params/remote_block_ids, from: [/nowhere, /kv_transfer_params/remote_host]}}\n        \
         decode: {{cache_job: {{role: consumer, blocks: <blocks>, address: \"kv://<from>/cache\"}}}}\n    \
         selectors:\n      prefill: {{filter: [healthy, model], pick: max_score}}\n      decode: {{filter: [healthy, model], pick: max_score}}\n    \
         workflow: {{prefill_decode: {{min_uncached_tokens: 1, transfer: mine}}}}\n",
        prefill.address, decode.address
    );
    let gateway = Gateway::configured("plans_own", &text, 2);
    let answer = gateway.post(ASK, &json!({"model": "m", "prompt": "hello", "max_tokens": 9}));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let given = prefill.posted().remove(0).body;
    assert_eq!(
        (&given["max_tokens"], &given["cache_job"]),
        (&json!(1), &json!({"role": "producer"}))
    );
    let taken = decode.posted().remove(0).body;
    let job = json!({"role": "consumer", "blocks": [[1, 2]], "address": "kv://h/cache"});
    assert_eq!((&taken["max_tokens"], &taken["cache_job"]), (&json!(9), &job));
}

#[test]
fn a_part_that_an_answer_lacks_fails_its_step() {
    let preprocess = Recorder::start();
    let decode = Recorder::start();
    let text = format!(
        "{MODEL}pods:\n  - {{url: \"http://{}\", role: preprocess, model: m}}\n  - {{url: \"http://{}\", role: decode, model: m}}\n\
         profiles:\n  rewriting:\n    selectors: {{any: {{filter: [healthy], pick: max_score}}}}\n    workflow:\n      steps:\n        \
         - preprocess: {{selector: any, brings: {{text: /nowhere}}}}\n        - decode: {{selector: any, needs: {{prompt: <text>}}}}\n",
        preprocess.address, decode.address
    );
    let gateway = Gateway::configured("plans_lacking", &text, 2);
    let answer = gateway.post(ASK, &json!({"model": "m", "prompt": "hello", "stream": true}));
    assert_eq!(answer.status, 502, "{}", answer.text);
    assert!(answer.text.contains("response has nothing at `/nowhere` (`text`)"), "{}", answer.text);
    assert_eq!(preprocess.posted()[0].body["stream"], false, "a whole response is read");
    assert!(decode.posted().is_empty());
}

#[test]
fn a_decode_pod_that_fails_before_its_first_byte_is_replaced_while_the_lease_surely_holds() {
    for (lease, is_computed_again) in [("30s", false), ("1s", true)] {
        let prefill = Recorder::start();
        let good = Recorder::start();
        let bad = Engines::start(&["--model", "m"]);
        let text = format!(
            "{MODEL}pods:\n  - {{url: \"http://{}\", role: prefill, model: m}}\n  - {{url: \"http://{}\", role: decode, model: m, labels: {{first: \"yes\"}}}}\n  \
             - {{url: \"http://{}\", role: decode, model: m}}\nprofiles:\n  pair:\n    prepare: [tokenize, block_hash]\n    \
             selectors:\n      prefill: {{filter: [healthy, model], pick: max_score}}\n      decode: {{filter: [healthy, model], pick: round_robin}}\n    \
             workflow:\n      prefill_decode:\n        min_uncached_tokens: 1\n        prefill: {{lease: {lease}}}\n        decode: {{attempts: 2, then: restart}}\n\
             timeouts: {{first_byte: 800ms, unstreamed: 800ms}}\n",
            prefill.address, bad.engines[0].http, good.address
        );
        let gateway = Gateway::configured("plans_lease", &text, 3);
        bad.set_faults(0, "{\"hang\": true}");
        // Round robin: one of two begins at the pod that hangs.
        let answers: Vec<_> =
            (0..2).map(|_| gateway.post(ASK, &json!({"model": "m", "prompt": "hello"}))).collect();
        for answer in &answers {
            assert_eq!((answer.status, answer.pod()), (200, &*good.address.to_string()), "{lease}");
        }
        assert_eq!(prefill.posted().len() > 2, is_computed_again, "{lease}");
    }
}

#[test]
fn the_pod_gets_the_predicted_cached_tokens_if_the_profile_asks() {
    let pod = Recorder::start();
    let text = format!(
        "{MODEL}pods: [{{url: \"http://{}\", model: m}}]\nprofiles:\n  hinting:\n    prepare: [tokenize, block_hash]\n    \
         filter: [healthy, model]\n    pick: max_score\n    workflow: {{single: {{cache_hint: kv_hint}}}}\n",
        pod.address
    );
    let gateway = Gateway::configured("plans_hint", &text, 1);
    let body = json!({"model": "m", "prompt": "x".repeat(100)});
    for _ in 0..2 {
        assert_eq!(gateway.post(ASK, &body).status, 200);
    }
    let hints: Vec<_> = pod.posted().iter().map(|sent| sent.body["kv_hint"].clone()).collect();
    assert_eq!(hints[0], json!({"tokens": 0, "runs": []}));
    assert_eq!(hints[1]["tokens"], 96, "{hints:?}");
    assert_eq!(hints[1]["runs"][0]["tier"], "gpu", "{hints:?}");
}

#[test]
fn client_credentials_are_not_forwarded_by_default_and_never_logged() {
    for (credentials, goes_on) in [("none", false), ("forwarded", true)] {
        let pod = Recorder::start();
        let text = format!(
            "pods: [{{url: \"http://{}\"}}]\ncredentials: {credentials}\n\
             tenants: [{{name: t, key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"}}]\n",
            pod.address
        );
        let gateway = Gateway::configured("plans_secrets", &text, 1);
        assert_eq!(gateway.ask("PUT", "/log-level", r#"{"level": "trace"}"#).status, 200);
        let headers = [
            ("authorization", "Bearer a"),
            ("x-api-key", "sk-private"),
            ("connection", "x-hop"),
            ("x-hop", "hop-private"),
            ("te", "trailers"),
            ("x-wornpath-pod", "forged"),
            ("x-data-parallel-rank", "7"),
            ("x-mine", "header-private"),
        ];
        let body = json!({"prompt": "prompt-private", "max_tokens": 1});
        let answer = Exchange::open_with(&gateway.address, ASK, &headers, &body).finish().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        let sent = pod.posted().remove(0);
        assert_eq!(sent.header("authorization").is_some(), goes_on);
        assert_eq!(sent.header("x-api-key").is_some(), goes_on);
        assert_eq!(sent.header("x-mine"), Some("header-private"));
        for never in ["x-hop", "te", "x-wornpath-pod", "x-data-parallel-rank", "connection"] {
            assert_eq!(sent.header(never), None, "{never}");
        }
        let wrong = Exchange::open_with(
            &gateway.address,
            ASK,
            &[("authorization", "Bearer wrong-private")],
            &body,
        );
        assert_eq!(wrong.finish().unwrap().status, 401);
        drop(pod);
        let gone = Exchange::open_with(&gateway.address, ASK, &headers, &body).finish().unwrap();
        assert_ne!(gone.status, 0);
        let log = gateway.log();
        assert!(!log.contains("private"), "{log}");
        let page = gateway.get("/metrics").text;
        assert!(!page.contains("private"), "{page}");
    }
}

#[test]
fn recent_decisions_are_explained_with_candidates_scores_and_calls() {
    let engines = Engines::start(&["--engines", "3", "--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    gateway.post(ASK, &json!({"prompt": "hello ".repeat(50), "max_tokens": 2}));
    let shown = |gateway: &Gateway| -> Value {
        gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone()
    };
    eventually("it is remembered", || shown(&gateway)["status"] == 200);
    let decision = shown(&gateway);
    let step = &decision["explanation"]["steps"][0];
    assert_eq!(step["candidates"].as_array().unwrap().len(), 3, "{decision}");
    assert!(step["candidates"][0]["total"].is_number(), "{decision}");
    assert_eq!(step["pick"]["pod"], decision["pod"], "{decision}");
    assert_eq!(
        decision["calls"][0]["url"],
        format!("http://{}", decision["pod"].as_str().unwrap())
    );
    // One a second by default: the next ones are told without.
    for _ in 0..3 {
        gateway.post(ASK, &json!({"prompt": "hello", "max_tokens": 2}));
    }
    eventually("all are remembered", || {
        gateway.ask("GET", "/decisions", "").json()["decisions"].as_array().unwrap().len() == 4
    });
    let all = gateway.ask("GET", "/decisions", "").json();
    let explained = all["decisions"].as_array().unwrap().iter();
    let explained = explained.filter(|decision| decision.get("explanation").is_some()).count();
    assert!((1..4).contains(&explained), "{explained} of 4: {all}");
}

#[test]
fn a_plan_is_cancelled_when_its_client_disconnects_during_prefill() {
    for transfer in ["nixl", "tensorrt"] {
        let (prefill, decode, gateway) = pair(&format!("plans_left_{transfer}"), transfer);
        prefill.answer_after(Duration::from_millis(2500));
        let leaving = gateway.open(ASK, &json!({"model": "m", "prompt": "hello"}));
        eventually("prefill has begun", || prefill.posted().len() == 1);
        drop(leaving);
        let left = Instant::now();
        eventually("no load is left", || requests(&gateway) == 0);
        assert!(left.elapsed() < Duration::from_secs(1), "{transfer}: before prefill was done");
        eventually("prefill is done", || prefill.answered() == 1);
        prefill.answer_after(Duration::ZERO);
        // A whole request later.
        gateway.post(ASK, &json!({"model": "m", "prompt": "the client stays"}));
        assert!(prefill.posted().len() >= 2, "{transfer}");
        let decoded = decode.posted();
        assert!(
            decoded.iter().all(|it| it.body["prompt"] != "hello"),
            "{transfer}: it was decoded"
        );
    }
}

#[test]
fn a_kv_transfer_is_completed_even_if_the_client_disconnects() {
    let (_prefill, decode, gateway) = pair("plans_taken", "nixl");
    decode.answer_after(Duration::from_millis(2500));
    let leaving = gateway.open(ASK, &json!({"model": "m", "prompt": "hello"}));
    eventually("decode has begun", || decode.posted().len() == 1);
    drop(leaving);
    eventually("decode is done", || {
        let load = requests(&gateway);
        let is_done = decode.answered() == 1;
        assert!(is_done || load == 1, "the request counts as load while decode runs: {load}");
        is_done
    });
    eventually("no load is left", || requests(&gateway) == 0);
}

#[test]
fn an_expired_kv_lease_ends_the_plan_of_a_disconnected_client() {
    let (_prefill, decode, gateway) =
        pair("plans_lapsed", "nixl, prefill: {lease: 800ms}, decode: {attempts: 1}");
    decode.answer_after(Duration::from_secs(9));
    let leaving = gateway.open(ASK, &json!({"model": "m", "prompt": "hello"}));
    eventually("decode has begun", || decode.posted().len() == 1);
    drop(leaving);
    let left = Instant::now();
    eventually("no load is left", || requests(&gateway) == 0);
    assert!(left.elapsed() < Duration::from_secs(5), "long before it has answered");
}

#[test]
fn an_optional_step_without_a_pod_is_skipped() {
    let pod = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\", model: m}}]\nlisten: {{admin: \"127.0.0.1:0\"}}\nprofiles:\n  late:\n    \
         selectors:\n      preprocess: {{filter: [healthy], pick: max_score}}\n      serve: {{filter: [healthy, model], pick: max_score}}\n    \
         workflow: {{steps: [preprocess: {{bind: late, then: skip}}, serve: {{}}]}}\n",
        pod.address
    );
    let gateway = Gateway::configured("plans_late", &text, 1);
    let answer = gateway.post(ASK, &json!({"model": "m", "prompt": "hello"}));
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.header("x-wornpath-degraded").is_some(), "{}", answer.head);
}

#[test]
fn a_role_that_no_listed_pod_plays_may_be_played_by_one_that_comes() {
    let prefill = Recorder::start();
    let decode = Recorder::start();
    let text = format!(
        "{MODEL}pods: [{{url: \"http://{}\", role: prefill, model: m}}]\nlisten: {{admin: \"127.0.0.1:0\"}}\n\
         profiles:\n  pair:\n    prepare: [tokenize, block_hash]\n    \
         selectors:\n      prefill: {{filter: [healthy, model], pick: max_score}}\n      decode: {{filter: [healthy, model], pick: max_score}}\n    \
         workflow: {{prefill_decode: {{min_uncached_tokens: 1}}}}\n",
        prefill.address
    );
    let gateway = Gateway::configured("plans_roles", &text, 1);
    let body = json!({"model": "m", "prompt": "hello"});
    assert_eq!(gateway.post(ASK, &body).status, 503);
    let pod = json!({"url": format!("http://{}", decode.address), "role": "decode", "model": "m"});
    assert_eq!(gateway.ask("POST", "/pods", &pod.to_string()).status, 200);
    eventually("both work", || gateway.post(ASK, &body).status == 200);
    assert!(!prefill.posted().is_empty());
}

#[test]
fn a_forced_tool_call_that_prefill_refuses_is_not_the_clients_error() {
    let (prefill, decode, gateway) = pair("plans_forced", "nixl");
    prefill.refuse("400 Bad Request");
    let ask = |choice: Value| {
        let messages = json!([{"role": "user", "content": "hello"}]);
        let body = json!({"model": "m", "messages": messages, "tool_choice": choice});
        gateway.post("/v1/chat/completions", &body)
    };
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
        let answer = ask(choice);
        assert_eq!((answer.status, answer.pod()), (200, &*decode.address.to_string()));
        assert!(answer.header("x-wornpath-degraded").is_some(), "{}", answer.head);
    }
    for choice in [json!("auto"), json!(null)] {
        assert_eq!(ask(choice).status, 400, "it is the client's fault");
    }
}

/// What the gateway thinks its pods have to do.
fn requests(gateway: &Gateway) -> u64 {
    let pods = gateway.ask("GET", "/pods", "").json();
    let all = pods["pods"].as_array().unwrap().iter();
    all.map(|pod| pod["load"]["requests"].as_u64().unwrap()).sum()
}
