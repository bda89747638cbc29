//! Routing decisions: those of the last requests, and explanations on demand.

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use wornpath_routing::{DecisionEnv, DecisionState, Name, Outcome, Recorder, Rng};

use crate::call::{AdminCall, AdminError, AdminReply, AdminResult};
use crate::finished::RecentRequest;
use crate::recent;
use crate::sampling;
use crate::search::{DecisionSearch, DecisionView};
use wornpath_config::CacheSharing;
use wornpath_gateway::Api;
use wornpath_gateway::observe::timestamp::Timestamp;
use wornpath_gateway::proxy::gateway::Gateway;
use wornpath_gateway::proxy::parse::{ParsedBody, parse_exact, read};

pub(crate) fn list(call: &AdminCall<'_>) -> AdminResult {
    let search = DecisionSearch::read(call.query)?;
    let all = call.admin.recent.all();
    let found = all.iter().filter(|request| search.wants(request)).take(search.last);
    let shown = |request: &Arc<RecentRequest>| match search.view {
        DecisionView::Whole => recent::json(request),
        DecisionView::Rows => recent::line(request),
    };
    let decisions: Vec<_> = found.map(shown).collect();
    Ok(AdminReply::Json(json!({ "decisions": decisions, "kept": all.len() })))
}

pub(crate) fn get(call: &AdminCall<'_>) -> AdminResult {
    let record = call.admin.recent.kept(call.name).ok_or_else(|| {
        let message =
            format!("unknown request `{}`; GET /decisions lists the last ones", call.name);
        AdminError::new(404, message)
    })?;
    Ok(AdminReply::Json(recent::json(&record)))
}

pub(crate) fn traffic(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    Ok(AdminReply::Json(gateway.recorder().since(number(call, "after")?, gateway.now())))
}

/// The range of charts without a query.
const DEFAULT_RANGE: u64 = 3600;

pub(crate) fn history(call: &AdminCall<'_>) -> AdminResult {
    let seconds = number(call, "seconds")?.unwrap_or(DEFAULT_RANGE);
    let admin = call.admin;
    let events = admin.gateway.pods().events().status(admin.gateway.now());
    admin.history.look(|| sampling::observe(admin, sampling::restarts(&events)));
    let now = Timestamp::now().0 / 1000;
    let mut pairs = call.query.split('&').filter_map(|pair| pair.split_once('='));
    let pod = pairs.find(|(name, value)| *name == "pod" && !value.is_empty());
    let pod = pod.map(|(_, value)| percent_decode_str(value).decode_utf8_lossy());
    let range = Duration::from_secs(seconds);
    Ok(AdminReply::Json(admin.history.json(now, range, pod.as_deref())))
}

/// A numeric query parameter.
fn number<T: FromStr>(call: &AdminCall<'_>, name: &str) -> Result<Option<T>, AdminError> {
    let mut pairs = call.query.split('&').filter_map(|pair| pair.split_once('='));
    let Some((_, text)) = pairs.find(|(known, _)| *known == name) else { return Ok(None) };
    let wrong =
        |_| AdminError::new(400, format!("`{name}` is `{text}`; it must be a whole number"));
    text.parse().map(Some).map_err(wrong)
}

pub(crate) fn explain(call: &AdminCall<'_>) -> AdminResult {
    let input = parse_exact(call.body)
        .map_err(|error| AdminError::new(400, format!("invalid JSON body: {error}")))?;
    let Some(body) = input.get("body").filter(|body| body.is_object()) else {
        return Err(AdminError::new(
            400,
            "`body` is required: the request body as a client would send it",
        ));
    };
    let path = text(&input, "path")?.unwrap_or("/v1/chat/completions");
    let mut read = read(Api::at(path), &body.to_string().into()).map_err(|refusal| {
        AdminError::new(400, format!("`body` is not a valid request: {}", refusal.message()))
    })?;
    let gateway = &call.admin.gateway;
    read.request.headers = headers(&input["headers"])?;
    if let Some(name) = text(&input, "tenant")? {
        let settings = gateway.settings();
        let tenant =
            settings.tenants.iter().find(|tenant| tenant.name == *name).ok_or_else(|| {
                AdminError::new(400, format!("unknown tenant `{name}`; use a name from `tenants`"))
            })?;
        read.request.priority = tenant.priority;
        read.request.weight = tenant.weight;
        read.request.tenant = Some(tenant.name.clone());
    }
    Ok(AdminReply::Json(explained(gateway, path, read)))
}

/// An optional text field.
fn text<'a>(request: &'a Value, name: &str) -> Result<Option<&'a str>, AdminError> {
    match &request[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => Err(AdminError::new(400, format!("`{name}` is {other}; it must be a string"))),
    }
}

fn headers(given: &Value) -> Result<Vec<(String, String)>, AdminError> {
    let header = |(name, value): (&String, &Value)| {
        Some((name.to_ascii_lowercase(), value.as_str()?.to_owned()))
    };
    let headers = match given {
        Value::Null => Some(Vec::new()),
        Value::Object(headers) => headers.iter().map(header).collect(),
        _ => None,
    };
    headers.ok_or_else(|| AdminError::new(400, "`headers` must be an object of strings"))
}

/// Decides as for a client, and sends nothing. A round-robin picker advances.
fn explained(gateway: &Gateway, path: &str, read: ParsedBody) -> Value {
    let snapshot = gateway.snapshot();
    let routing = gateway.routes();
    let settings = gateway.settings();
    let mut request = read.request;
    request.model = snapshot.model(&read.model);
    request.reading.engine = snapshot.engine_rules(&request.model.base);
    request.arrival = gateway.now();
    request.wall = wornpath_gateway::proxy::unix_time();
    if settings.sharing == CacheSharing::Isolated {
        // As for clients: a request without a tenant has a salt as well.
        let tenant = request.tenant.as_ref().map_or("", Name::as_str);
        request.salt = Some(settings.key.cache_salt(tenant));
    }
    let (name, profile) = routing.profile(path, &request.model.base, request.tenant.as_ref());
    let clock = || gateway.now();
    let mut recorder = Recorder::new(&clock);
    let mut context = profile.context(request);
    let outcome = match profile.prepare_explained(&mut context, &mut recorder) {
        Err(rejection) => Outcome::Reject(rejection),
        Ok(()) => {
            let mut state = DecisionState::new(gateway.pods().index());
            let mut rng = Rng::new(0);
            let mut env = DecisionEnv {
                fleet: snapshot.fleet(),
                state: &mut state,
                now: gateway.now(),
                rng: &mut rng,
            };
            profile.decide_explained(&mut context, &mut env, &mut recorder)
        }
    };
    let pod = |pod| {
        snapshot
            .entry(pod)
            .map_or_else(|| "removed pod".to_owned(), |entry| entry.pod.facts().name.to_string())
    };
    let outcome = match outcome {
        Outcome::Plan(plan) => json!({"plan": plan.to_json(pod)}),
        Outcome::Hold(_) => json!({"hold": "the request would wait until a pod has capacity"}),
        Outcome::Reject(rejection) => {
            json!({"reject": {"status": rejection.status, "reason": rejection.reason}})
        }
    };
    json!({"profile": name.as_str(), "explanation": recorder.finish().to_json(), "outcome": outcome})
}
