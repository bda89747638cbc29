//! Tenancy: the quota of a tenant, aliases of models, and the isolation of prefix caches.

use crate::dialect::Api;
use crate::fleet::snapshot::FleetSnapshot;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::gateway::QuotaPermit;
use crate::proxy::parse::{self, ParsedBody};
use crate::proxy::worker::Worker;
use wornpath_config::{CacheSharing, Settings, TenantSettings};
use wornpath_execution::{Edit, StepCall, splice, transfer_fields};
use wornpath_routing::{Name, Rejection};

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

/// Sets the tenant's salt, if tenants are isolated.
///
/// The salt of the client is replaced, and fields by which routers and engines transfer KV cache
/// are refused: both could reach the blocks of another tenant.
pub(crate) fn salt(
    api: Api,
    body: &mut ParsedBody,
    call: &mut StepCall,
    settings: &Settings,
) -> Result<(), ErrorResponse> {
    if settings.sharing != CacheSharing::Isolated {
        return Ok(());
    }
    if !api.dialect().takes_salt() {
        return Err(ErrorResponse::bad(
            "tenants are isolated, and engines ignore `cache_salt` at `/v1/messages`; \
             use `/v1/chat/completions`"
                .to_owned(),
        ));
    }
    if !body.is_object {
        return parse::check_can_be_salted(call);
    }
    let fields = &body.request.fields;
    if let Some(field) = transfer_fields().iter().find(|field| fields.contains_key(**field)) {
        return Err(ErrorResponse::bad(format!(
            "`{field}` is reserved for the router, because it can name another tenant's blocks; \
             remove it"
        )));
    }
    let tenant = body.request.tenant.as_ref().map_or("", Name::as_str);
    let salt = settings.key.cache_salt(tenant);
    set_field(call, "cache_salt", &salt)?;
    body.request.salt = Some(salt);
    Ok(())
}

fn set_field(call: &mut StepCall, field: &str, value: &str) -> Result<(), ErrorResponse> {
    let edit = Edit::set(field, &value.into());
    let edited = splice(&call.body, &[edit]);
    call.body = edited.map_err(|error| ErrorResponse::bad(error.to_string()))?;
    Ok(())
}
