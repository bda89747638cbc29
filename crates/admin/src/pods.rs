//! Pods: lists their properties and state; adds, removes, drains and resumes them.

use serde_json::{Value, json};
use wornpath_events::{ApproximateSize, PodStatus, SourceError};

use crate::call::{AdminCall, AdminError, AdminReply, AdminResult};
use wornpath_config::TokenizerSource;
use wornpath_gateway::fleet::block_size::{mismatch, model_of};
use wornpath_gateway::fleet::ownership::PodOwner;
use wornpath_gateway::fleet::reload::{AddPodError, RunningConfig};
use wornpath_gateway::fleet::snapshot::PodEntry;
use wornpath_gateway::http::metrics_page::{breaker, feed_state, health, recalled, trust};
use wornpath_gateway::observe::metrics::slow_pods::PodSpeed;

pub(crate) fn list(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let events = gateway.pods().events().status(gateway.now());
    let snapshot = gateway.snapshot();
    let pods: Vec<_> =
        snapshot.entries().iter().map(|entry| shown(&call.admin.running, entry, &events)).collect();
    Ok(AdminReply::Json(json!({ "pods": pods })))
}

pub(crate) fn get(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let events = gateway.pods().events().status(gateway.now());
    let snapshot = gateway.snapshot();
    let entry = snapshot.named(call.name).ok_or_else(|| unknown(call.name))?;
    Ok(AdminReply::Json(shown(&call.admin.running, entry, &events)))
}

/// Adds a pod. JSON is YAML, so the pod is checked by the code that checks the configuration.
pub(crate) fn add(call: &AdminCall<'_>) -> AdminResult {
    let pod: Value = serde_json::from_slice(call.body)
        .map_err(|error| AdminError::new(400, format!("invalid JSON body: {error}")))?;
    if pod.get("key_file").is_some() {
        // Otherwise a caller could have any file of this machine sent to an address of its choice.
        let message =
            "a pod added by request must not have a `key_file`; list the pod in the configuration";
        return Err(AdminError::new(422, message));
    }
    let running = &call.admin.running;
    let checked = running.config().check_pods("request", &json!({ "pods": [pod] }).to_string());
    let pods = checked.map_err(|refused| AdminError {
        status: 422,
        message: "invalid pod".to_owned(),
        problems: Some(refused.to_json()),
    })?;
    let [pod] =
        <[_; 1]>::try_from(pods).map_err(|_| AdminError::new(422, "the body must be one pod"))?;
    let names: Vec<_> = pod.per_rank().iter().map(|pod| pod.facts.name.to_string()).collect();
    if names.iter().any(|name| running.pods().snapshot().named(name).is_some()) {
        let message = format!("pod `{}` already exists; remove it first", pod.name());
        return Err(AdminError::new(409, message));
    }
    // A listed or discovered pod that an operator removed gives up its name and address.
    running.forget(&pod);
    running.add_pod(PodOwner::Operator, &pod, &[]).map_err(|error| {
        AdminError::new(
            if matches!(error, AddPodError::Conflict(_)) { 409 } else { 422 },
            error.to_string(),
        )
    })?;
    tracing::info!(pods = ?names, "pods added by operator");
    Ok(AdminReply::Json(json!({ "added": names })))
}

pub(crate) fn remove(call: &AdminCall<'_>) -> AdminResult {
    let running = &call.admin.running;
    let name = call.name;
    let is_added_by_operator =
        running.ownership().get(name).is_some_and(|pod| pod.owner == PodOwner::Operator);
    if is_added_by_operator {
        running.release(PodOwner::Operator, name);
    } else {
        // A listed or discovered pod stays removed until it is added, its entry changes, or the
        // router restarts.
        for_each_rank(call, |name| running.pods().remove_pod(name))?;
        running.notify_changed();
    }
    tracing::info!(pod = name, "pod removed by operator");
    Ok(AdminReply::Json(json!({ "removed": name })))
}

