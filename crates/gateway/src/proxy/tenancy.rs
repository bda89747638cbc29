//! Tenancy: the quota of a tenant, and aliases of models.

use crate::fleet::snapshot::FleetSnapshot;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::gateway::QuotaPermit;
use crate::proxy::parse::ParsedBody;
use crate::proxy::worker::Worker;
use wornpath_config::TenantSettings;
use wornpath_execution::{Edit, StepCall, splice};
use wornpath_routing::Rejection;

/// A permit of the tenant's quota; none if it has no quota.
pub(crate) fn acquire_quota(
    worker: &Worker,
    tenant: Option<&TenantSettings>,
) -> Result<Option<QuotaPermit>, ErrorResponse> {
    let Some(tenant) = tenant else { return Ok(None) };
    let Some(quota) = tenant.quota else { return Ok(None) };
    let permit = worker.gateway.quotas.acquire(&tenant.name, quota);
    permit.map(Some).ok_or_else(|| {
        let reason = format!(
            "tenant quota exceeded: {quota} requests in flight (limit {quota}); retry later"
        );
        ErrorResponse::from(Rejection::busy(&reason))
    })
}

/// Replaces an alias of the configuration by the name that engines know.
pub(crate) fn replace_alias(
    body: &ParsedBody,
    call: &mut StepCall,
    snapshot: &FleetSnapshot,
) -> Result<(), ErrorResponse> {
    let Some(name) = snapshot.alias_of(&body.model) else { return Ok(()) };
    if !body.is_object {
        return Err(ErrorResponse::bad(format!(
            "`{}` is an alias of `{name}`, which cannot be replaced in a form; send `{name}`",
            body.model
        )));
    }
    set_field(call, "model", name.as_str())
}

fn set_field(call: &mut StepCall, field: &str, value: &str) -> Result<(), ErrorResponse> {
    let edit = Edit::set(field, &value.into());
    let edited = splice(&call.body, &[edit]);
    call.body = edited.map_err(|error| ErrorResponse::bad(error.to_string()))?;
    Ok(())
}
