//! The plans of batches.

use crate::call::{AdminCall, AdminError, AdminReply, AdminResult};

pub(crate) fn forest(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let batches = gateway.local_api().ok_or_else(|| {
        AdminError::new(404, "batches are disabled; start with `wornpath serve --batches FOLDER`")
    })?;
    let forest = batches.forest(call.name).ok_or_else(|| {
        let message = format!(
            "batch `{}` has no plan; only running and recently finished batches have one",
            call.name
        );
        AdminError::new(404, message)
    })?;
    Ok(AdminReply::Json(forest))
}
