//! Bodies of prefill and decode steps, protocol by protocol, and the completeness of the table.

use super::*;
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

/// A prefill response with every field that some protocol reads.
fn prefill_response() -> Vec<u8> {
    let fields = PROTOCOLS.iter().filter_map(|(_, it)| it.prefill_response);
    let object: serde_json::Map<_, _> = fields.map(|name| (name.to_owned(), json!({}))).collect();
    Value::Object(object).to_string().into_bytes()
}

/// The reference of plugins, which is generated from what profiles accept.
const REFERENCE: &str = include_str!("../../../../docs/plugins/reference.md");

#[test]
fn every_protocol_that_a_profile_accepts_is_in_the_table() {
    let row = REFERENCE.lines().find(|line| line.starts_with("| `transfer` | one of ")).unwrap();
    let choices = row.split(" | ").nth(1).unwrap();
    let accepted: Vec<_> = choices.split('`').skip(1).step_by(2).collect();
    let listed: Vec<_> = PROTOCOLS.iter().map(|(transfer, _)| transfer.word()).collect();
    assert_eq!(listed, accepted);
    for (transfer, entry) in PROTOCOLS {
        assert!(std::ptr::eq(protocol(*transfer), *entry), "{}", transfer.word());
    }
}

#[test]
fn every_field_that_a_step_writes_or_reads_is_among_the_transfer_fields() {
    let listed = transfer_fields();
    for (transfer, protocol) in PROTOCOLS {
        let prefill = [Mutation::OfferKv(*transfer)];
        let from_prefill = from_prefill(&prefill, &prefill_response()).unwrap();
        let read = from_prefill.iter().map(|edit| edit.field.clone());
        let state = TransferState { from_prefill: from_prefill.clone(), ..agreed() };
        let steps = [&prefill[..], &[Mutation::TakeKv(*transfer)]];
        let written = steps.iter().flat_map(|step| edits(step, "/v1/completions", &state));
        for field in written.map(|edit| edit.field).chain(read) {
            assert!(listed.contains(&field.as_str()), "{}: `{field}`", transfer.word());
            assert!(protocol.fields().any(|own| own == field), "{}: `{field}`", transfer.word());
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
    let prefill = [Mutation::PrefillOnly, Mutation::OfferKv(Transfer::Nixl)];
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
    assert_eq!(from_prefill.as_ref().unwrap().value.as_deref(), Some(verbatim));
    let state = TransferState { from_prefill, ..TransferState::default() };
    let decode = body(&[Mutation::TakeKv(Transfer::Nixl)], &state);
    assert_eq!(decode["kv_transfer_params"]["tp_size"], 2);
    assert_eq!((&decode["stream"], &decode["max_tokens"]), (&json!(true), &json!(50)));
}

#[test]
fn a_prefill_response_without_the_field_for_the_decode_step_is_an_error() {
    let prefill = [Mutation::OfferKv(Transfer::Nixl)];
    for response in [&b"{}"[..], b"[]", br#"{"kv_transfer_params":null}"#] {
        assert_eq!(from_prefill(&prefill, response), Err("kv_transfer_params"));
    }
    assert_eq!(from_prefill(&[Mutation::OfferKv(Transfer::SharedStorage)], b"{}"), Ok(None));
}

#[test]
fn sglang_gives_both_pods_the_same_room() {
    let prefill = body(&[Mutation::OfferKv(Transfer::Bootstrap)], &agreed());
    let decode = body(&[Mutation::TakeKv(Transfer::Bootstrap)], &agreed());
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
    let decode = [Mutation::TakeKv(Transfer::Mooncake)];
    assert!(needs_engine_id(&decode) && !needs_engine_id(&[Mutation::TakeKv(Transfer::Nixl)]));
    let params = &body(&decode, &agreed())["kv_transfer_params"];
    assert_eq!(params["remote_bootstrap_addr"], "http://10.0.0.5:8998");
    assert_eq!(params["remote_engine_id"], "e\"1");
    let mut ipv6 = agreed();
    ipv6.rendezvous.host = "::1".to_owned();
    let ipv6 = &body(&decode, &ipv6)["kv_transfer_params"];
    assert_eq!(ipv6["remote_bootstrap_addr"], "http://[::1]:8998");
    let prefill = [Mutation::OfferKv(Transfer::Mooncake)];
    let prefill = &body(&prefill, &agreed())["kv_transfer_params"];
    assert_eq!(prefill["transfer_id"], params["transfer_id"]);
    assert_eq!(prefill["do_remote_decode"], true);
}

#[test]
fn tensorrt_repeats_the_parameters_of_the_first_choice() {
    let prefill = [Mutation::OfferKv(Transfer::TensorRt)];
    let response = br#"{"choices":[{"text":"a","disaggregated_params":{"request_type":"context_only","ctx_request_id":5}}]}"#;
    let from_prefill = from_prefill(&prefill, response).unwrap();
    let state = TransferState { from_prefill, ..TransferState::default() };
    let params = &body(&[Mutation::TakeKv(Transfer::TensorRt)], &state)["disaggregated_params"];
    assert_eq!(*params, json!({"request_type": "generation_only", "ctx_request_id": 5}));
}

#[test]
fn a_decode_step_without_its_prefill_step_loads_nothing() {
    let skipped = TransferState { is_skipped: true, ..agreed() };
    let decode = body(&[Mutation::TakeKv(Transfer::Mooncake)], &skipped);
    assert!(decode.get("kv_transfer_params").is_none());
}
