//! What engines say to each other about a computed prompt, as data.
//!
//! Every protocol is a few fields for the giving step, the name of what its answer brings back, and a few
//! fields for the taking step. Values are JSON with names in angle brackets for what differs from request
//! to request.

use crate::splice::{Edit, NotAnObject, field, splice};
use bytes::Bytes;
use serde_json::Value;
use wornpath_routing::{Mutation, Transfer};

/// One protocol's words.
struct Connector {
    /// Fields of the giving step.
    offers: &'static [(&'static str, &'static str)],
    /// The field of its answer that the taking step gets.
    brings: Option<&'static str>,
    /// Fields of the taking step, besides.
    takes: &'static [(&'static str, &'static str)],
    /// Changes of the object that is brought.
    amends: &'static [(&'static str, &'static str)],
    /// Whether the taking engine loads from the giving pod and is vLLM, whose words for a failed load are known.
    is_loaded_by_vllm: bool,
}

const NIXL: Connector = Connector {
    offers: &[(
        "kv_transfer_params",
        r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#,
    )],
    brings: Some("kv_transfer_params"),
    takes: &[],
    amends: &[],
    is_loaded_by_vllm: true,
};

const BOOTSTRAP_FIELDS: &[(&str, &str)] = &[
    ("bootstrap_host", r#""<host>""#),
    ("bootstrap_port", "<port>"),
    ("bootstrap_room", "<room>"),
];

const BOOTSTRAP: Connector = Connector {
    offers: BOOTSTRAP_FIELDS,
    brings: None,
    takes: BOOTSTRAP_FIELDS,
    amends: &[],
    is_loaded_by_vllm: false,
};

const SHARED_STORAGE: Connector =
    Connector { offers: &[], brings: None, takes: &[], amends: &[], is_loaded_by_vllm: false };

const MOONCAKE: Connector = Connector {
    offers: &[(
        "kv_transfer_params",
        r#"{"do_remote_prefill":false,"do_remote_decode":true,"transfer_id":"xfer-<room>"}"#,
    )],
    brings: None,
    takes: &[(
        "kv_transfer_params",
        r#"{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"xfer-<room>","remote_bootstrap_addr":"http://<url_host>:<port>","remote_engine_id":"<engine>"}"#,
    )],
    amends: &[],
    is_loaded_by_vllm: true,
};

const TENSOR_RT: Connector = Connector {
    offers: &[("disaggregated_params", r#"{"request_type":"context_only"}"#)],
    brings: Some("disaggregated_params"),
    takes: &[],
    amends: &[("request_type", r#""generation_only""#)],
    is_loaded_by_vllm: false,
};

const fn connector(transfer: Transfer) -> &'static Connector {
    match transfer {
        Transfer::Nixl => &NIXL,
        Transfer::Bootstrap => &BOOTSTRAP,
        Transfer::SharedStorage => &SHARED_STORAGE,
        Transfer::Mooncake => &MOONCAKE,
        Transfer::TensorRt => &TENSOR_RT,
    }
}

/// Where both engines of one request meet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rendezvous {
    /// The giving engine's host.
    pub(crate) host: String,
    /// Its bootstrap port.
    pub(crate) port: u16,
    /// A number that no other request has.
    pub(crate) room: u64,
    /// What the giving engine calls itself, where the protocol asks for it.
    pub(crate) engine: String,
}

/// What is known when a step's body is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct BootstrapCache {
    pub(crate) rendezvous: Rendezvous,
    /// What an earlier step's answer brought; none if there was no such step.
    pub(crate) brought: Option<Edit>,
    /// Whether the step before was left out, so that there is nothing to take over.
    pub(crate) alone: bool,
}

/// The changes that a step makes to the client's body.
pub(crate) fn edits(mutations: &[Mutation], path: &str, known: &BootstrapCache) -> Vec<Edit> {
    let mut edits = Vec::new();
    for mutation in mutations {
        match mutation {
            Mutation::PrefillOnly => prefill_only(path, &mut edits),
            Mutation::OfferKv(transfer) => {
                edits.extend(filled(connector(*transfer).offers, &known.rendezvous));
            }
            Mutation::TakeKv(_) if known.alone => {}
            Mutation::TakeKv(transfer) => {
                edits.extend(filled(connector(*transfer).takes, &known.rendezvous));
                edits.extend(known.brought.clone());
            }
            Mutation::Set { field, value } => edits.push(Edit::set(field, value)),
        }
    }
    edits
}

/// What the answer of a step brings for the next one.
///
/// # Errors
/// The name of what it lacks.
pub(crate) fn brought(mutations: &[Mutation], answer: &[u8]) -> Result<Option<Edit>, &'static str> {
    let offered = mutations.iter().find_map(|mutation| match mutation {
        Mutation::OfferKv(transfer) => Some(connector(*transfer)),
        _ => None,
    });
    let Some((name, connector)) = offered.and_then(|of| Some((of.brings?, of))) else {
        return Ok(None);
    };
    let value = top_or_first_choice(answer, name).ok().flatten().ok_or(name)?;
    let amends: Vec<_> = filled(connector.amends, &Rendezvous::default()).collect();
    let value = splice(&value, &amends).map_err(|_| name)?;
    let value = String::from_utf8(value.to_vec()).map_err(|_| name)?;
    Ok(Some(Edit { field: name.to_owned(), value: Some(value) }))
}

/// Whether the giving engine must be asked for its name before anything is sent.
pub(crate) fn asks_engine(mutations: &[Mutation]) -> bool {
    let asks = |field: &(&str, &str)| field.1.contains("<engine>");
    mutations.iter().any(|mutation| {
        matches!(mutation, Mutation::TakeKv(transfer) if connector(*transfer).takes.iter().any(asks))
    })
}

/// Whether an engine that is told so loads from another pod, and would say in words that are known that it cannot.
pub(crate) fn tells_failed_load(mutations: &[Mutation], known: &BootstrapCache) -> bool {
    let tells = |mutation: &Mutation| matches!(mutation, Mutation::TakeKv(transfer) if connector(*transfer).is_loaded_by_vllm);
    !known.alone && mutations.iter().any(tells)
}

fn prefill_only(path: &str, edits: &mut Vec<Edit>) {
    edits.push(Edit::set("stream", &Value::Bool(false)));
    edits.push(Edit::remove("stream_options"));
    // More than the one token that is allowed would be refused.
    edits.push(Edit::remove("min_tokens"));
    // The prompt is the same for all answers that are wanted.
    edits.extend(["n", "best_of"].map(Edit::remove));
    if path.ends_with("/responses") {
        edits.push(Edit::set("max_output_tokens", &Value::from(1)));
        return;
    }
    edits.push(Edit::set("max_tokens", &Value::from(1)));
    if path.ends_with("/chat/completions") {
        edits.push(Edit::set("max_completion_tokens", &Value::from(1)));
    }
}

fn filled<'a>(
    fields: &'static [(&'static str, &'static str)],
    at: &'a Rendezvous,
) -> impl Iterator<Item = Edit> + use<'a> {
    fields.iter().map(|(field, template)| {
        let value = template
            .replace("<host>", &escaped(&at.host))
            .replace("<url_host>", &escaped(&in_url(&at.host)))
            .replace("<engine>", &escaped(&at.engine))
            .replace("<port>", &at.port.to_string())
            .replace("<room>", &at.room.to_string());
        Edit { field: (*field).to_owned(), value: Some(value) }
    })
}

