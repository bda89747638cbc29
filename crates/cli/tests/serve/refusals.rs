//! What operators learn of requests that were refused, or that went where less was cached.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};

const ASK: &str = "/v1/completions";

/// Two engines that publish what they cache, behind pods `a` and `b`. Hardly a decision is recorded.
fn pair(test: &str, more: &str) -> (Engines, Gateway) {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let pods = ["a", "b"].iter().zip(&engines.engines).map(|(name, at)| {
        let events = format!("zmq://{}?replay={}", at.events, at.replay);
        format!(
            "  - {{url: \"http://{}\", name: {name}, model: m, events: [\"{events}\"]}}\n",
            at.http
        )
    });
    let pods: String = pods.collect();
    let text =
        format!("explained: 0.001\nmodels: [{{name: m, tokenizer: bytes}}]\n{more}pods:\n{pods}");
    let gateway = Gateway::configured(test, &text, 2);
    (engines, gateway)
}

fn prompt(number: usize) -> Value {
    let text = format!("{number}: {}", "a prompt of some length ".repeat(60));
    json!({"prompt": text, "max_tokens": 1})
}

fn decisions(gateway: &Gateway, query: &str) -> Vec<Value> {
    let found = gateway.ask("GET", &format!("/decisions?{query}"), "");
    assert_eq!(found.status, 200, "{}", found.text);
    found.json()["decisions"].as_array().unwrap().clone()
}

#[test]
fn a_refusal_is_explained_pod_by_pod_although_it_was_not_sampled() {
    let (_engines, gateway) = pair("refusal_explained", "");
    assert_eq!(gateway.post(ASK, &prompt(0)).status, 200);
    for pod in ["a", "b"] {
        assert_eq!(gateway.ask("POST", &format!("/pods/{pod}/drain"), "").status, 200);
    }
    assert_eq!(gateway.post(ASK, &prompt(1)).status, 503);
    let found = decisions(&gateway, "status=503&cause=no_pod&model=m");
    let [refused] = &found[..] else { panic!("{found:?}") };
    assert!(refused["reason"].as_str().unwrap().contains("retry later"), "{refused}");
    assert!(refused["ended_at"].as_f64().unwrap() > 1e9);
    let candidates = refused["explanation"]["steps"][0]["candidates"].as_array().unwrap();
    let dropped: Vec<_> = candidates.iter().map(|pod| (&pod["pod"], &pod["dropped"])).collect();
    assert_eq!(dropped.len(), 2, "{refused}");
    for (pod, dropped) in dropped {
        assert_eq!(dropped["by"], "healthy", "{pod}");
        assert_eq!(dropped["why"], "draining", "{pod}");
    }
    assert!(decisions(&gateway, "status=4xx").is_empty());
    assert_eq!(gateway.ask("GET", "/decisions?state=503", "").status, 400);
}

#[test]
fn nothing_that_a_client_wrote_is_shown_of_a_refused_request() {
    let (_engines, gateway) = pair("refusal_private", "");
    let body = json!({"model": "canary-model", "prompt": "canary-prompt", "max_tokens": "canary"});
    assert!(gateway.post(ASK, &body).status >= 400);
    assert!(gateway.post("/v1/chat/completions", &json!({"messages": "canary"})).status >= 400);
    eventually("both are there", || decisions(&gateway, "status=failed").len() == 2);
    let shown = gateway.ask("GET", "/decisions?last=100", "").text;
    assert!(!shown.contains("canary"), "{shown}");
    let found = decisions(&gateway, "status=failed");
    let mut causes: Vec<_> = found.iter().map(|request| request["cause"].as_str()).collect();
    causes.sort_unstable();
    assert_eq!(causes, [Some("engine"), Some("request")], "the second was the engine's to refuse");
}

