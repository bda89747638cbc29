//! The bodies of the steps of a plan: what a step sets in the client's body, what its response
//! brings for later steps, and what KV transfer protocols put into both.
//!
//! Protocols and parts are data of the profile ([`Transfer`], [`Mutation`]). Here their templates
//! are filled in. Parts of a response are passed on byte for byte: an engine may write numbers that
//! a parser would round.

mod template;
#[cfg(test)]
mod tests;

use crate::splice::{Edit, at_pointer};
use serde_json::Value;
use std::sync::LazyLock;
use template::{TemplateValues, fill};
use wornpath_routing::{Mutation, Transfer};

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

/// The top-level body fields of all built-in protocols, each once, and those of engines' own
/// transfers.
///
/// They name blocks of an engine's cache and where to load them from, so they pass between the
/// router and its engines only: a client that sets one could read another tenant's blocks.
#[must_use]
pub fn transfer_fields() -> &'static [&'static str] {
    static FIELDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let of = |transfer: &'static Transfer| transfer.prefill().iter().chain(transfer.decode());
        let mut fields: Vec<_> =
            Transfer::built_in().iter().flat_map(of).map(|(name, _)| name.as_str()).collect();
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
    pub(crate) from_prefill: Vec<BroughtPart>,
    /// What earlier steps have brought.
    pub(crate) parts: Vec<BroughtPart>,
    /// Whether the prefill step was skipped, so that there is nothing to load.
    pub(crate) is_skipped: bool,
}

/// A part of a step's response that later steps need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BroughtPart {
    name: String,
    json: String,
}

/// A part that the response of a step should have brought.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("response has nothing at `{pointer}` (`{part}`), which a later step needs")]
pub struct MissingPart {
    /// Its name.
    pub part: String,
    /// Where it should be, as a JSON pointer.
    pub pointer: String,
}

/// The parts that the response of a step brings by its `brings`.
///
/// # Errors
/// What the response lacks.
pub(crate) fn brought(
    mutations: &[Mutation],
    response: &[u8],
) -> Result<Vec<BroughtPart>, MissingPart> {
    let parts = mutations.iter().filter_map(|mutation| match mutation {
        Mutation::Bring { part, pointer } => Some((part, pointer)),
        _ => None,
    });
    parts.map(|(name, pointer)| part(response, name, std::slice::from_ref(pointer))).collect()
}

/// The parts for the decode request that the response of a prefill step brings by its protocol.
///
/// # Errors
/// What the response lacks.
pub(crate) fn from_prefill(
    mutations: &[Mutation],
    response: &[u8],
) -> Result<Vec<BroughtPart>, MissingPart> {
    let offered = mutations.iter().find_map(|mutation| match mutation {
        Mutation::OfferKv(transfer) => Some(transfer),
        _ => None,
    });
    let parts = offered.map_or(&[][..], Transfer::brings);
    parts.iter().map(|wanted| part(response, &wanted.name, &wanted.pointers)).collect()
}

/// The part at the first pointer at which there is something.
fn part(response: &[u8], name: &str, pointers: &[String]) -> Result<BroughtPart, MissingPart> {
    let found = pointers.iter().find_map(|pointer| {
        let json = at_pointer(response, pointer).filter(|json| *json != b"null")?;
        std::str::from_utf8(json).ok()
    });
    match found {
        Some(json) => Ok(BroughtPart { name: name.to_owned(), json: json.to_owned() }),
        None => Err(MissingPart {
            part: name.to_owned(),
            pointer: pointers.first().cloned().unwrap_or_default(),
        }),
    }
}

/// The edits that a step makes to the client's body.
pub(crate) fn edits(mutations: &[Mutation], path: &str, state: &TransferState) -> Vec<Edit> {
    let mut edits = Vec::new();
    for mutation in mutations {
        match mutation {
            Mutation::PrefillOnly => prefill_only(path, &mut edits),
            Mutation::OfferKv(transfer) => {
                let values = TemplateValues { rendezvous: Some(&state.rendezvous), parts: &[] };
                edits.extend(filled(transfer.prefill(), values));
            }
            Mutation::TakeKv(_) if state.is_skipped => {}
            Mutation::TakeKv(transfer) => {
                let rendezvous = Some(&state.rendezvous);
                let values = TemplateValues { rendezvous, parts: &state.from_prefill };
                edits.extend(filled(transfer.decode(), values));
            }
            Mutation::Set { field, value } => edits.push(Edit::set(field, value)),
            Mutation::Bring { .. } => {
                edits.push(Edit::set("stream", &Value::Bool(false)));
                edits.push(Edit::remove("stream_options"));
            }
            Mutation::Fill { field, template } => {
                let values = TemplateValues { rendezvous: None, parts: &state.parts };
                edits.extend(edit(field, template, values));
            }
        }
    }
    edits
}

/// The edits of fields whose values are all known.
fn filled(fields: &[(String, Value)], values: TemplateValues<'_>) -> impl Iterator<Item = Edit> {
    fields.iter().filter_map(move |(field, template)| edit(field, template, values))
}

/// The edit of a field; none if a part of it was not brought, because its step was skipped.
fn edit(field: &str, template: &Value, values: TemplateValues<'_>) -> Option<Edit> {
    let value = fill(template, values)?;
    Some(Edit { field: field.to_owned(), value: Some(value) })
}

/// Whether a step computes KV cache for another step.
pub(crate) fn offers_kv(mutations: &[Mutation]) -> bool {
    mutations.iter().any(|mutation| matches!(mutation, Mutation::OfferKv(_)))
}

/// Whether the decode request needs the prefill engine's id, which must be queried first.
pub(crate) fn needs_engine_id(mutations: &[Mutation]) -> bool {
    let needs = |mutation: &Mutation| matches!(mutation, Mutation::TakeKv(transfer) if transfer.needs_engine_id());
    mutations.iter().any(needs)
}

/// Whether the engine loads KV cache from another pod, and reports a failed load in a known form.
pub(crate) fn reports_failed_load(mutations: &[Mutation], state: &TransferState) -> bool {
    let reports = |mutation: &Mutation| matches!(mutation, Mutation::TakeKv(transfer) if transfer.is_loaded_by_vllm());
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
