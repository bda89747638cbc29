//! What offline work was planned.

use crate::routes::{AdminCall, AdminError, AdminReply, AdminResult};

pub(crate) fn forest(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let batches = gateway.local_api().ok_or_else(|| {
        AdminError::new(404, "batches are not served; start with `wornpath serve --batches FOLDER`")
    })?;
    let forest = batches.forest(call.name).ok_or_else(|| {
        let message = format!(
            "no plan of batch `{}` is remembered; only those that run and the last that ended have one",
            call.name
        );
        AdminError::new(404, message)
    })?;
    Ok(AdminReply::Json(forest))
}
