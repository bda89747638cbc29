//! The `priority` by which engines schedule: the tenant's matter, not the client's.
//!
//! vLLM takes it from the header `x-vllm-priority`, or else from the body. A client that chose it
//! freely would overtake every other tenant, and batches could not stay behind. So with tenants the
//! value of a client is clamped to the range of its tenant, and removed if the tenant has none; the
//! result is in the body only. Without tenants there is one client to trust, and both pass.

use crate::proxy::error_response::ErrorResponse;
use crate::proxy::headers;
use crate::proxy::parse::ParsedBody;
use serde_json::Value;
use wornpath_config::{PriorityRange, Settings};
use wornpath_execution::{Edit, StepCall, splice};
use wornpath_routing::Name;

const FIELD: &str = "priority";

/// Sets the engine priority of a request from its tenant's range.
pub(crate) fn set_engine_priority(
    body: &ParsedBody,
    call: &mut StepCall,
    settings: &Settings,
) -> Result<(), ErrorResponse> {
    if settings.tenants.is_empty() {
        headers::drop_malformed_priority(&mut call.headers);
        return Ok(());
    }
    let in_header = headers::take_priority(&mut call.headers);
    let fields = &body.request.fields;
    let in_body = asked(fields.get(FIELD))?;
    let edit = match range(body.request.tenant.as_ref(), settings) {
        None => fields.contains_key(FIELD).then(|| Edit::remove(FIELD)),
        Some(range) => {
            let asked = in_header.or(in_body);
            let priority = range.clamp(asked);
            // 0 is the default of engines.
            let is_needed = body.is_object && (asked.is_some() || priority != 0);
            is_needed.then(|| Edit::set(FIELD, &priority.into()))
        }
    };
    if let Some(edit) = edit {
        let edited = splice(&call.body, &[edit]);
        call.body = edited.map_err(|error| ErrorResponse::bad(error.to_string()))?;
    }
    Ok(())
}

fn range(tenant: Option<&Name>, settings: &Settings) -> Option<PriorityRange> {
    let known = settings.tenants.iter().find(|known| Some(&known.name) == tenant)?;
    known.engine_priority
}

/// The priority in a body. Engines also accept numbers in other forms, which must not get past the
/// range.
fn asked(field: Option<&Value>) -> Result<Option<i64>, ErrorResponse> {
    match field {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| {
            ErrorResponse::bad(format!("`{FIELD}` is {value}; it must be a whole number"))
        }),
    }
}
