//! What is done for pods now and then: probing those that are cut off, asking what they serve, telling
//! decisions how far their events can be trusted.

use crate::breakers::Breakers;
use crate::event_alerts::{EventAlert, EventAlerts};
use crate::fleet::{FleetSnapshot, PodEntry};
use crate::settings::Credentials;
use crate::state::{Gateway, lock};
use crate::watchdog::named;
use crate::worker::Worker;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_events::{FeedState, PodStatus, Resumed};
use wornpath_execution::{
    BreakerRules, CallError, CallOutcome, EgressPolicy, Endpoint, Timeouts, WorkerNumber, call,
};
use wornpath_index::Moment;
use wornpath_routing::{EventTrust, Health, Name};

const TICK: Duration = Duration::from_millis(50);
/// How often a pod that answers is asked again what it serves.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// How often one is probed that was cut off.
const PROBE_AGAIN: Duration = Duration::from_millis(100);
/// How often one is asked that has never answered.
const ASK_SOON: Duration = Duration::from_millis(500);
/// How often connections are closed that nobody uses.
const TIDY_AGAIN: Duration = Duration::from_secs(2);
/// The index is swept in pieces, so that no query waits for long.
const SWEPT_BLOCKS: usize = 4096;
const MOST_CARDS_BYTES: usize = 4 << 20;
/// A page of metrics is a few hundred kilobytes; this is no page.
const MOST_PAGE_BYTES: usize = 8 << 20;
/// How long a pod that is coming up may take to report its block size: until then it gets no requests.
const REPORT_WITHIN: Duration = Duration::from_secs(1);

const PATIENCE: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    first_byte: Duration::from_secs(2),
    between_bytes: Duration::from_secs(2),
    total: Duration::from_secs(4),
};

/// A number that no worker has: probes keep no connections.
pub(crate) const NOBODY: WorkerNumber = WorkerNumber(usize::MAX);

/// Looks after all pods, for as long as it is polled.
pub(crate) async fn look_after(worker: Arc<Worker>) -> Infallible {
    let gateway = &worker.gateway;
    let mut writer = gateway.index().writer();
    let (mut probes, mut introductions) = (DueProbe::default(), DueProbe::default());
    let mut tidied = DueProbe::default();
    let mut known = gateway.roster();
    let mut errands = JoinSet::new();
    let (told, mut breakers) = (Arc::<ProbeReport>::default(), Breakers::default());
    let mut unheard = EventAlerts::default();
    loop {
        tokio::time::sleep(TICK).await;
        while errands.try_join_next().is_some() {}
        let (now, roster) = (gateway.now(), gateway.roster());
        if !Arc::ptr_eq(&roster, &known) {
            let urls: HashSet<_> = roster.seats().iter().map(|seat| seat.endpoint.url()).collect();
            probes.retain(|url, _| urls.contains(url.as_str()));
            introductions.retain(|url, _| urls.contains(url.as_str()));
            tidied.retain(|url, _| urls.contains(url.as_str()));
            known = Arc::clone(&roster);
        }
        for seat in roster.seats() {
            let endpoint = &seat.endpoint;
            if is_due(&mut tidied, endpoint, now, TIDY_AGAIN) {
                endpoint.close_unused();
            }
            if endpoint.tick(now) && is_due(&mut probes, endpoint, now, PROBE_AGAIN) {
                let probe = probe(Arc::clone(gateway), Arc::clone(endpoint));
                errands.spawn(named("pod probe", probe));
            }
            let is_waited_for = seat.cards.is_empty() || seat.pod.vitals().health() == Health::Down;
            let again = if is_waited_for { ASK_SOON } else { ASK_AGAIN };
            if is_due(&mut introductions, endpoint, now, again) {
                let introduction = introduce(Arc::clone(gateway), seat.clone(), Arc::clone(&told));
                errands.spawn(named("pod introduction", introduction));
            }
        }
        let events = gateway.events().status(now);
        trust(gateway, &events, now);
        unheard.look(&events, now).into_iter().for_each(EventAlert::tell);
        breakers.look(&roster);
        writer.expire(now);
        writer.sweep(SWEPT_BLOCKS);
        gateway.lobby.poll(&worker);
    }
}

impl Gateway {
    /// Waits for whoever came just now to be asked what it serves, if nobody who is up serves the model: pods may have
    /// been replaced all at once. Returns who is there then.
    pub(crate) async fn roster_after_introductions(&self, model: &str) -> Arc<FleetSnapshot> {
        let introductions = async {
            loop {
                let introduced = self.introduced.notified();
                if !self.roster().may_yet_serve(model) {
                    return;
                }
                introduced.await;
            }
        };
        // Asking takes no longer.
        let _ = tokio::time::timeout(PATIENCE.total + REPORT_WITHIN, introductions).await;
        self.roster()
    }
}

