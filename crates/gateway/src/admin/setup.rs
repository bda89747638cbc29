//! What is configured: profiles, the file, what is logged; and this plane itself.

use serde_json::{Value, json};
use wornpath_routing::{EventTrust, Profile, Surroundings, WithoutEvents};

use super::openapi;
use super::routes::{Answer, Call, Refusal, Reply};
use crate::config::{Beside, Config};
use crate::metrics;

pub(super) fn profiles(call: &Call<'_>) -> Answer {
    let gateway = call.admin.running.gateway();
    let (routing, settings) = (gateway.routing(), gateway.settings());
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
    Ok(Reply::Json(json!({
        "profiles": profiles.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>(),
    })))
}

/// What a profile's knowledge of caches rests on, and for which pods it rests on less.
fn cache_mode(call: &Call<'_>, profile: &Profile) -> Value {
    if !profile.looks_up() {
        return json!({"mode": "none", "meaning": "the profile does not look at what pods hold"});
    }
    let (gateway, counted) = (call.admin.running.gateway(), call.admin.running.metrics());
    let (mut guessed, mut doubtful) = (Vec::new(), Vec::new());
    let roster = gateway.roster();
    for pod in roster.fleet().pods() {
        let name = &pod.facts().name;
        if pod.vitals().trust() == EventTrust::Guessed {
            guessed.push(name.to_string());
        }
        if counted.is_silent(name) || counted.verdict(name).is_broken() {
            doubtful.push(name.to_string());
        }
    }
    let mode = metrics::cache_mode(profile, roster.fleet().pods());
    let meaning = match mode {
        "events" => "every pod tells what it holds",
        "mixed" => {
            "some pods do not tell what they hold: theirs is guessed from what they were sent"
        }
        _ => "no pod tells what it holds: it is guessed from what they were sent",
    };
    json!({
        "mode": mode, "meaning": meaning, "guessed": guessed, "doubtful": doubtful,
        "without_events": profile.without_events().map(WithoutEvents::word),
    })
}

pub(super) fn check_profile(call: &Call<'_>) -> Answer {
    let models = std::sync::Arc::clone(call.admin.running.gateway().routing().models());
    let surroundings = Surroundings { models, ..Surroundings::default() };
    Ok(match Profile::check("request", text(call)?, &surroundings) {
        Ok(profile) => {
            Reply::Json(json!({"good": true, "problems": [], "text": profile.printed()}))
        }
        Err(problems) => Reply::Json(json!({"good": false, "problems": problems.to_json()})),
    })
}

pub(super) fn config(call: &Call<'_>) -> Answer {
    Ok(Reply::Json(call.admin.running.status()))
}

pub(super) fn check_config(call: &Call<'_>) -> Answer {
    let beside = call.admin.running.path().map_or_else(|| Beside::new("".as_ref()), Beside::new);
    Ok(match Config::check("request", text(call)?, &beside) {
        Ok(_) => Reply::Json(json!({"good": true, "problems": []})),
        Err(refused) => Reply::Json(json!({"good": false, "problems": refused.to_json()})),
    })
}

pub(super) fn reload(call: &Call<'_>) -> Answer {
    match call.admin.running.reload() {
        Ok(reloaded) => {
            Ok(Reply::Json(json!({"reloaded": true, "wants_restart": reloaded.wants_restart})))
        }
        Err(error) => Err(Refusal {
            status: 422,
            message: "the configuration was refused, and the old one stays".to_owned(),
            problems: error.problems().or_else(|| Some(json!([{"message": error.to_string()}]))),
        }),
    }
}

pub(super) fn log_level(call: &Call<'_>) -> Answer {
    Ok(Reply::Json(json!({ "level": call.admin.logging.level() })))
}

pub(super) fn set_log_level(call: &Call<'_>) -> Answer {
    let asked: Value = serde_json::from_slice(call.body)
        .map_err(|error| Refusal::new(400, format!("the body is not JSON: {error}")))?;
    let level = asked["level"].as_str().ok_or_else(|| Refusal::new(400, "give `level`"))?;
    call.admin.logging.set_level(level).map_err(|error| Refusal::new(422, error))?;
    log_level(call)
}

pub(super) fn metrics(call: &Call<'_>) -> Answer {
    let running = &call.admin.running;
    Ok(Reply::Text(metrics::page(running.gateway(), running.metrics())))
}

pub(super) fn description(_: &Call<'_>) -> Answer {
    Ok(Reply::Json(openapi::description()))
}

fn text<'a>(call: &Call<'a>) -> Result<&'a str, Refusal> {
    std::str::from_utf8(call.body).map_err(|_| Refusal::new(400, "the body is no text"))
}
