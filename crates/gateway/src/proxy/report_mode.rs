//! `kv_cache_report_mode`, with which a request makes vLLM report blocks that it reuses as stored.
//!
//! Nothing in those events tells them from new copies, so the index would count copies that are
//! never removed, and believe in blocks that are gone. The field serves those that listen to the
//! engine's events, which behind a router is the router: it is taken out of every body.

use crate::proxy::error_response::ErrorResponse;
use crate::proxy::parse::ParsedBody;
use bytes::Bytes;
use serde_json::{Map, Value};
use wornpath_execution::{Edit, StepCall, field, splice};

const FIELD: &str = "kv_cache_report_mode";
/// vLLM's arguments for extensions, among which it looks for the field.
const ARGUMENTS: &str = "vllm_xargs";

/// Takes the field out of a body.
pub(crate) fn remove_report_mode(
    body: &ParsedBody,
    call: &mut StepCall,
) -> Result<(), ErrorResponse> {
    if let Some(edited) = without_report_mode(&body.request.fields, &call.body)? {
        call.body = edited;
    }
    Ok(())
}

/// The body without the field; none if it has none.
fn without_report_mode(
    fields: &Map<String, Value>,
    body: &Bytes,
) -> Result<Option<Bytes>, ErrorResponse> {
    let malformed = |error: &dyn std::fmt::Display| ErrorResponse::bad(error.to_string());
    let mut edits = Vec::new();
    if fields.contains_key(FIELD) {
        edits.push(Edit::remove(FIELD));
    }
    if fields.get(ARGUMENTS).is_some_and(|arguments| arguments.get(FIELD).is_some()) {
        let written = field(body, ARGUMENTS).map_err(|error| malformed(&error))?;
        let written = Bytes::copy_from_slice(written.unwrap_or(b"{}"));
        let rest = splice(&written, &[Edit::remove(FIELD)]).map_err(|error| malformed(&error))?;
        let rest = String::from_utf8(rest.into()).map_err(|error| malformed(&error))?;
        edits.push(Edit { field: ARGUMENTS.to_owned(), value: Some(rest) });
    }
    if edits.is_empty() {
        return Ok(None);
    }
    splice(body, &edits).map(Some).map_err(|error| malformed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use crate::proxy::parse::read;

    #[test]
    fn the_report_mode_is_taken_out_and_all_other_bytes_stay() {
        for (body, expected) in [
            (r#"{"prompt": "a", "n": 1.50}"#, r#"{"prompt": "a", "n": 1.50}"#),
            (
                r#"{"prompt": "a", "kv_cache_report_mode": "full", "n": 1.50}"#,
                r#"{"prompt": "a","n": 1.50}"#,
            ),
            (
                r#"{"prompt": "a", "vllm_xargs": {"b": 1.50, "kv_cache_report_mode": "full"}}"#,
                r#"{"prompt": "a","vllm_xargs":{"b": 1.50}}"#,
            ),
            (
                r#"{"prompt": "a", "vllm_xargs": {"b": 1}}"#,
                r#"{"prompt": "a", "vllm_xargs": {"b": 1}}"#,
            ),
        ] {
            let bytes = Bytes::from_static(body.as_bytes());
            let fields = read(Api::at("/v1/completions"), &bytes).unwrap().request.fields;
            let edited = without_report_mode(&fields, &bytes).unwrap();
            assert_eq!(edited.unwrap_or(bytes), expected, "{body}");
        }
    }
}
