//! Profiles, the configuration file, the log level, metrics and the OpenAPI description.

use serde_json::{Value, json};
use wornpath_routing::{EventTrust, Profile, ProfileEnv, WithoutEvents};

use crate::call::{AdminCall, AdminError, AdminReply, AdminResult};
use wornpath_config::{Config, EffectiveValue, RelativePaths, ValueSource};
use wornpath_gateway::http::metrics_page;
use wornpath_gateway::routes::tokenizes;

pub(crate) fn profiles(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let routing = gateway.routes();
    let settings = gateway.settings();
    let profiles = routing.profiles().iter().map(|(name, profile)| {
        json!({
            "name": name.as_str(), "description": profile.description(),
            "text": profile.printed(), "graph": profile.graph().to_json(),
            "cache": cache_mode(call, profile),
        })
    });
    let routes = settings.routes.iter().map(|route| {
        json!({
            "path": route.path, "model": route.model.as_ref().map(ToString::to_string),
            "tenant": route.tenant.as_ref().map(ToString::to_string), "profile": route.profile,
        })
    });
    Ok(AdminReply::Json(json!({
        "profiles": profiles.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>(),
    })))
}

/// The source of a profile's cache knowledge, and the pods for which it is approximate or doubtful.
fn cache_mode(call: &AdminCall<'_>, profile: &Profile) -> Value {
    if !profile.looks_up() {
        return json!({"mode": "none", "meaning": "the profile does not use the cache index"});
    }
    let gateway = &call.admin.gateway;
    let metrics = call.admin.running.metrics();
    let mut guessed = Vec::new();
    let mut doubtful = Vec::new();
    let snapshot = gateway.snapshot();
    for pod in snapshot.fleet().pods() {
        let name = &pod.facts().name;
        if pod.state().trust() == EventTrust::Guessed {
            guessed.push(name.to_string());
        }
        if metrics.is_silent(name) || metrics.verdict(name).is_broken() {
            doubtful.push(name.to_string());
        }
    }
    let mode = metrics_page::cache_mode(profile, snapshot.fleet().pods());
    let meaning = match mode {
        "events" => "every pod publishes cache events",
        "mixed" => {
            "some pods publish no cache events; their caches are approximated from the requests sent to them"
        }
        _ if !tokenizes(profile) => {
            "prompts are compared by their text; what a pod holds is approximated from the requests sent to it"
        }
        _ => {
            "no pod publishes cache events; their caches are approximated from the requests sent to them"
        }
    };
    json!({
        "mode": mode, "meaning": meaning, "guessed": guessed, "doubtful": doubtful,
        "without_events": profile.without_events().map(WithoutEvents::word),
    })
}

pub(crate) fn check_profile(call: &AdminCall<'_>) -> AdminResult {
    let models = std::sync::Arc::clone(call.admin.gateway.routes().models());
    let env = ProfileEnv { models, ..ProfileEnv::default() };
    Ok(match Profile::check("request", text(call)?, &env) {
        Ok(profile) => {
            AdminReply::Json(json!({"good": true, "problems": [], "text": profile.printed()}))
        }
        Err(problems) => AdminReply::Json(json!({"good": false, "problems": problems.to_json()})),
    })
}

pub(crate) fn config(call: &AdminCall<'_>) -> AdminResult {
    Ok(AdminReply::Json(call.admin.running.status()))
}

/// The configuration in force, key by key; an option of the command line stands beside what it
/// overrides.
pub(crate) fn effective(call: &AdminCall<'_>) -> AdminResult {
    let config = call.admin.running.config();
    let all = config.effective().iter().chain(&call.admin.options);
    let shown = |one: &EffectiveValue| {
        let is_overridden =
            call.admin.options.iter().any(|option| {
                option.key == one.key && !matches!(one.source, ValueSource::Option(_))
            });
        json!({
            "key": one.key, "value": one.value, "source": one.source.word(),
            "overridden": is_overridden,
        })
    };
    Ok(AdminReply::Json(json!({ "values": all.map(shown).collect::<Vec<_>>() })))
}

pub(crate) fn check_config(call: &AdminCall<'_>) -> AdminResult {
    let paths = call
        .admin
        .running
        .path()
        .map_or_else(|| RelativePaths::new("".as_ref()), RelativePaths::new);
    Ok(match Config::check("request", text(call)?, &paths) {
        Ok(_) => AdminReply::Json(json!({"good": true, "problems": []})),
        Err(refused) => AdminReply::Json(json!({"good": false, "problems": refused.to_json()})),
    })
}

pub(crate) fn reload(call: &AdminCall<'_>) -> AdminResult {
    match call.admin.running.reload() {
        Ok(reloaded) => {
            Ok(AdminReply::Json(json!({"reloaded": true, "wants_restart": reloaded.wants_restart})))
        }
        Err(error) => Err(AdminError {
            status: 422,
            message: "configuration refused; the old one stays in effect".to_owned(),
            problems: error.problems().or_else(|| Some(json!([{"message": error.to_string()}]))),
        }),
    }
}

pub(crate) fn log_level(call: &AdminCall<'_>) -> AdminResult {
    Ok(AdminReply::Json(json!({ "level": call.admin.logging.level() })))
}

pub(crate) fn set_log_level(call: &AdminCall<'_>) -> AdminResult {
    let request: Value = serde_json::from_slice(call.body)
        .map_err(|error| AdminError::new(400, format!("invalid JSON body: {error}")))?;
    let level =
        request["level"].as_str().ok_or_else(|| AdminError::new(400, "`level` is required"))?;
    call.admin.logging.set_level(level).map_err(|error| AdminError::new(422, error))?;
    log_level(call)
}

pub(crate) fn metrics(call: &AdminCall<'_>) -> AdminResult {
    let running = &call.admin.running;
    let page = metrics_page::page(&call.admin.gateway, running.metrics(), call.page_format);
    Ok(AdminReply::Text { kind: call.page_format.content_type(), text: page })
}

fn text<'a>(call: &AdminCall<'a>) -> Result<&'a str, AdminError> {
    std::str::from_utf8(call.body).map_err(|_| AdminError::new(400, "the body is not valid UTF-8"))
}
