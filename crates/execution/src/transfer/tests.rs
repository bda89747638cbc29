//! Bodies of prefill and decode steps, protocol by protocol, and the completeness of the table.

use super::*;
use crate::splice::splice;
use serde_json::json;

fn body(mutations: &[Mutation], state: &TransferState) -> Value {
    let client = json!({"prompt": "p", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50, "min_tokens": 9, "n": 3, "best_of": 4});
    let edits = edits(mutations, "/v1/completions", state);
    serde_json::from_slice(&splice(&client.to_string().into(), &edits).unwrap()).unwrap()
}

fn agreed() -> TransferState {
    let rendezvous =
        Rendezvous { host: "10.0.0.5".into(), port: 8998, room: 77, engine: "e\"1".into() };
    TransferState { rendezvous, ..TransferState::default() }
}

/// A prefill response with everything that some protocol reads.
const PREFILL_RESPONSE: &str = r#"{"kv_transfer_params": {}, "disaggregated_params": {}}"#;

/// The reference of plugins, which is generated from what profiles accept.
const REFERENCE: &str = include_str!("../../../../docs/plugins/reference.md");

fn named(word: &str) -> Transfer {
    Transfer::named(word).unwrap()
}

#[test]
fn every_built_in_protocol_is_in_the_reference() {
    let line = REFERENCE.lines().find(|line| line.contains("beside the built-in ones")).unwrap();
    for transfer in Transfer::built_in() {
        assert!(line.contains(&format!("`{}`", transfer.word())), "{}", transfer.word());
    }
}

#[test]
fn every_field_that_a_step_writes_is_among_the_transfer_fields() {
    let listed = transfer_fields();
    for transfer in Transfer::built_in() {
        let prefill = [Mutation::OfferKv(transfer.clone())];
        let from_prefill = from_prefill(&prefill, PREFILL_RESPONSE.as_bytes()).unwrap();
        let state = TransferState { from_prefill, ..agreed() };
        let steps = [&prefill[..], &[Mutation::TakeKv(transfer.clone())]];
        let written: Vec<_> =
            steps.iter().flat_map(|step| edits(step, "/v1/completions", &state)).collect();
        let fields = transfer.prefill().len() + transfer.decode().len();
        assert_eq!(written.len(), fields, "{}: every template is filled in", transfer.word());
        for Edit { field, .. } in written {
            assert!(listed.contains(&field.as_str()), "{}: `{field}`", transfer.word());
        }
    }
}

#[test]
fn the_transfer_fields_are_those_of_the_engines() {
    assert_eq!(
        transfer_fields(),
        [
            "bootstrap_host",
            "bootstrap_pair_key",
            "bootstrap_port",
            "bootstrap_room",
            "disaggregated_params",
            "ec_transfer_params",
            "encoder_urls",
            "kv_transfer_params",
            "mm_content_hashes",
            "mm_hashes",
            "multi_modal_uuids"
        ]
    );
}

#[test]
fn nixl_prefills_one_token_and_repeats_the_response_verbatim() {
    let prefill = [Mutation::PrefillOnly, Mutation::OfferKv(named("nixl"))];
    let expected = json!({"prompt": "p", "stream": false, "max_tokens": 1, "kv_transfer_params": {
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null}});
    assert_eq!(body(&prefill, &TransferState::default()), expected);
    let chat = edits(&prefill, "/v1/chat/completions", &TransferState::default());
    assert!(chat.contains(&Edit::set("max_completion_tokens", &json!(1))));
    let responses = edits(&prefill, "/v1/responses", &TransferState::default());
    assert!(responses.contains(&Edit::set("max_output_tokens", &json!(1))));
    assert!(responses.iter().all(|edit| edit.field != "max_tokens"), "that API has no such field");

    let response =
        br#"{"id":"x","kv_transfer_params": {"remote_block_ids":[[1,2]], "tp_size":2} }"#;
    let from_prefill = from_prefill(&prefill, response).unwrap();
    let verbatim = r#"{"remote_block_ids":[[1,2]], "tp_size":2}"#;
    assert_eq!(from_prefill[0].json, verbatim);
    let state = TransferState { from_prefill, ..TransferState::default() };
    let decode = body(&[Mutation::TakeKv(named("nixl"))], &state);
    assert_eq!(decode["kv_transfer_params"]["tp_size"], 2);
    assert_eq!((&decode["stream"], &decode["max_tokens"]), (&json!(true), &json!(50)));
}