/// What was last said of pods that do not answer, by address: the same is not said again.
type ProbeReport = Mutex<HashMap<String, String>>;

/// When something was last done, by address.
type DueProbe = HashMap<String, Moment>;

/// Whether it is to be done now, so long after the last time.
fn is_due(done: &mut DueProbe, endpoint: &Endpoint, now: Moment, pause: Duration) -> bool {
    if done.get(endpoint.url()).is_some_and(|last| *last + pause > now) {
        return false;
    }
    done.insert(endpoint.url().to_owned(), now);
    true
}

/// Whether an endpoint that was cut off is back.
async fn probe(gateway: Arc<Gateway>, endpoint: Arc<Endpoint>) {
    let verdict = match call(&endpoint, NOBODY, get(&endpoint, "/health"), PATIENCE).await {
        Ok(answer) if answer.head.status.is_server_error() => CallOutcome::Failed,
        Ok(_) => CallOutcome::Good,
        Err(error) => error.verdict(),
    };
    endpoint.probed(verdict, gateway.now());
}

/// Asks a pod what it serves; from the first answer on it gets requests. Those who waited for what it says go on in any case.
async fn introduce(gateway: Arc<Gateway>, seat: PodEntry, told: Arc<ProbeReport>) {
    ask(&gateway, &seat, &told).await;
    if !seat.is_asked.swap(true, Relaxed) {
        gateway.introduced.notify_waiters();
    }
}

async fn ask(gateway: &Gateway, seat: &PodEntry, told: &ProbeReport) {
    let endpoint = &seat.endpoint;
    let listed = listed(endpoint).await;
    match &listed {
        Ok(_) => drop(lock(told).remove(endpoint.url())),
        Err(unlisted) => {
            let (pod, why) = (&seat.pod.facts().name, unlisted.to_string());
            let before = lock(told).insert(endpoint.url().to_owned(), why.clone());
            let is_configured = !seat.settings.facts.models.is_empty();
            let may_be = match unlisted {
                Unlisted::Status(status) => !is_out_of_order(*status),
                Unlisted::Nothing => true,
                Unlisted::Call(_) | Unlisted::Forbidden(_) => false,
            };
            if before.as_ref() != Some(&why) && !(is_configured && may_be) {
                tracing::warn!(%pod, url = endpoint.url(), "does not say what it serves: {why}");
            }
        }
    }
    match listed {
        Ok(cards) if cards != seat.cards => gateway.introduce(&seat.settings.url, &cards),
        Ok(_) => {}
        Err(Unlisted::Call(error)) => {
            // One that was up and gets no requests would seem to be up for ever. Not being greeted in time is no proof.
            let blame = match error {
                CallError::ConnectTimeout(_) => Some(CallOutcome::Failed),
                error => Some(error.verdict()).filter(|verdict| *verdict == CallOutcome::Gone),
            };
            if let (Some(blame), true) = (blame, seat.pod.vitals().health() != Health::Down) {
                endpoint.judge(blame, gateway.now());
            }
            return;
        }
        // Clients would be turned away too, unless they bring what it wants.
        Err(Unlisted::Forbidden(_))
            if gateway.settings().upstream_credentials != Credentials::Forwarded =>
        {
            return;
        }
        // It may be who stands before the engine that answers, as long as there is none.
        Err(Unlisted::Status(status)) if is_out_of_order(status) => return,
        // It answers, and what it serves is configured.
        Err(_) if !seat.settings.facts.models.is_empty() => {}
        Err(_) => return,
    }
    note_block_size(gateway, seat).await;
    let roster = gateway.roster();
    for seat in roster.seats().iter().filter(|other| other.settings.url == seat.settings.url) {
        if seat.pod.vitals().health() == Health::Down {
            seat.pod.vitals().set_health(Health::Up);
            tracing::info!(pod = %seat.pod.facts().name, models = ?seat.pod.facts().models, "is up");
            tell_unlisted(gateway, seat);
        }
    }
}

/// Asks a pod that is coming up for its block size, before it gets requests that are routed by tokens.
async fn note_block_size(gateway: &Gateway, seat: &PodEntry) {
    let (url, settings) = (&seat.settings.url, gateway.settings());
    let is_coming =
        |seat: &PodEntry| seat.settings.url == *url && seat.pod.vitals().health() == Health::Down;
    if settings.models.is_empty() || !gateway.roster().seats().iter().any(is_coming) {
        return;
    }
    let page = metrics_page(seat, &settings.reach);
    let page = tokio::time::timeout(REPORT_WITHIN, page).await.ok().flatten();
    gateway.note_block_size(url, page.as_deref());
}

