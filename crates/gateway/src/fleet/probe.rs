//! The probe loop: probes pods whose circuit breaker is open, connects to those without requests,
//! discovers the models that pods serve, and updates the trust in their cache events.

use crate::fleet::alerts::{BreakerAlerts, EventAlert, EventAlerts};
use crate::fleet::block_size::model_of;
use crate::fleet::engine_calls::{ANSWER_TIMEOUT, TIMEOUTS, ask, get, metrics_page, post};
use crate::fleet::leaving::LeavingPods;
use crate::fleet::reachability::LostSources;
use crate::fleet::registry::{PodRegistry, lock};
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::fleet::tokenizer_check::ProbePrompt;
use crate::fleet::tokenizer_search::LOCAL_TIMEOUT;
use crate::observe::timestamp::Timestamp;
use crate::watchdog::heartbeat::named;
use hyper::StatusCode;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_config::Credentials;
use wornpath_events::{FeedState, PodStatus, Resumed};
use wornpath_execution::{CallError, CallOutcome, Endpoint, WorkerNumber, call, check_connection};
use wornpath_index::Moment;
use wornpath_routing::{EventTrust, Health, Name};

const TICK: Duration = Duration::from_millis(50);
/// Interval between model queries to a pod that is up.
const MODELS_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between probes of a pod whose breaker is open.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two connections to a pod, to see whether it is there; longer in fleets of more
/// than [`CHECKS_PER_SECOND`] pods.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const CHECKS_PER_SECOND: u32 = 1_000;
/// Interval between model queries to a pod that is down.
const MODELS_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two checks for idle connections to close.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Blocks swept from the index at a time, so that no lookup waits for long.
const SWEPT_BLOCKS: usize = 4096;
const MAX_CARDS_BYTES: usize = 4 << 20;

/// Runs the probe loop, and calls `tick` after each round; never returns.
pub(crate) async fn maintain_pods(registry: Arc<PodRegistry>, tick: impl Fn()) -> Infallible {
    let registry = &registry;
    let mut writer = registry.index().writer();
    let mut probed = LastRuns::default();
    let mut queried = LastRuns::default();
    let mut idle_checked = LastRuns::default();
    let mut connected = LastRuns::default();
    let mut known = registry.snapshot();
    let mut tasks = JoinSet::new();
    let logged = Arc::<LoggedFailures>::default();
    let mut breaker_alerts = BreakerAlerts::default();
    let mut event_alerts = EventAlerts::default();
    let mut leaving = LeavingPods::default();
    let mut lost_sources = LostSources::default();
    loop {
        tokio::time::sleep(TICK).await;
        while tasks.try_join_next().is_some() {}
        let now = registry.now();
        leaving.update(registry, now);
        let snapshot = registry.snapshot();
        if !Arc::ptr_eq(&snapshot, &known) {
            let urls: HashSet<_> =
                snapshot.entries().iter().map(|entry| entry.endpoint.url()).collect();
            probed.retain(|url, _| urls.contains(url.as_str()));
            queried.retain(|url, _| urls.contains(url.as_str()));
            idle_checked.retain(|url, _| urls.contains(url.as_str()));
            connected.retain(|url, _| urls.contains(url.as_str()));
            known = Arc::clone(&snapshot);
        }
        let events = registry.events().status(now);
        for pod in lost_sources.update(&events) {
            // Its engine may be gone too.
            if let Some(entry) = snapshot.named(pod) {
                connected.remove(entry.endpoint.url());
            }
        }
        for url in registry.check_requests.take() {
            connected.remove(&url);
        }
        for entry in snapshot.entries() {
            let endpoint = &entry.endpoint;
            if is_due(&mut idle_checked, endpoint, now, IDLE_CHECK_INTERVAL) {
                endpoint.close_unused();
            }
            if endpoint.tick(now) && is_due(&mut probed, endpoint, now, PROBE_INTERVAL) {
                let probe = probe(Arc::clone(registry), Arc::clone(endpoint));
                tasks.spawn(named("pod probe", probe));
            }
            let is_down = entry.cards.is_empty() || entry.pod.state().health() == Health::Down;
            let interval = check_interval(snapshot.entries().len());
            if !is_down
                && !endpoint.was_active_within(interval)
                && is_due(&mut connected, endpoint, now, interval)
            {
                let check = check_pod(Arc::clone(registry), entry.clone());
                tasks.spawn(named("connection check", check));
            }
            let interval = if is_down { MODELS_RETRY_INTERVAL } else { MODELS_INTERVAL };
            if is_due(&mut queried, endpoint, now, interval) {
                let discovery =
                    discover_models(Arc::clone(registry), entry.clone(), Arc::clone(&logged));
                tasks.spawn(named("model discovery", discovery));
            }
        }
        update_trust(registry, &events, now);
        event_alerts.update(&events, now).into_iter().for_each(EventAlert::log);
        breaker_alerts.update(&snapshot);
        writer.expire(now);
        writer.sweep(SWEPT_BLOCKS);
        tick();
    }
}