pub(crate) fn drain(call: &AdminCall<'_>) -> AdminResult {
    for_each_rank(call, |name| call.admin.gateway.pods().drain_pod(name))?;
    tracing::info!(pod = call.name, "pod drained by operator");
    Ok(AdminReply::Json(json!({ "draining": call.name })))
}

pub(crate) fn resume(call: &AdminCall<'_>) -> AdminResult {
    for_each_rank(call, |name| call.admin.gateway.pods().resume_pod(name))?;
    tracing::info!(pod = call.name, "pod resumed by operator");
    Ok(AdminReply::Json(json!({ "resumed": call.name })))
}

/// Applies `action` to the named pod, or to all its ranks. `action` returns whether the pod exists.
fn for_each_rank(call: &AdminCall<'_>, action: impl Fn(&str) -> bool) -> Result<(), AdminError> {
    let mut was_found = action(call.name);
    if let Some(pod) = call.admin.running.ownership().get(call.name).filter(|_| !was_found) {
        for rank in pod.config.per_rank() {
            was_found |= action(rank.facts.name.as_str());
        }
    }
    if was_found { Ok(()) } else { Err(unknown(call.name)) }
}

pub(crate) fn index(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let stats = gateway.pods().index().stats();
    let snapshot = gateway.snapshot();
    let pods = snapshot.entries().iter().filter_map(|entry| {
        let stats = gateway.pods().index().pod_stats(entry.pod.id()).ok()?;
        let digest = gateway.pods().index().digest(entry.pod.id()).ok()?;
        Some(json!({
            "pod": entry.pod.facts().name.as_str(), "blocks": stats.blocks, "holes": stats.holes,
            "waiting": stats.orphans, "expected": stats.speculative, "bytes": stats.bytes,
            // Equal at two routers whose indexes of the pod are equal.
            "digest": format!("{}:{:016x}", digest.blocks.count, digest.blocks.xor),
        }))
    });
    Ok(AdminReply::Json(json!({
        "pods": stats.pods, "leaving": stats.leaving, "suspects": stats.suspects,
        "blocks": stats.blocks, "entries": stats.entries, "sets": stats.sets,
        "table_bytes": stats.table_bytes, "by_pod": pods.collect::<Vec<_>>(),
    })))
}

fn unknown(name: &str) -> AdminError {
    AdminError::new(404, format!("unknown pod `{name}`; GET /pods lists all pods"))
}

/// A pod as JSON.
pub(crate) fn shown(running: &RunningConfig, entry: &PodEntry, events: &[PodStatus]) -> Value {
    let facts = entry.pod.facts();
    let pod_state = entry.pod.state();
    let names = |names: &[wornpath_routing::Name]| -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    };
    let verdict = running.metrics().verdict(&facts.name);
    let labels: serde_json::Map<_, _> =
        facts.labels.iter().map(|(key, value)| (key.to_string(), json!(value.as_str()))).collect();
    let feed = events.iter().find(|feed| *feed.pod == *facts.name.as_str());
    let approximate = running.pods().approximate_size(entry.pod.id());
    json!({
        "name": facts.name.as_str(),
        "url": entry.config.url(),
        "rank": facts.rank,
        "models": names(&facts.models),
        "loras": names(&facts.loras),
        "roles": facts.roles.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "labels": labels,
        "health": health(pod_state),
        "breaker": breaker(pod_state.breaker()),
        "load": {
            "requests": pod_state.requests(), "decoding": pod_state.decoding(),
            "prefill_tokens": pod_state.prefill_tokens(), "decode_tokens": pod_state.decode_tokens(),
        },
        "engine": {
            "waiting": pod_state.waiting(), "kv_usage": pod_state.kv_usage(),
            "software": entry.engine.software, "kv_tokens": facts.kv_tokens,
            "ranks": entry.engine.ranks, "hash": entry.engine.hash,
        },
        "precision": precision_shown(running, entry),
        "block_size": block_size_shown(running, entry),
        "events": {
            "trust": trust(pod_state.trust()), "feed": feed.map(feed_shown), "guess": approximate.map(approximate_shown),
            "silent": running.metrics().is_silent(&facts.name),
        },
        "speed": speed_shown(&running.metrics().speed(&facts.name)),
        "predictions": {"verdict": verdict.word(), "meaning": verdict.to_string()},
    })
}

