//! Isolation of tenants: no request reaches what an engine keeps of another tenant.
//!
//! Every body gets the tenant's `cache_salt`, by which engines keep prefix caches apart. Not all that
//! engines keep is salted, though: media caches are keyed by a `uuid` that the client may choose,
//! and some fields name blocks or sessions. So paths and body fields are allowed by tables
//! ([`paths`], [`fields`]); ids that a tenant chooses are replaced by ids that only it can produce;
//! everything else is refused with the reason.
//!
//! Engines differ in how they read a body that is not quite JSON, or has a name twice. Such a body
//! is refused, so that an engine reads exactly what was checked here.
//!
//! Limit: media without a `uuid` are cached by their content, for all tenants alike.

mod fields;
mod paths;
mod walk;

use crate::proxy::error_response::ErrorResponse;
use crate::proxy::headers;
use crate::proxy::multipart::Multipart;
use crate::proxy::parse::ParsedBody;
use bytes::Bytes;
use fields::{ARGUMENTS, FieldTable, MEDIA_ID, Treatment, WITHOUT_MEDIA};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use paths::PathRule;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::ops::Range;
use wornpath_blocks::HashKey;
use wornpath_config::{CacheSharing, IsolationRules, Settings};
use wornpath_execution::{Edit, StepCall, splice, transfer_fields};
use wornpath_routing::Name;

/// Sets the tenant's salt, replaces the ids that the tenant chose, and refuses what could reach
/// another tenant; if tenants are isolated.
pub(crate) fn isolate(
    body: &mut ParsedBody,
    call: &mut StepCall,
    settings: &Settings,
) -> Result<(), ErrorResponse> {
    if settings.sharing != CacheSharing::Isolated {
        return Ok(());
    }
    let path = call.path.path();
    let allowed = AllowedFields::at(path, &settings.isolation)?;
    let tenant = body.request.tenant.as_ref().map_or("", Name::as_str);
    let scope = TenantScope { key: &settings.key, tenant, allowed };
    headers::strip_engine_controls(&mut call.headers);
    headers::replace_session(&mut call.headers, |chosen| scope.id("session_id", chosen));
    body.request.salt = Some(scope.salt());
    if call.body.is_empty() || scope.allowed.is_path_vouched && is_form(&call.headers) {
        return Ok(());
    }
    check_content_type(path, &call.headers)?;
    if !body.is_object {
        check_is_object(&call.body)?;
    }
    call.body = rewrite(&call.body, &scope)?;
    Ok(())
}

/// The body that an engine gets from an isolated tenant, for the fuzz targets.
pub(crate) fn isolated_body(
    path: &str,
    body: &Bytes,
    tenant: &str,
) -> Result<Bytes, ErrorResponse> {
    let rules = IsolationRules::default();
    let allowed = AllowedFields::at(path, &rules)?;
    check_is_object(body)?;
    rewrite(body, &TenantScope { key: &HashKey::DEFAULT, tenant, allowed })
}

/// A tenant, what is derived for it, and what it may send.
struct TenantScope<'a> {
    key: &'a HashKey,
    tenant: &'a str,
    allowed: AllowedFields<'a>,
}

impl TenantScope<'_> {
    fn salt(&self) -> String {
        self.key.cache_salt(self.tenant)
    }

    /// What engines get in place of an id that the tenant chose.
    fn id(&self, kind: &str, chosen: &str) -> String {
        self.key.tenant_scoped(self.tenant, kind, chosen)
    }
}

/// The fields that a tenant may send to one path.
struct AllowedFields<'a> {
    tables: &'static [&'static FieldTable],
    further: &'a [String],
    /// Whether the configuration vouches for the path, with whatever fields it has.
    is_path_vouched: bool,
}

impl<'a> AllowedFields<'a> {
    /// Refuses a path where engines are not known to keep tenants apart.
    fn at(path: &str, rules: &'a IsolationRules) -> Result<Self, ErrorResponse> {
        let further = &rules.allow_fields;
        let (why, cure) = match paths::rule(path) {
            Some(PathRule::Json(tables)) => {
                return Ok(Self { tables, further, is_path_vouched: false });
            }
            Some(PathRule::Refused { why, cure }) => (why, cure),
            None => {
                ("it is not known whether engines keep tenants apart there", "use another path")
            }
        };
        if rules.allow_paths.iter().any(|allowed| allowed == path) {
            return Ok(Self { tables: &fields::ALL, further, is_path_vouched: true });
        }
        Err(ErrorResponse::bad(format!(
            "tenants are isolated, so `{path}` is refused: {why}; {cure}, or add the path to \
             `isolation.allow_paths`"
        )))
    }