impl PodRegistry {
    /// Waits for the models of new pods to be queried if no pod that is up serves `model`: all pods
    /// may have been replaced at once. Returns the snapshot after that.
    pub(crate) async fn snapshot_after_discovery(&self, model: &str) -> Arc<FleetSnapshot> {
        let discovery = async {
            loop {
                let queried = self.models_queried.notified();
                if !self.snapshot().may_yet_serve(model) {
                    return;
                }
                queried.await;
            }
        };
        // No query takes longer.
        let _ =
            tokio::time::timeout(TIMEOUTS.total + ANSWER_TIMEOUT + LOCAL_TIMEOUT, discovery).await;
        self.snapshot()
    }
}

/// The last logged failure of each address, so that a failure that persists is logged once.
type LoggedFailures = Mutex<HashMap<String, String>>;

/// When a periodic action last ran, by address.
type LastRuns = HashMap<String, Moment>;

/// Whether `interval` has passed since the last run for an endpoint. If so, records a run.
fn is_due(runs: &mut LastRuns, endpoint: &Endpoint, now: Moment, interval: Duration) -> bool {
    if runs.get(endpoint.url()).is_some_and(|last| *last + interval > now) {
        return false;
    }
    runs.insert(endpoint.url().to_owned(), now);
    true
}

/// The interval between two connections to a pod of a fleet of so many.
fn check_interval(pods: usize) -> Duration {
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    CHECK_INTERVAL.max(Duration::from_secs(1) * pods / CHECKS_PER_SECOND)
}

/// Whether the pod still accepts connections: one without requests would otherwise stay up until
/// its models are queried again.
async fn check_pod(registry: Arc<PodRegistry>, entry: PodEntry) {
    if let Err(error) = check_connection(&entry.endpoint, TIMEOUTS.connect).await {
        record_unreachable(&registry, &entry, &error);
    }
}

/// A pod could not be called. A connect timeout alone does not open the breaker.
fn record_unreachable(registry: &PodRegistry, entry: &PodEntry, error: &CallError) {
    let outcome = match error {
        CallError::ConnectTimeout(_) => Some(CallOutcome::Failed),
        error => {
            let is_gone = matches!(error.outcome(), CallOutcome::Gone | CallOutcome::Lost);
            is_gone.then_some(CallOutcome::Gone)
        }
    };
    if let (Some(outcome), true) = (outcome, entry.pod.state().health() != Health::Down) {
        entry.endpoint.record_outcome(outcome, None, registry.now());
    }
}

/// Probes an endpoint whose breaker is open.
async fn probe(registry: Arc<PodRegistry>, endpoint: Arc<Endpoint>) {
    let verdict =
        match call(&endpoint, WorkerNumber::NONE, get(&endpoint, "/health"), TIMEOUTS).await {
            Ok(answer) if answer.head.status.is_server_error() => CallOutcome::Failed,
            Ok(_) => CallOutcome::Good,
            Err(error) => error.outcome(),
        };
    endpoint.probed(verdict, registry.now());
}

/// Discovers the models of a pod; from the first answer on it gets requests. Requests that wait for
/// the discovery continue even if it fails.
async fn discover_models(registry: Arc<PodRegistry>, entry: PodEntry, logged: Arc<LoggedFailures>) {
    query_models(&registry, &entry, &logged).await;
    if !entry.was_queried.swap(true, Relaxed) {
        registry.models_queried.notify_waiters();
    }
}

