//! What offline work was planned.

use super::routes::{Answer, Call, Refusal, Reply};

pub(super) fn forest(call: &Call<'_>) -> Answer {
    let gateway = call.admin.running.gateway();
    let batches = gateway.batches().ok_or_else(|| {
        Refusal::new(404, "batches are not served; start with `wornpath serve --batches FOLDER`")
    })?;
    let forest = batches.forest(call.name).ok_or_else(|| {
        let message = format!(
            "no plan of batch `{}` is remembered; only those that run and the last that ended have one",
            call.name
        );
        Refusal::new(404, message)
    })?;
    Ok(Reply::Json((*forest).clone()))
}