    fn has_further(&self, field: &str) -> bool {
        self.is_path_vouched || self.further.iter().any(|allowed| allowed == field)
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let first = kinds.next().and_then(|kind| kind.to_str().ok());
    first.is_some_and(|kind| Multipart::of(kind).is_some()) && kinds.next().is_none()
}

/// Refuses a body that an engine might not read as JSON. Without a content type engines do.
fn check_content_type(path: &str, headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let Some(kind) = kinds.next() else { return Ok(()) };
    let name = kind.to_str().unwrap_or("?").split(';').next().unwrap_or_default();
    let name = name.trim().to_ascii_lowercase();
    let is_suffixed = name.starts_with("application/") && name.ends_with("+json");
    let is_json = name.is_empty() || name == "application/json" || is_suffixed;
    if is_json && kinds.next().is_none() {
        return Ok(());
    }
    let found = if is_json { "several content types" } else { &name };
    Err(ErrorResponse::bad(format!(
        "tenants are isolated, so `{path}` takes JSON only, not {found}; send `content-type: \
         application/json`"
    )))
}

/// Refuses a body that is not a JSON object as in RFC 8259, in UTF-8. Engines are more lenient:
/// they accept other encodings, `NaN` and any depth.
fn check_is_object(body: &[u8]) -> Result<(), ErrorResponse> {
    const CURE: &str =
        "tenants are isolated, so only a JSON object as in RFC 8259 is accepted, in UTF-8";
    let is_marked = [&b"\xef\xbb\xbf"[..], b"\xfe\xff", b"\xff\xfe"]
        .into_iter()
        .any(|mark| body.starts_with(mark));
    if is_marked {
        return Err(ErrorResponse::bad(format!("the body has a byte order mark; {CURE}")));
    }
    if body.contains(&0) {
        return Err(ErrorResponse::bad(format!("the body has NUL bytes; {CURE}")));
    }
    // A tree, because it refuses escapes that are no text and too much depth, as the parse of a
    // known API does.
    let parsed = serde_json::from_slice::<Map<String, Value>>(body);
    parsed
        .map(drop)
        .map_err(|error| ErrorResponse::bad(format!("the body is no JSON object: {error}; {CURE}")))
}

/// The body with the tenant's salt and ids.
fn rewrite(body: &Bytes, scope: &TenantScope<'_>) -> Result<Bytes, ErrorResponse> {
    let mut changes = Changes::default();
    let mut names = HashSet::new();
    for member in walk::members(body).map_err(malformed)? {
        let value = &body[member.value.clone()];
        let name = member.name.as_ref();
        if names.contains(name) {
            return Err(repeated(name));
        }
        match allowed(name, name, fields::treatment(scope.allowed.tables, name), value, scope)? {
            Treatment::Media => changes.scope_media(body, member.value, scope)?,
            Treatment::Arguments => {
                let arguments = Bytes::copy_from_slice(value);
                changes.edits.extend(arguments_edit(&arguments, scope)?);
            }
            treatment => changes.edits.extend(edit(name, treatment, value, scope)?),
        }
        names.insert(member.name);
    }
    changes.edits.push(Edit::set("cache_salt", &scope.salt().into()));
    let body = changes.with_scoped_media(body);
    splice(&body, &changes.edits).map_err(|error| ErrorResponse::bad(error.to_string()))
}

/// The treatment of a field, if the tenant may send it. `full` is its name with that of the object
/// that it is in.
fn allowed(
    name: &str,
    full: &str,
    treatment: Option<Treatment>,
    value: &[u8],
    scope: &TenantScope<'_>,
) -> Result<Treatment, ErrorResponse> {
    if value == b"null" {
        // The same as an absent field.
        return Ok(Treatment::Plain);
    }
    if transfer_fields().contains(&name) {
        return Err(ErrorResponse::bad(format!(
            "`{full}` is reserved for the router, because it can name another tenant's blocks; \
             remove it"
        )));
    }
    let reason = match treatment {
        Some(Treatment::Refused(reason)) => reason,
        Some(treatment) => return Ok(treatment),
        None => "it is not known what engines do with it",
    };
    if scope.allowed.has_further(full) {
        return Ok(Treatment::Plain);
    }
    Err(ErrorResponse::bad(format!(
        "tenants are isolated, so the field `{full}` is refused: {reason}; remove it, or add it to \
         `isolation.allow_fields`"
    )))
}

/// The change of a field that is neither media nor an object of arguments.
fn edit(
    name: &str,
    treatment: Treatment,
    value: &[u8],
    scope: &TenantScope<'_>,
) -> Result<Option<Edit>, ErrorResponse> {
    match treatment {
        Treatment::Removed => Ok(Some(Edit::remove(name))),
        Treatment::Scoped => Ok(Some(Edit::set(name, &scoped(name, value, scope)?.into()))),
        _ => Ok(None),
    }
}

/// What replaces an id, whose value must be a string.
fn scoped(kind: &str, value: &[u8], scope: &TenantScope<'_>) -> Result<String, ErrorResponse> {
    let chosen: String = serde_json::from_slice(value).map_err(|_| {
        ErrorResponse::bad(format!(
            "tenants are isolated, so `{kind}` must be a string; it is an id that the router \
             replaces"
        ))
    })?;
    Ok(scope.id(kind, &chosen))
}

/// The change of the arguments for extensions, if there is any.
fn arguments_edit(
    arguments: &Bytes,
    scope: &TenantScope<'_>,
) -> Result<Option<Edit>, ErrorResponse> {
    let members = walk::members(arguments).map_err(|_| {
        ErrorResponse::bad(format!("`{ARGUMENTS}` is no object; send an object or remove it"))
    })?;
    let is_every_one_allowed = scope.allowed.has_further(ARGUMENTS);
    let mut edits = Vec::new();
    let mut names = HashSet::new();
    for member in members {
        let value = &arguments[member.value.clone()];
        let name = member.name.as_ref();
        let full = format!("{ARGUMENTS}.{name}");
        if names.contains(name) {
            return Err(repeated(&full));
        }
        let known = fields::argument_treatment(name);
        let treatment = if is_every_one_allowed { known.or(Some(Treatment::Plain)) } else { known };
        let treatment = allowed(name, &full, treatment, value, scope)?;
        edits.extend(edit(name, treatment, value, scope)?);
        names.insert(member.name);
    }
    if edits.is_empty() {
        return Ok(None);
    }
    let edited = splice(arguments, &edits);
    let edited = edited.map_err(|error| ErrorResponse::bad(error.to_string()))?;
    let value = String::from_utf8(edited.to_vec()).map_err(malformed)?;
    Ok(Some(Edit { field: ARGUMENTS.to_owned(), value: Some(value) }))
}

fn repeated(name: &str) -> ErrorResponse {
    ErrorResponse::bad(format!(
        "the field `{name}` occurs twice, and engines differ in which one they read; send it once"
    ))
}

fn malformed<E>(_: E) -> ErrorResponse {
    ErrorResponse::bad("the body is no JSON object; send one".to_owned())
}

/// What to change in a body.
#[derive(Default)]
struct Changes {
    /// Ids of media, at their positions in ascending order.
    media: Vec<(Range<usize>, String)>,
    edits: Vec<Edit>,
}

impl Changes {
    fn scope_media(
        &mut self,
        body: &[u8],
        within: Range<usize>,
        scope: &TenantScope<'_>,
    ) -> Result<(), ErrorResponse> {
        let found = walk::values_of(body, within, MEDIA_ID, &WITHOUT_MEDIA).map_err(malformed)?;
        for at in found {
            let value = &body[at.clone()];
            if value != b"null" {
                let id = scoped(MEDIA_ID, value, scope)?;
                self.media.push((at, id));
            }
        }
        Ok(())
    }

    fn with_scoped_media(&self, body: &Bytes) -> Bytes {
        if self.media.is_empty() {
            return body.clone();
        }
        let mut out = Vec::with_capacity(body.len() + 34 * self.media.len());
        let mut copied = 0;
        for (at, id) in &self.media {
            out.extend_from_slice(&body[copied..at.start]);
            out.extend_from_slice(format!("\"{id}\"").as_bytes());
            copied = at.end;
        }
        out.extend_from_slice(&body[copied..]);
        out.into()
    }
}