async fn query_models(registry: &Arc<PodRegistry>, entry: &PodEntry, logged: &LoggedFailures) {
    let endpoint = &entry.endpoint;
    let listed = fetch_models(endpoint).await;
    match &listed {
        Ok(_) => drop(lock(logged).remove(endpoint.url())),
        Err(error) => {
            let pod = &entry.pod.facts().name;
            let why = error.to_string();
            let before = lock(logged).insert(endpoint.url().to_owned(), why.clone());
            let is_configured = !entry.config.facts.models.is_empty();
            let is_optional = match error {
                ModelsError::Status(status) => !is_unavailable(*status),
                ModelsError::Empty => true,
                ModelsError::Call(_) | ModelsError::Forbidden(_) => false,
            };
            if before.as_ref() != Some(&why) && !(is_configured && is_optional) {
                tracing::warn!(%pod, url = endpoint.url(), reason = why, "model discovery failed");
            }
        }
    }
    match listed {
        Ok(cards) if cards != entry.cards => registry.set_models(entry.config.url(), &cards),
        Ok(_) => {}
        Err(ModelsError::Call(error)) => return record_unreachable(registry, entry, &error),
        // Requests of clients would be refused too, unless their own credentials are forwarded.
        Err(ModelsError::Forbidden(_))
            if registry.settings().upstream_credentials != Credentials::Forwarded =>
        {
            return;
        }
        // A proxy in front of the engine may answer while the engine is not running.
        Err(ModelsError::Status(status)) if is_unavailable(status) => return,
        // The engine answers, and its models are configured.
        Err(_) if !entry.config.facts.models.is_empty() => {}
        Err(_) => return,
    }
    learn(registry, entry).await;
    let snapshot = registry.snapshot();
    for entry in snapshot.entries().iter().filter(|other| other.config.url() == entry.config.url())
    {
        if entry.pod.state().health() == Health::Down {
            entry.pod.state().set_health(Health::Up);
            log_up(registry, entry);
        }
    }
    compare_tokens(registry, entry.config.url()).await;
}

/// Asks a pod that is coming up what it is, before it gets requests that are routed by tokens.
async fn learn(registry: &Arc<PodRegistry>, entry: &PodEntry) {
    let url = entry.config.url();
    let settings = registry.settings();
    let snapshot = registry.snapshot();
    let is_coming_up =
        |entry: &&PodEntry| entry.config.url() == url && entry.pod.state().health() == Health::Down;
    let Some(entry) = snapshot.entries().iter().find(is_coming_up) else { return };
    let seeks = registry.searches.is_enabled() || entry.config.asks_for_events;
    if !seeks {
        if settings.models.is_empty() {
            return;
        }
        let page = metrics_page(entry, &settings.egress_policy);
        let page = tokio::time::timeout(ANSWER_TIMEOUT, page).await.ok().flatten();
        return registry.record_block_size(url, page.as_deref());
    }
    registry.token_checks.forget(url);
    let (facts, page) = ask(entry, &settings.egress_policy).await;
    registry.record_block_size(url, page.as_deref());
    registry.record_facts(url, facts);
    registry.seek_tokenizers(url).await;
}

/// Compares tokens with the engine at `url` if that is due.
async fn compare_tokens(registry: &PodRegistry, url: &str) {
    let settings = registry.settings();
    let snapshot = registry.snapshot();
    let entry = snapshot.entries().iter().find(|entry| entry.config.url() == url);
    let Some(entry) = entry.filter(|_| registry.searches.is_enabled()) else { return };
    let Some(model) = model_of(entry, &settings) else { return };
    let Some(tokenizer) = &model.tokenizer else { return };
    if !registry.routes().wants_tokens() || !registry.token_checks.is_due(url, tokenizer) {
        return;
    }
    let mut mismatch = None;
    for probe in ProbePrompt::ALL {
        let answer = post(&entry.endpoint, "/tokenize", &probe.body(&model.name)).await;
        let answer = answer.ok().and_then(|body| serde_json::from_slice(&body).ok());
        let answer = answer.unwrap_or_default();
        mismatch = probe.compare(tokenizer.as_ref(), &answer, Timestamp::now());
        if mismatch.is_some() {
            break;
        }
    }
    let is_changed = registry.token_checks.record(url, tokenizer, mismatch.as_ref());
    let pod = &entry.pod.facts().name;
    match mismatch {
        Some(mismatch) if is_changed => tracing::error!(%pod, "tokens differ: {mismatch}"),
        None if is_changed => tracing::info!(%pod, "tokens are those of the engine"),
        _ => {}
    }
}