/// Where some models are listed, so that their prompts can be tokenized, a pod may still serve another.
fn tell_unlisted(gateway: &Gateway, seat: &PodEntry) {
    let settings = gateway.settings();
    let is_listed =
        |name: &&Name| settings.models.iter().any(|model| *model.name == *name.as_str());
    let unlisted: Vec<_> = seat.pod.facts().models.iter().filter(|name| !is_listed(name)).collect();
    if !settings.models.is_empty() && !unlisted.is_empty() {
        tracing::warn!(pod = %seat.pod.facts().name, models = ?unlisted, "serves what is not listed under `models`: a profile that \
            tokenizes refuses it; list it with its tokenizer, or route it to a profile with `text_blocks`");
    }
}

/// Whether that is the answer of somebody who cannot serve now, and not of one who lists no models.
fn is_out_of_order(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// Why a pod's models are not known.
#[derive(Debug, thiserror::Error)]
enum Unlisted {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("/v1/models: found status {0}; if the engine wants a key, give it as `key_file`")]
    Forbidden(StatusCode),
    #[error("/v1/models: found status {0}")]
    Status(StatusCode),
    #[error("/v1/models: found no model, and none is configured")]
    Nothing,
}

/// What a pod serves, by its own word.
async fn listed(endpoint: &Arc<Endpoint>) -> Result<Arc<[Value]>, Unlisted> {
    let answer = call(endpoint, NOBODY, get(endpoint, "/v1/models"), PATIENCE).await?;
    let (head, body) = answer.whole(MOST_CARDS_BYTES).await?;
    match head.status {
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(Unlisted::Forbidden(status));
        }
        status if !status.is_success() => return Err(Unlisted::Status(status)),
        _ => {}
    }
    let list: Value = serde_json::from_slice(&body).unwrap_or_default();
    match list["data"].as_array() {
        Some(cards) if !cards.is_empty() => Ok(cards.clone().into()),
        _ => Err(Unlisted::Nothing),
    }
}

/// The pod's page of metrics, if there is one. The pod's key is shown at the pod's own address only.
pub(crate) async fn metrics_page(seat: &PodEntry, reach: &Arc<EgressPolicy>) -> Option<String> {
    let pod = &seat.endpoint;
    let url = match &seat.settings.metrics {
        Some(url) => url.clone(),
        None => format!("{}/metrics", seat.settings.url),
    };
    let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).ok()?.within(reach).ok()?;
    let endpoint = Arc::new(endpoint);
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = endpoint.prefix().parse().unwrap_or_else(|_| Uri::from_static("/"));
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    if endpoint.authority() == pod.authority() {
        pod.authorize(request.headers_mut());
    }
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/plain"));
    let answer = call(&endpoint, NOBODY, request, PATIENCE).await.ok()?;
    if answer.head.status != StatusCode::OK {
        return None;
    }
    let (_, body) = answer.whole(MOST_PAGE_BYTES).await.ok()?;
    String::from_utf8(body.into()).ok()
}

/// What a pod answers at a path.
pub(crate) async fn fetch(endpoint: &Arc<Endpoint>, path: &str) -> Result<Bytes, String> {
    let answer = call(endpoint, NOBODY, get(endpoint, path), PATIENCE).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let (head, body) = answer.whole(MOST_CARDS_BYTES).await.map_err(|error| error.to_string())?;
    if !head.status.is_success() {
        return Err(format!("{path}: found status {}", head.status));
    }
    Ok(body)
}

fn get(endpoint: &Endpoint, path: &str) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::new()));
    let path = format!("{}{path}", endpoint.prefix());
    *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    endpoint.authorize(request.headers_mut());
    request
}

/// Tells decisions how far each pod's events can be trusted.
fn trust(gateway: &Gateway, events: &[PodStatus], now: Moment) {
    let roster = gateway.roster();
    for status in events {
        let Some(seat) = roster.named(&status.pod) else { continue };
        let vitals = seat.pod.vitals();
        vitals.set_trust(match status.status.state {
            FeedState::Live => EventTrust::Exact,
            FeedState::Partial => EventTrust::Partial,
            FeedState::Waiting | FeedState::Unsure | FeedState::Stale | FeedState::Quarantined => {
                EventTrust::Unsure
            }
        });
        let is_recalled = status.status.resumed == Some(Resumed::Waiting);
        if !matches!(status.status.state, FeedState::Waiting) || is_recalled {
            vitals.set_freshness(f64::from(status.status.freshness));
        }
        if let Some(age) = status.status.age {
            vitals.heard_at(now.saturating_sub(age));
        }
    }
}