#[test]
fn cached_tokens_on_a_pod_that_was_passed_over_count_as_given_away() {
    let (_engines, gateway) = pair("given_away", "");
    let first = gateway.post(ASK, &prompt(7));
    assert_eq!(first.status, 200);
    let last = || decisions(&gateway, "last=1&view=rows").remove(0);
    eventually("it is there", || last()["status"] == 200);
    let holder = last()["pod"].as_str().unwrap().to_owned();
    let blocks = || {
        let pods = gateway.ask("GET", "/index", "").json()["by_pod"].clone();
        let pods = pods.as_array().unwrap().clone();
        let own = pods.iter().find(|pod| pod["pod"] == holder.as_str());
        own.and_then(|pod| pod["blocks"].as_u64()).unwrap_or(0)
    };
    eventually("it is cached", || blocks() > 10);
    assert_eq!(gateway.ask("POST", &format!("/pods/{holder}/drain"), "").status, 200);
    assert_eq!(gateway.post(ASK, &prompt(7)).status, 200);
    eventually("the second went to the other pod", || last()["pod"] != holder.as_str());
    let second = last();
    assert_eq!(
        (&second["best"]["pod"], &second["best"]["why"]),
        (&json!(holder), &json!("health"))
    );
    let tokens = second["best"]["tokens"].as_f64().unwrap();
    let metric =
        "wornpath_prefill_given_away_tokens_total{profile=\"cache-aware\",reason=\"health\"}";
    assert!(tokens > 500.0 && (gateway.metric(metric) - tokens).abs() < 1e-6, "{second}");
}

#[test]
fn a_shadow_profile_is_compared_and_changes_nothing() {
    let shadow = "shadow: {profile: round-robin, per_second: 1000}\n";
    let (_engines, gateway) = pair("shadow", shadow);
    for _ in 0..10 {
        // One at a time, and all the same: the cache-aware profile stays with the first pod.
        assert_eq!(gateway.post(ASK, &prompt(3)).status, 200);
    }
    let count = |result: &str| {
        let labels =
            format!("{{profile=\"cache-aware\",shadow=\"round-robin\",result=\"{result}\"}}");
        gateway.metric(&format!("wornpath_shadow_decisions_total{labels}")) as u64
    };
    assert_eq!(count("held") + count("refused"), 0);
    assert_eq!(count("agreed") + count("differed"), 10, "every request was compared");
    assert_eq!(count("agreed"), 5, "round robin takes turns");
    let tokens = |choice: &str| {
        let labels =
            format!("{{profile=\"cache-aware\",shadow=\"round-robin\",choice=\"{choice}\"}}");
        gateway.metric(&format!("wornpath_shadow_cached_tokens_total{labels}"))
    };
    assert!(tokens("chosen") > 1.5 * tokens("shadow"), "{} {}", tokens("chosen"), tokens("shadow"));
    let found = decisions(&gateway, "view=rows");
    let pods: std::collections::BTreeSet<_> =
        found.iter().map(|request| request["pod"].to_string()).collect();
    assert_eq!(pods.len(), 1, "the other pod got nothing: {found:?}");
    assert!(found.iter().all(|request| request["shadow"]["profile"] == "round-robin"));
    for pod in gateway.ask("GET", "/pods", "").json()["pods"].as_array().unwrap() {
        assert_eq!(pod["load"]["requests"], 0, "{pod}");
    }
    let index = gateway.ask("GET", "/index", "").json();
    let holders = index["by_pod"].as_array().unwrap().iter();
    let holders = holders.filter(|pod| pod["blocks"].as_u64() > Some(0)).count();
    assert_eq!(holders, 1, "nothing was inserted for the shadow's choices: {index}");
}

#[test]
fn the_configuration_in_force_says_where_each_value_comes_from() {
    let (_engines, gateway) = pair("effective", "");
    let all = gateway.ask("GET", "/config/effective", "").json();
    let of = |key: &str| {
        let found = all["values"].as_array().unwrap().iter().find(|value| value["key"] == key);
        found.unwrap_or_else(|| panic!("no {key} in {all}")).clone()
    };
    assert_eq!(of("explained")["source"], "line 1");
    assert_eq!(of("pods[0].name")["value"], "a");
    assert_eq!(of("stream_usage")["source"], "default");
    assert_eq!(of("listen.admin")["source"], "option --admin");
}
