//! Pods: who they are, how they are, and changes to who is there.

use serde_json::{Value, json};
use wornpath_events::{ApproximateSize, PodStatus, SourceError};

use crate::routes::{AdminCall, AdminError, AdminReply, AdminResult};
use wornpath_gateway::fleet::block_size::{mismatch, model_of};
use wornpath_gateway::fleet::ownership::PodOwner;
use wornpath_gateway::fleet::reload::{AddPodError, RunningConfig};
use wornpath_gateway::fleet::snapshot::PodEntry;
use wornpath_gateway::http::metrics_page::{breaker, feed_state, health, recalled, trust};

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

/// A pod in JSON is a pod in YAML: it is checked by the same code, against what is configured.
pub(crate) fn add(call: &AdminCall<'_>) -> AdminResult {
    let pod: Value = serde_json::from_slice(call.body)
        .map_err(|error| AdminError::new(400, format!("the body is not JSON: {error}")))?;
    if pod.get("key_file").is_some() {
        // Else whoever may add pods could have any file of this machine sent somewhere.
        let message =
            "a pod that is added by request cannot have a `key_file`; list it in the configuration";
        return Err(AdminError::new(422, message));
    }
    let running = &call.admin.running;
    let checked = running.config().check_pods("request", &json!({ "pods": [pod] }).to_string());
    let pods = checked.map_err(|refused| AdminError {
        status: 422,
        message: "this pod cannot be added".to_owned(),
        problems: Some(refused.to_json()),
    })?;
    let [pod] = <[_; 1]>::try_from(pods).map_err(|_| AdminError::new(422, "give one pod"))?;
    let names: Vec<_> = pod.settings().iter().map(|pod| pod.facts.name.to_string()).collect();
    if names.iter().any(|name| running.pods().snapshot().named(name).is_some()) {
        let message = format!("there is a pod `{}` already; remove it first", pod.name);
        return Err(AdminError::new(409, message));
    }
    // Who was listed or discovered and removed by an operator gives its name and address up.
    running.forget(&pod);
    running.add_pod(PodOwner::Operator, &pod, &[]).map_err(|error| {
        AdminError::new(
            if matches!(error, AddPodError::Conflict(_)) { 409 } else { 422 },
            error.to_string(),
        )
    })?;
    tracing::info!(pods = ?names, "added by an operator");
    Ok(AdminReply::Json(json!({ "added": names })))
}

pub(crate) fn remove(call: &AdminCall<'_>) -> AdminResult {
    let running = &call.admin.running;
    let name = call.name;
    let is_operators =
        running.ownership().get(name).is_some_and(|pod| pod.owner == PodOwner::Operator);
    if is_operators {
        running.release(PodOwner::Operator, name);
    } else {
        // A listed or discovered pod stays away until it is added, its entry changes, or the router starts anew.
        for_each_rank(call, |name| running.pods().remove_pod(name))?;
        running.notify_changed();
    }
    tracing::info!(pod = name, "removed by an operator");
    Ok(AdminReply::Json(json!({ "removed": name })))
}

pub(crate) fn drain(call: &AdminCall<'_>) -> AdminResult {
    for_each_rank(call, |name| call.admin.gateway.pods().drain_pod(name))?;
    tracing::info!(pod = call.name, "drained by an operator");
    Ok(AdminReply::Json(json!({ "draining": call.name })))
}

pub(crate) fn resume(call: &AdminCall<'_>) -> AdminResult {
    for_each_rank(call, |name| call.admin.gateway.pods().resume_pod(name))?;
    tracing::info!(pod = call.name, "resumed by an operator");
    Ok(AdminReply::Json(json!({ "resumed": call.name })))
}