#[test]
fn a_prefill_response_without_the_field_for_the_decode_step_is_an_error() {
    let prefill = [Mutation::OfferKv(named("nixl"))];
    for response in [&b"{}"[..], b"[]", br#"{"kv_transfer_params":null}"#] {
        let missing = from_prefill(&prefill, response).unwrap_err();
        assert_eq!(missing.pointer, "/kv_transfer_params");
    }
    assert_eq!(from_prefill(&[Mutation::OfferKv(named("shared_storage"))], b"{}"), Ok(Vec::new()));
}

#[test]
fn sglang_gives_both_pods_the_same_room() {
    let prefill = body(&[Mutation::OfferKv(named("bootstrap"))], &agreed());
    let decode = body(&[Mutation::TakeKv(named("bootstrap"))], &agreed());
    assert_eq!(prefill, decode);
    assert_eq!(prefill["bootstrap_host"], "10.0.0.5");
    assert_eq!(
        (&prefill["bootstrap_port"], &prefill["bootstrap_room"]),
        (&json!(8998), &json!(77))
    );
    assert_eq!(prefill["stream"], true, "the prefill response is discarded, streamed or not");
}

#[test]
fn mooncake_names_transfer_and_engine() {
    let decode = [Mutation::TakeKv(named("mooncake"))];
    assert!(needs_engine_id(&decode) && !needs_engine_id(&[Mutation::TakeKv(named("nixl"))]));
    let params = &body(&decode, &agreed())["kv_transfer_params"];
    assert_eq!(params["remote_bootstrap_addr"], "http://10.0.0.5:8998");
    assert_eq!(params["remote_engine_id"], "e\"1");
    let mut ipv6 = agreed();
    ipv6.rendezvous.host = "::1".to_owned();
    let ipv6 = &body(&decode, &ipv6)["kv_transfer_params"];
    assert_eq!(ipv6["remote_bootstrap_addr"], "http://[::1]:8998");
    let prefill = [Mutation::OfferKv(named("mooncake"))];
    let prefill = &body(&prefill, &agreed())["kv_transfer_params"];
    assert_eq!(prefill["transfer_id"], params["transfer_id"]);
    assert_eq!(prefill["do_remote_decode"], true);
}

#[test]
fn tensorrt_repeats_the_parameters_of_the_first_choice() {
    let prefill = [Mutation::OfferKv(named("tensorrt"))];
    let response = br#"{"choices":[{"text":"a","disaggregated_params":{"request_type":"context_only","ctx_request_id":5}}]}"#;
    let from_prefill = from_prefill(&prefill, response).unwrap();
    let state = TransferState { from_prefill, ..TransferState::default() };
    let params = &body(&[Mutation::TakeKv(named("tensorrt"))], &state)["disaggregated_params"];
    assert_eq!(*params, json!({"request_type": "generation_only", "ctx_request_id": 5}));
}

#[test]
fn a_decode_step_without_its_prefill_step_loads_nothing() {
    let skipped = TransferState { is_skipped: true, ..agreed() };
    let decode = body(&[Mutation::TakeKv(named("mooncake"))], &skipped);
    assert!(decode.get("kv_transfer_params").is_none());
}

#[test]
fn what_a_step_brings_fills_the_templates_of_later_steps_byte_for_byte() {
    let bring =
        |part: &str, pointer: &str| Mutation::Bring { part: part.into(), pointer: pointer.into() };
    let look = [bring("seen", "/choices/0/text"), bring("number", "/n")];
    let response = br#"{"n": 1e400, "choices": [{"text": "a \"path\""}]}"#;
    let parts = brought(&look, response).unwrap();
    let first = body(&look, &TransferState::default());
    assert_eq!((&first["stream"], first.get("stream_options")), (&json!(false), None));
    let template = json!([{"role": "user", "content": "<seen>"}, "<|end|>"]);
    let messages = Mutation::Fill { field: "messages".into(), template };
    let number = Mutation::Fill { field: "n".into(), template: json!("<number>") };
    let state = TransferState { parts, ..TransferState::default() };
    let second = body(std::slice::from_ref(&messages), &state);
    let expected = json!([{"role": "user", "content": "a \"path\""}, "<|end|>"]);
    assert_eq!((&second["messages"], &second["prompt"]), (&expected, &json!("p")));
    let edits = edits(&[number], "/v1/completions", &state);
    assert_eq!(edits[0].value.as_deref(), Some("1e400"));
    // The step that brings it was skipped: the client's field stays.
    let without = body(&[messages], &TransferState::default());
    assert_eq!(without.get("messages"), None);

    let missing = brought(&look, br#"{"choices": []}"#).unwrap_err().to_string();
    assert_eq!(
        missing,
        "response has nothing at `/choices/0/text` (`seen`), which a later step needs"
    );
}
