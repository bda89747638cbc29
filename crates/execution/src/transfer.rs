//! KV transfer protocols: how a prefill engine and a decode engine agree on the KV cache of one
//! prompt.
//!
//! A protocol is data: the body fields of the prefill request, the field of its response that the
//! decode request repeats, and the body fields of the decode request. Values are JSON templates
//! with names in angle brackets for what differs between requests. A new protocol is one file here
//! and one line in `protocols!`; everything else that must know its fields reads that table.
//!
//! Limit: the response of a prefill step brings at most one field.

mod bootstrap;
mod mooncake;
mod nixl;
mod shared_storage;
mod tensorrt;
#[cfg(test)]
mod tests;

use crate::json_scan::NotAnObject;
use crate::splice::{Edit, field, splice};
use bytes::Bytes;
use serde_json::Value;
use std::sync::LazyLock;
use wornpath_routing::{Mutation, Transfer};

/// The body fields that one protocol reads and writes.
struct Protocol {
    prefill_request: &'static [TemplateField],
    /// The field of the prefill response that goes into the decode request.
    prefill_response: Option<&'static str>,
    /// Keys of that field's object that change on the way.
    response_overrides: &'static [TemplateField],
    /// Fields of the decode request, besides the one from the prefill response.
    decode_request: &'static [TemplateField],
    /// Whether the decode engine loads from the prefill pod and is vLLM, whose error for a failed
    /// load is known.
    is_loaded_by_vllm: bool,
}

/// A field, and its value as JSON with `<host>`, `<url_host>`, `<port>`, `<room>` and `<engine>` to
/// fill in.
struct TemplateField {
    name: &'static str,
    template: &'static str,
}

macro_rules! protocols {
    ($($transfer:ident => $protocol:expr,)*) => {
        static PROTOCOLS: &[(Transfer, &Protocol)] = &[$((Transfer::$transfer, $protocol)),*];

        /// A protocol that profiles accept and that has no line here does not compile.
        const fn protocol(transfer: Transfer) -> &'static Protocol {
            match transfer {
                $(Transfer::$transfer => $protocol,)*
            }
        }
    };
}

protocols! {
    Nixl => &nixl::PROTOCOL,
    Bootstrap => &bootstrap::PROTOCOL,
    SharedStorage => &shared_storage::PROTOCOL,
    Mooncake => &mooncake::PROTOCOL,
    TensorRt => &tensorrt::PROTOCOL,
}

impl Protocol {
    /// Top-level body fields, some of them more than once.
    fn fields(&self) -> impl Iterator<Item = &'static str> + use<> {
        let requests = self.prefill_request.iter().chain(self.decode_request);
        requests.map(|field| field.name).chain(self.prefill_response)
    }
}

/// Fields of engines' own transfers, which no protocol here uses: of encoder caches, and of media by
/// their hash.
const OTHER_FIELDS: [&str; 6] = [
    "ec_transfer_params",
    "bootstrap_pair_key",
    "encoder_urls",
    "multi_modal_uuids",
    "mm_hashes",
    "mm_content_hashes",
];

/// The top-level body fields of all protocols, each once, and those of engines' own transfers.
///
/// They name blocks of an engine's cache and where to load them from, so they pass between the
/// router and its engines only: a client that sets one could read another tenant's blocks.
#[must_use]
pub fn transfer_fields() -> &'static [&'static str] {
    static FIELDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let mut fields: Vec<_> = PROTOCOLS.iter().flat_map(|(_, it)| it.fields()).collect();
        fields.extend(OTHER_FIELDS);
        fields.sort_unstable();
        fields.dedup();
        fields
    });
    &FIELDS
}

/// Where the two engines of one request meet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rendezvous {
    /// The prefill engine's host.
    pub(crate) host: String,
    /// The prefill engine's bootstrap port.
    pub(crate) port: u16,
    /// A number that no other request has.
    pub(crate) room: u64,
    /// The prefill engine's id among its peers, where the protocol has one.
    pub(crate) engine: String,
}

/// The state of a request's KV transfer when the body of a step is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct TransferState {
    pub(crate) rendezvous: Rendezvous,
    /// From the response of an earlier prefill step.
    pub(crate) from_prefill: Option<Edit>,
    /// Whether the prefill step was skipped, so that there is nothing to load.
    pub(crate) is_skipped: bool,
}

