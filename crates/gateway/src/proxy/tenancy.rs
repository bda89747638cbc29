//! What a tenant may: its quota, its names for models, and its own part of the prefix cache.

use crate::dialect::Api;
use crate::fleet::snapshot::FleetSnapshot;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::parse::{self, ParsedBody};
use crate::proxy::quota::QuotaPermit;
use crate::proxy::worker::Worker;
use wornpath_config::{CacheSharing, Settings, TenantSettings};
use wornpath_execution::{Edit, StepCall, splice, transfer_fields};
use wornpath_routing::{Name, Rejection};

/// A tenant with a quota must have a turn left.
pub(crate) fn turn(
    worker: &Worker,
    tenant: Option<&TenantSettings>,
) -> Result<Option<QuotaPermit>, ErrorResponse> {
    let Some((tenant, quota)) = tenant.and_then(|tenant| Some((tenant, tenant.quota?))) else {
        return Ok(None);
    };
    let turn = worker.gateway.quotas.turn(&tenant.name, quota);
    turn.map(Some).ok_or_else(|| {
        let why = format!(
            "tenant quota exceeded: {quota} requests in flight (limit {quota}); retry later"
        );
        ErrorResponse::from(Rejection::busy(&why))
    })
}

/// Calls the model what its engines call it, if the client used another name of the configuration's.
pub(crate) fn renamed(
    read: &ParsedBody,
    call: &mut StepCall,
    snapshot: &FleetSnapshot,
) -> Result<(), ErrorResponse> {
    if let Some(name) = snapshot.alias_of(&read.model) {
        if !read.is_object {
            return Err(ErrorResponse::bad(format!(
                "`{}` is an alias of `{name}`, which cannot be replaced in a form; send `{name}`",
                read.model
            )));
        }
        let edit = Edit::set("model", &name.as_str().into());
        call.body =
            splice(&call.body, &[edit]).map_err(|error| ErrorResponse::bad(error.to_string()))?;
    }
    Ok(())
}

/// Puts the tenant's salt into the request, if tenants share nothing.
pub(crate) fn salted(
    api: Api,
    read: &mut ParsedBody,
    call: &mut StepCall,
    settings: &Settings,
) -> Result<(), ErrorResponse> {
    if settings.sharing == CacheSharing::Isolated && !api.dialect().takes_salt() {
        return Err(ErrorResponse::bad(
            "tenants are isolated, and engines ignore `cache_salt` at `/v1/messages`; use `/v1/chat/completions`"
                .to_owned(),
        ));
    }
    if settings.sharing == CacheSharing::Isolated && !read.is_object {
        parse::saltable(call)?;
    }
    if settings.sharing == CacheSharing::Isolated && read.is_object {
        let fields = &read.request.fields;
        if let Some(field) = transfer_fields().iter().find(|it| fields.contains_key(**it)) {
            return Err(ErrorResponse::bad(format!(
                "`{field}` is reserved for the router, because it can name another tenant's blocks; remove it"
            )));
        }
        let name = read.request.tenant.as_ref().map_or("", Name::as_str);
        let salt = settings.key.cache_salt(name);
        // Whatever the client said: it must not reach into another tenant's cache.
        let edit = Edit::set("cache_salt", &salt.as_str().into());
        call.body =
            splice(&call.body, &[edit]).map_err(|error| ErrorResponse::bad(error.to_string()))?;
        read.request.salt = Some(salt);
    }
    Ok(())
}