/// As it stands before a port.
fn in_url(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// As it stands between the quotes of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// TensorRT-LLM says it in each choice, vLLM beside them.
fn top_or_first_choice(answer: &[u8], name: &str) -> Result<Option<Bytes>, NotAnObject> {
    let is_something = |value: &&[u8]| value.starts_with(b"{");
    if let Some(value) = field(answer, name)?.filter(is_something) {
        return Ok(Some(Bytes::copy_from_slice(value)));
    }
    let Some(choices) = field(answer, "choices")? else { return Ok(None) };
    let Some(first) = choices.strip_prefix(b"[") else { return Ok(None) };
    let value = field(first, name)?.filter(is_something);
    Ok(value.map(Bytes::copy_from_slice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(mutations: &[Mutation], known: &BootstrapCache) -> Value {
        let client = json!({"prompt": "p", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50, "min_tokens": 9, "n": 3, "best_of": 4});
        let edits = edits(mutations, "/v1/completions", known);
        serde_json::from_slice(&splice(&client.to_string().into(), &edits).unwrap()).unwrap()
    }

    fn meeting() -> BootstrapCache {
        let rendezvous =
            Rendezvous { host: "10.0.0.5".into(), port: 8998, room: 77, engine: "e\"1".into() };
        BootstrapCache { rendezvous, ..BootstrapCache::default() }
    }

    #[test]
    fn nixl_prefills_one_token_and_hands_on_what_comes_back_verbatim() {
        let prefill = [Mutation::PrefillOnly, Mutation::OfferKv(Transfer::Nixl)];
        let expected = json!({"prompt": "p", "stream": false, "max_tokens": 1, "kv_transfer_params": {
            "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
            "remote_block_ids": null, "remote_host": null, "remote_port": null}});
        assert_eq!(body(&prefill, &BootstrapCache::default()), expected);
        let chat = edits(&prefill, "/v1/chat/completions", &BootstrapCache::default());
        assert!(chat.contains(&Edit::set("max_completion_tokens", &json!(1))));
        let responses = edits(&prefill, "/v1/responses", &BootstrapCache::default());
        assert!(responses.contains(&Edit::set("max_output_tokens", &json!(1))));
        assert!(responses.iter().all(|edit| edit.field != "max_tokens"), "it is unknown there");

        let answer =
            br#"{"id":"x","kv_transfer_params": {"remote_block_ids":[[1,2]], "tp_size":2} }"#;
        let brought = brought(&prefill, answer).unwrap();
        let verbatim = r#"{"remote_block_ids":[[1,2]], "tp_size":2}"#;
        assert_eq!(brought.as_ref().unwrap().value.as_deref(), Some(verbatim));
        let decode = body(
            &[Mutation::TakeKv(Transfer::Nixl)],
            &BootstrapCache { brought, ..BootstrapCache::default() },
        );
        assert_eq!(decode["kv_transfer_params"]["tp_size"], 2);
        assert_eq!((&decode["stream"], &decode["max_tokens"]), (&json!(true), &json!(50)));
    }

    #[test]
    fn an_answer_without_what_the_next_step_needs_is_a_failure() {
        let prefill = [Mutation::OfferKv(Transfer::Nixl)];
        for answer in [&b"{}"[..], b"[]", br#"{"kv_transfer_params":null}"#] {
            assert_eq!(brought(&prefill, answer), Err("kv_transfer_params"));
        }
        assert_eq!(brought(&[Mutation::OfferKv(Transfer::SharedStorage)], b"{}"), Ok(None));
    }

    #[test]
    fn sglang_gives_both_pods_the_same_room() {
        let offered = body(&[Mutation::OfferKv(Transfer::Bootstrap)], &meeting());
        let taken = body(&[Mutation::TakeKv(Transfer::Bootstrap)], &meeting());
        assert_eq!(offered, taken);
        assert_eq!(offered["bootstrap_host"], "10.0.0.5");
        assert_eq!(
            (&offered["bootstrap_port"], &offered["bootstrap_room"]),
            (&json!(8998), &json!(77))
        );
        assert_eq!(offered["stream"], true, "the prefill's answer is discarded, whatever it is");
    }

    #[test]
    fn mooncake_names_transfer_and_engine() {
        let takes = [Mutation::TakeKv(Transfer::Mooncake)];
        assert!(asks_engine(&takes) && !asks_engine(&[Mutation::TakeKv(Transfer::Nixl)]));
        let taken = &body(&takes, &meeting())["kv_transfer_params"];
        assert_eq!(taken["remote_bootstrap_addr"], "http://10.0.0.5:8998");
        assert_eq!(taken["remote_engine_id"], "e\"1");
        let mut six = meeting();
        six.rendezvous.host = "::1".to_owned();
        let six = &body(&takes, &six)["kv_transfer_params"];
        assert_eq!(six["remote_bootstrap_addr"], "http://[::1]:8998");
        let offered =
            &body(&[Mutation::OfferKv(Transfer::Mooncake)], &meeting())["kv_transfer_params"];
        assert_eq!(offered["transfer_id"], taken["transfer_id"]);
        assert_eq!(offered["do_remote_decode"], true);
    }

    #[test]
    fn tensorrt_hands_on_the_parameters_of_the_first_choice() {
        let offers = [Mutation::OfferKv(Transfer::TensorRt)];
        let answer = br#"{"choices":[{"text":"a","disaggregated_params":{"request_type":"context_only","ctx_request_id":5}}]}"#;
        let brought = brought(&offers, answer).unwrap();
        let takes = [Mutation::TakeKv(Transfer::TensorRt)];
        let params = &body(&takes, &BootstrapCache { brought, ..BootstrapCache::default() })["disaggregated_params"];
        assert_eq!(*params, json!({"request_type": "generation_only", "ctx_request_id": 5}));
    }

    #[test]
    fn who_serves_alone_takes_nothing_over() {
        let alone = BootstrapCache { alone: true, ..meeting() };
        let taken = body(&[Mutation::TakeKv(Transfer::Mooncake)], &alone);
        assert!(taken.get("kv_transfer_params").is_none());
    }
}