/// How predictions for a pod are made: the tokenizer of its model, and why they are approximate.
fn precision_shown(running: &RunningConfig, entry: &PodEntry) -> Value {
    let settings = running.pods().settings();
    let tokenizer = model_of(entry, &settings).and_then(|model| match &model.tokenizer_source {
        TokenizerSource::Found(place) => Some(place.to_string()),
        _ => model.tokenizer.as_ref().map(|_| "configured".to_owned()),
    });
    let reasons = running.pods().why_approximate(entry);
    let mode = if reasons.is_empty() { "exact" } else { "approximate" };
    json!({"mode": mode, "tokenizer": tokenizer, "reasons": reasons})
}

/// The last measurement of a pod's speed.
fn speed_shown(speed: &PodSpeed) -> Value {
    let slow = speed.slow.map(|slow| {
        json!({
            "time": slow.time.word(), "seconds": slow.seconds, "usual_seconds": slow.usual,
            "meaning": slow.to_string(),
        })
    });
    json!({
        "first_token_seconds": speed.first_token, "inter_token_seconds": speed.inter_token,
        "slow": slow,
    })
}

/// Block size of the index and of the engine, and their mismatch; `None` if the model is not
/// listed.
fn block_size_shown(running: &RunningConfig, entry: &PodEntry) -> Option<Value> {
    let settings = running.pods().settings();
    let snapshot = running.pods().snapshot();
    let index = model_of(entry, &settings)?.block_size;
    let mismatch = mismatch(entry, snapshot.entries(), &settings);
    Some(json!({
        "index": index.tokens(), "source": index.source(), "engine": entry.block_size,
        "mismatch": mismatch.map(|mismatch| mismatch.to_string()),
    }))
}

/// The approximated cache content of a pod without events.
fn approximate_shown(size: ApproximateSize) -> Value {
    json!({"blocks": size.blocks, "tokens": size.tokens, "capacity_tokens": size.capacity})
}

fn source_error_shown(error: &SourceError) -> Value {
    json!({"source": *error.source, "reason": error.reason})
}

fn feed_shown(feed: &PodStatus) -> Value {
    let status = &feed.status;
    let counters = &status.counters;
    json!({
        "sources": feed.sources.iter().map(ToString::to_string).collect::<Vec<_>>(),
        // Unreachable event sources, with the reason.
        "troubles": feed.errors.iter().map(source_error_shown).collect::<Vec<_>>(),
        "state": feed_state(status.state),
        "confidence": status.confidence,
        "epoch": status.epoch.map(|epoch| epoch.0),
        "last_sequence": status.last_sequence,
        "lag": status.lag,
        "age_seconds": status.age.map(|age| age.as_secs_f64()),
        "blocks_per_second": status.rate,
        // Lower bounds from the last digest, if the source sends any.
        "phantom": status.phantom,
        // Of the last full state, if it names blocks by hashes alone.
        "unnamed": status.unnamed,
        "missing": status.missing,
        "batches": {
            "applied": counters.batches, "repeated": counters.repeated, "outdated": counters.outdated,
            "unnumbered": counters.unnumbered, "malformed": counters.malformed, "dropped": counters.dropped,
        },
        "gaps": counters.gaps,
        "replays": counters.replays,
        "resyncs": counters.snapshots + counters.rebuilds,
        "restarts": counters.restarts,
        "disagreements": counters.disagreements,
        "throttled": counters.throttled,
        "unanswered": counters.failures,
        "last_malformed": status.last_malformed,
        // The state of the pod's checkpointed index entries.
        "checkpoint": status.resumed.map(recalled),
    })
}