/// The edits that a step makes to the client's body.
pub(crate) fn edits(mutations: &[Mutation], path: &str, state: &TransferState) -> Vec<Edit> {
    let mut edits = Vec::new();
    for mutation in mutations {
        match mutation {
            Mutation::PrefillOnly => prefill_only(path, &mut edits),
            Mutation::OfferKv(transfer) => {
                edits.extend(filled(protocol(*transfer).prefill_request, &state.rendezvous));
            }
            Mutation::TakeKv(_) if state.is_skipped => {}
            Mutation::TakeKv(transfer) => {
                edits.extend(filled(protocol(*transfer).decode_request, &state.rendezvous));
                edits.extend(state.from_prefill.clone());
            }
            Mutation::Set { field, value } => edits.push(Edit::set(field, value)),
        }
    }
    edits
}

/// The edit for the decode request that the response of a prefill step brings, if the protocol has
/// one.
///
/// # Errors
/// The name of the field that the response lacks.
pub(crate) fn from_prefill(
    mutations: &[Mutation],
    response: &[u8],
) -> Result<Option<Edit>, &'static str> {
    let offered = mutations.iter().find_map(|mutation| match mutation {
        Mutation::OfferKv(transfer) => Some(protocol(*transfer)),
        _ => None,
    });
    let Some(protocol) = offered else { return Ok(None) };
    let Some(name) = protocol.prefill_response else { return Ok(None) };
    let value = top_or_first_choice(response, name).ok().flatten().ok_or(name)?;
    let overrides: Vec<_> = filled(protocol.response_overrides, &Rendezvous::default()).collect();
    let value = splice(&value, &overrides).map_err(|_| name)?;
    let value = String::from_utf8(value.to_vec()).map_err(|_| name)?;
    Ok(Some(Edit { field: name.to_owned(), value: Some(value) }))
}

/// Whether a step computes KV cache for another step.
pub(crate) fn offers_kv(mutations: &[Mutation]) -> bool {
    mutations.iter().any(|mutation| matches!(mutation, Mutation::OfferKv(_)))
}

/// Whether the decode request needs the prefill engine's id, which must be queried first.
pub(crate) fn needs_engine_id(mutations: &[Mutation]) -> bool {
    let needs = |field: &TemplateField| field.template.contains("<engine>");
    mutations.iter().any(|mutation| {
        matches!(mutation, Mutation::TakeKv(transfer)
            if protocol(*transfer).decode_request.iter().any(needs))
    })
}

/// Whether the engine loads KV cache from another pod, and reports a failed load in a known form.
pub(crate) fn reports_failed_load(mutations: &[Mutation], state: &TransferState) -> bool {
    let reports = |mutation: &Mutation| matches!(mutation, Mutation::TakeKv(transfer) if protocol(*transfer).is_loaded_by_vllm);
    !state.is_skipped && mutations.iter().any(reports)
}

fn prefill_only(path: &str, edits: &mut Vec<Edit>) {
    edits.push(Edit::set("stream", &Value::Bool(false)));
    edits.push(Edit::remove("stream_options"));
    // An engine refuses a minimum above the one token that is left.
    edits.push(Edit::remove("min_tokens"));
    // All choices share one prompt.
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
    fields: &'static [TemplateField],
    rendezvous: &'a Rendezvous,
) -> impl Iterator<Item = Edit> + use<'a> {
    fields.iter().map(|field| {
        let value = field
            .template
            .replace("<host>", &json_escaped(&rendezvous.host))
            .replace("<url_host>", &json_escaped(&url_host(&rendezvous.host)))
            .replace("<engine>", &json_escaped(&rendezvous.engine))
            .replace("<port>", &rendezvous.port.to_string())
            .replace("<room>", &rendezvous.room.to_string());
        Edit { field: field.name.to_owned(), value: Some(value) }
    })
}

/// IPv6 addresses stand in brackets before a port.
fn url_host(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The text between the quotes of a JSON string.
fn json_escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// TensorRT-LLM has the field in each choice, vLLM beside the choices.
fn top_or_first_choice(response: &[u8], name: &str) -> Result<Option<Bytes>, NotAnObject> {
    let is_object = |value: &&[u8]| value.starts_with(b"{");
    if let Some(value) = field(response, name)?.filter(is_object) {
        return Ok(Some(Bytes::copy_from_slice(value)));
    }
    let Some(choices) = field(response, "choices")? else { return Ok(None) };
    let Some(first) = choices.strip_prefix(b"[") else { return Ok(None) };
    let value = field(first, name)?.filter(is_object);
    Ok(value.map(Bytes::copy_from_slice))
}