/// Does something with the pod that the call names: with all ranks, if that is what it has. `action` says
/// whether there was one.
fn for_each_rank(call: &AdminCall<'_>, action: impl Fn(&str) -> bool) -> Result<(), AdminError> {
    let mut was_there = action(call.name);
    if let Some(pod) = call.admin.running.ownership().get(call.name).filter(|_| !was_there) {
        for rank in pod.config.settings() {
            was_there |= action(rank.facts.name.as_str());
        }
    }
    if was_there { Ok(()) } else { Err(unknown(call.name)) }
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
            // Equal at two routers that know the same of the pod.
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
    AdminError::new(404, format!("there is no pod `{name}`; GET /pods lists them"))
}

/// A pod as operators see it.
pub(crate) fn shown(running: &RunningConfig, entry: &PodEntry, events: &[PodStatus]) -> Value {
    let (facts, vitals) = (entry.pod.facts(), entry.pod.vitals());
    let names = |names: &[wornpath_routing::Name]| -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    };
    let verdict = running.metrics().verdict(&facts.name);
    let labels: serde_json::Map<_, _> =
        facts.labels.iter().map(|(key, value)| (key.to_string(), json!(value.as_str()))).collect();
    let feed = events.iter().find(|feed| *feed.pod == *facts.name.as_str());
    let guess = running.pods().approximate_size(entry.pod.id());
    json!({
        "name": facts.name.as_str(),
        "url": entry.settings.url,
        "rank": facts.rank,
        "models": names(&facts.models),
        "loras": names(&facts.loras),
        "roles": facts.roles.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "labels": labels,
        "health": health(vitals),
        "breaker": breaker(vitals.breaker()),
        "load": {
            "requests": vitals.requests(), "decoding": vitals.decoding(),
            "prefill_tokens": vitals.prefill_tokens(), "decode_tokens": vitals.decode_tokens(),
        },
        "engine": {"waiting": vitals.waiting(), "kv_usage": vitals.kv_usage()},
        "block_size": block_size_shown(running, entry),
        "events": {
            "trust": trust(vitals.trust()), "feed": feed.map(feed_shown), "guess": guess.map(guess_shown),
            "silent": running.metrics().is_silent(&facts.name),
        },
        "predictions": {"verdict": verdict.word(), "meaning": verdict.to_string()},
    })
}

/// Tokens in a block of the index and of the engine, and what is wrong with that; nothing of a model that is not listed.
fn block_size_shown(running: &RunningConfig, entry: &PodEntry) -> Option<Value> {
    let (settings, snapshot) = (running.pods().settings(), running.pods().snapshot());
    let index = model_of(entry, &settings)?.block_size;
    let mismatch = mismatch(entry, snapshot.entries(), &settings);
    Some(json!({
        "index": index.tokens(), "source": index.source(), "engine": entry.block_size,
        "mismatch": mismatch.map(|mismatch| mismatch.to_string()),
    }))
}

/// Of a pod that says nothing: how full its cache is guessed to be.
fn guess_shown(guess: ApproximateSize) -> Value {
    json!({"blocks": guess.blocks, "tokens": guess.tokens, "capacity_tokens": guess.capacity})
}

fn trouble_shown(trouble: &SourceError) -> Value {
    json!({"source": *trouble.source, "reason": trouble.reason})
}

fn feed_shown(feed: &PodStatus) -> Value {
    let (status, counters) = (&feed.status, &feed.status.counters);
    json!({
        "sources": feed.sources.iter().map(ToString::to_string).collect::<Vec<_>>(),
        // From where events cannot be had, and why.
        "troubles": feed.errors.iter().map(trouble_shown).collect::<Vec<_>>(),
        "state": feed_state(status.state),
        "confidence": status.confidence,
        "epoch": status.epoch.map(|epoch| epoch.0),
        "last_sequence": status.last_sequence,
        "lag": status.lag,
        "age_seconds": status.age.map(|age| age.as_secs_f64()),
        "blocks_per_second": status.rate,
        // By the last digest, where the source sends any: at least so many.
        "phantom": status.phantom,
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
        "unanswered": counters.failures,
        "last_malformed": status.last_malformed,
        // What became of what the checkpoint before the start knew of it.
        "checkpoint": status.resumed.map(recalled),
    })
}