/// Logs that a pod is up, what its engine has said, and why predictions for it are approximate.
fn log_up(registry: &PodRegistry, entry: &PodEntry) {
    let facts = entry.pod.facts();
    let pod = &facts.name;
    tracing::info!(
        %pod,
        models = ?facts.models,
        engine = entry.engine.software,
        block_size = entry.block_size,
        kv_tokens = facts.kv_tokens,
        "pod up"
    );
    warn_unlisted(registry, entry);
    let reasons = registry.why_approximate(entry);
    if !reasons.is_empty() && registry.routes().wants_tokens() {
        tracing::warn!(%pod, "pod approximate: {}", reasons.join("; "));
    }
}

/// Warns if a pod serves a model that no profile can route: prompts of a model that is not listed
/// are tokenized only if its tokenizer is found.
fn warn_unlisted(registry: &PodRegistry, entry: &PodEntry) {
    let settings = registry.settings();
    let is_routable = |name: &&Name| {
        settings.models.iter().any(|model| *model.name == *name.as_str())
            || registry.searches.is_enabled()
            || settings.by_text.is_some()
    };
    let models = entry.pod.facts().models.iter();
    let unlisted: Vec<_> = models.filter(|name| !is_routable(name)).collect();
    if !settings.models.is_empty() && !unlisted.is_empty() {
        tracing::warn!(pod = %entry.pod.facts().name, models = ?unlisted, "model not listed under `models`: profiles that tokenize \
            refuse it; list it with its tokenizer, or route it to a profile with `text_blocks`");
    }
}

/// Whether a status means that the engine cannot serve now, and not only that it has no
/// `/v1/models`.
fn is_unavailable(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// Why the models of a pod could not be discovered.
#[derive(Debug, thiserror::Error)]
enum ModelsError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("/v1/models: status {0}; if the engine requires a key, set `key_file`")]
    Forbidden(StatusCode),
    #[error("/v1/models: status {0}")]
    Status(StatusCode),
    #[error("/v1/models: no model listed, and none configured; name it as `model` of the pod")]
    Empty,
}

/// The model cards of an engine.
async fn fetch_models(endpoint: &Arc<Endpoint>) -> Result<Arc<[Value]>, ModelsError> {
    let answer = call(endpoint, WorkerNumber::NONE, get(endpoint, "/v1/models"), TIMEOUTS).await?;
    let (head, body) = answer.whole(MAX_CARDS_BYTES).await?;
    match head.status {
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(ModelsError::Forbidden(status));
        }
        status if !status.is_success() => return Err(ModelsError::Status(status)),
        _ => {}
    }
    let list: Value = serde_json::from_slice(&body).unwrap_or_default();
    match list["data"].as_array() {
        Some(cards) if !cards.is_empty() => Ok(cards.clone().into()),
        _ => Err(ModelsError::Empty),
    }
}

/// Updates the trust in each pod's events and what it caches, as routing decisions see it.
fn update_trust(registry: &PodRegistry, events: &[PodStatus], now: Moment) {
    let snapshot = registry.snapshot();
    for status in events {
        let Some(entry) = snapshot.named(&status.pod) else { continue };
        let pod_state = entry.pod.state();
        pod_state.set_trust(match status.status.state {
            FeedState::Live => EventTrust::Exact,
            FeedState::Partial => EventTrust::Partial,
            FeedState::Waiting | FeedState::Unsure | FeedState::Stale | FeedState::Quarantined => {
                EventTrust::Unsure
            }
        });
        let is_recalled = status.status.resumed == Some(Resumed::Waiting);
        if !matches!(status.status.state, FeedState::Waiting) || is_recalled {
            pod_state.set_freshness(f64::from(status.status.freshness));
        }
        if let Some(age) = status.status.age {
            pod_state.heard_at(now.saturating_sub(age));
        }
        if let (Some(size), Ok(stats)) =
            (entry.block_size, registry.index().pod_stats(entry.pod.id()))
        {
            pod_state.set_cached_tokens(stats.blocks.saturating_mul(size.get()) as u64);
        }
    }
}
