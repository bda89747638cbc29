//! Who comes and who goes: one pod at a time, or all that a new configuration changes.
//!
//! A configuration takes over as a whole or not at all, so everything that can be wrong with its pods is
//! found before anything changes.

use crate::block_size;
use crate::config::authorization;
use crate::event_source_probe::EventSourceProbe;
use crate::fleet::{FleetSnapshot, PodEntry};
use crate::pod_model::serving;
use crate::routing::Routing;
use crate::settings::{EventSource, PodSettings, Settings};
use crate::state::{ApplyError, Gateway, lock};
use crate::watchdog::{TaskName, named};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use tokio::task::AbortHandle;
use wornpath_events::{DialPolicy, ZeroMq, supervise};
use wornpath_execution::{Endpoint, EndpointError};
use wornpath_index::{NoSlot, PodId};
use wornpath_routing::{EventTrust, FleetPod, Health, Name, PodFacts};

/// Blocks that are swept at a time when slots are needed at once.
const SWEPT_BLOCKS: usize = 1 << 16;

impl Gateway {
    /// Takes a pod in. It gets requests once it has answered a probe.
    ///
    /// # Errors
    /// If it is there already, its address is none, or the index is full.
    pub fn add_pod(&self, settings: PodSettings) -> Result<(), ApplyError> {
        self.add_pod_after(settings, &[])
    }

    /// The same, where it may be one of those who were there just now: then it goes on as it was.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn add_pod_after(
        &self,
        settings: PodSettings,
        former: &[PodEntry],
    ) -> Result<(), ApplyError> {
        let _changing = lock(&self.changing);
        let mut seats = self.roster().seats().to_vec();
        let new = (std::slice::from_ref(&settings), &*self.settings());
        check_pods(&seats, new, &self.routing())?;
        if seats.len() + 1 + self.index().stats().leaving > self.slots {
            self.sweep_leaving();
        }
        let former = former.iter().find(|seat| is_same_engine(&seat.settings, &settings));
        self.take_in(&mut seats, settings, former)?;
        self.seat(seats);
        Ok(())
    }

    /// Takes a pod out at once; requests on it go on. Whether it was there.
    pub fn remove_pod(&self, name: &str) -> bool {
        let _changing = lock(&self.changing);
        let mut seats = self.roster().seats().to_vec();
        let Some(at) = seats.iter().position(|seat| *seat.pod.facts().name.as_str() == *name)
        else {
            return false;
        };
        let seat = seats.remove(at);
        self.seat(seats);
        self.take_out(&seat);
        true
    }

    /// Sends a pod nothing new. Whether it was there.
    pub fn drain_pod(&self, name: &str) -> bool {
        let roster = self.roster();
        let Some(seat) = roster.named(name) else { return false };
        seat.pod.vitals().set_health(Health::Draining);
        true
    }

    /// Sends a drained pod requests again, once it has answered a probe. Whether it was there.
    pub fn resume_pod(&self, name: &str) -> bool {
        let roster = self.roster();
        let Some(seat) = roster.named(name) else { return false };
        if seat.pod.vitals().health() == Health::Draining {
            seat.pod.vitals().set_health(Health::Down);
        }
        true
    }

    /// Checks new settings and goes by them; if they cannot be used, everything stays as it is. Where it
    /// listens, and with how many threads, stays in any case.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn apply(&self, settings: Settings) -> Result<(), ApplyError> {
        self.adopt(settings, &[])
    }

    /// The same, where some of the pods were brought by somebody else before.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub(crate) fn adopt(
        &self,
        mut settings: Settings,
        adopted: &[PodSettings],
    ) -> Result<(), ApplyError> {
        let _changing = lock(&self.changing);
        let before = self.settings();
        block_size::carry_over(&before, &mut settings, self.roster().seats());
        let routing = Routing::check(&settings)?;
        let is_adopted = |pod: &PodSettings| {
            adopted.iter().any(|it| it.facts.name == pod.facts.name || it.url == pod.url)
        };
        let is_as_before = |seat: &PodEntry| {
            let is_listed = settings.pods.contains(&seat.settings);
            (is_listed || !before.pods.contains(&seat.settings)) && !is_adopted(&seat.settings)
        };
        let (mut seats, leaving): (Vec<_>, Vec<_>) =
            self.roster().seats().iter().cloned().partition(is_as_before);
        let is_new = |pod: &&PodSettings| !before.pods.contains(pod) || is_adopted(pod);
        let coming: Vec<_> = settings.pods.iter().filter(is_new).cloned().collect();
        check_pods(&seats, (&coming, &settings), &routing)?;
        for seat in &seats {
            may_say_nothing(&seat.settings, &routing)?;
        }
        for seat in &seats {
            let pod = seat.pod.facts().name.to_string();
            let allowed = seat.endpoint.may_be_called(&settings.reach);
            allowed.map_err(|cause| ApplyError::Address { pod, cause })?;
        }
        if seats.len() + coming.len() > self.slots {
            return Err(NoSlot { capacity: self.slots, leaving: 0 }.into());
        }
        *self.routing.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routing);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.sampler.set(&self.settings());
        self.events().set_rules(self.settings().event_rules);
        let reach = &self.settings().reach;
        for seat in &seats {
            seat.endpoint.set_reach(reach);
            // Another key makes no other pod: what is known of its cache stays.
            keep_or_show_key(&seat.endpoint, &seat.settings);
            self.bind(seat);
        }
        // Whoever only comes anew is called meanwhile too.
        let former = |new: &PodSettings| {
            leaving.iter().find(|seat| is_same_engine(&seat.settings, new)).cloned()
        };
        self.seat(seats.iter().cloned().chain(coming.iter().filter_map(former)).collect());
        leaving.iter().for_each(|seat| self.take_out(seat));
        if !coming.is_empty() {
            // The check above counts on it.
            self.sweep_leaving();
        }
        for new in coming {
            let former = former(&new);
            self.take_in(&mut seats, new, former.as_ref())?;
        }
        self.seat(seats);
        Ok(())
    }

    /// A pod said what it serves.
    pub(crate) fn introduce(&self, url: &str, cards: &Arc<[Value]>) {
        let _changing = lock(&self.changing);
        let mut seats = self.roster().seats().to_vec();
        for seat in seats.iter_mut().filter(|seat| seat.settings.url == url) {
            let facts = introduced(&seat.settings, cards);
            seat.cards = Arc::clone(cards);
            if facts != *seat.pod.facts() {
                seat.pod = seat.pod.with_facts(facts);
            }
            self.bind(seat);
        }
        self.seat(seats);
    }

    /// Lets those who left give back their slots in the index.
    fn sweep_leaving(&self) {
        let mut writer = self.index().writer();
        while self.index().stats().leaving > 0 {
            writer.sweep(SWEPT_BLOCKS);
        }
    }

    /// A pod that was checked gets a seat. If it had one before and is still the same engine, it goes on.
    fn take_in(
        &self,
        seats: &mut Vec<PodEntry>,
        settings: PodSettings,
        former: Option<&PodEntry>,
    ) -> Result<(), ApplyError> {
        let name = settings.facts.name.clone();
        let same = seats.iter().find(|seat| seat.settings.url == settings.url);
        let block_size = former.or(same).and_then(|seat| seat.block_size);
        let (endpoint, cards, is_asked) = match former.or(same) {
            Some(PodEntry { endpoint, cards, is_asked, .. }) => {
                (Arc::clone(endpoint), Arc::clone(cards), Arc::clone(is_asked))
            }
            None => {
                (Arc::new(endpoint(&settings, &self.settings())?), Arc::default(), Arc::default())
            }
        };
        let facts = introduced(&settings, &cards);
        let (id, feeder) = match &settings.events {
            None => (self.guess(&settings)?, None),
            Some(source) => {
                let pod: Arc<str> = name.as_str().into();
                let id = self
                    .events()
                    .add(&pod, serving(&settings, &facts.models, &self.settings())?)?;
                (id, self.feed(&pod, source, (&endpoint, settings.facts.rank)))
            }
        };
        let pod = match former {
            Some(seat) => {
                endpoint.set_reach(&self.settings().reach);
                keep_or_show_key(&endpoint, &settings);
                seat.pod.anew(id, facts)
            }
            None => {
                let pod = FleetPod::new(id, facts);
                // Until it has answered a probe, nobody knows what it serves.
                pod.vitals().set_health(Health::Down);
                endpoint.show(pod.vitals());
                pod
            }
        };
        let vitals = pod.vitals();
        if pod.facts().models.is_empty() && vitals.health() == Health::Up {
            vitals.set_health(Health::Down);
        }
        vitals.set_trust(if settings.events.is_some() {
            EventTrust::Unsure
        } else {
            EventTrust::Guessed
        });
        let is_recalled = self.events().is_unconfirmed(name.as_str());
        vitals.set_freshness(if is_recalled { 0.0 } else { 1.0 });
        seats.push(PodEntry { settings, pod, endpoint, cards, block_size, feeder, is_asked });
        Ok(())
    }

    fn take_out(&self, seat: &PodEntry) {
        if let Some(feeder) = &seat.feeder {
            feeder.abort();
        }
        self.memory.0.remove(seat.pod.id());
        if !self.events().remove(seat.pod.facts().name.as_str()) {
            self.index().remove_pod(seat.pod.id());
        }
    }

    pub(crate) fn seat(&self, seats: Vec<PodEntry>) {
        let roster = FleetSnapshot::new(seats, self.routing().aliases());
        *self.roster.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(roster);
    }

    /// Takes a pod into the index that says nothing of its cache. Never silently: what is believed of it is a
    /// guess.
    fn guess(&self, pod: &PodSettings) -> Result<PodId, NoSlot> {
        let id = self.index().add_pod()?;
        let name = &pod.facts.name;
        let Some(tokens) = pod.facts.kv_tokens else {
            tracing::warn!(pod = %name, "sends no cache events: for a while after a prompt was sent there it is guessed to be cached; give `events`, or `kv_tokens` for a better guess");
            return Ok(id);
        };
        tracing::warn!(pod = %name, tokens, "sends no cache events: what it holds is guessed from what it is sent");
        self.memory.0.add(id, tokens);
        Ok(id)
    }

    /// Starts to listen to a pod's engine, if it is the engine that speaks.
    fn feed(
        &self,
        pod: &Arc<str>,
        source: &EventSource,
        (endpoint, rank): (&Arc<Endpoint>, Option<u32>),
    ) -> Option<AbortHandle> {
        let (events, clock, pod) = (Arc::clone(self.events()), self.clock(), Arc::clone(pod));
        let task = TaskName::new(&format!("cache events of {pod}"));
        let fed = match source {
            EventSource::Elsewhere => return None,
            EventSource::ZeroMq(address) => {
                let (address, judge) = (address.clone(), judge(endpoint));
                self.background().spawn(named(task, async move {
                    let new = || ZeroMq::new(Arc::clone(&pod), address.clone());
                    let make = || new().with_dial_policy(Arc::clone(&judge));
                    supervise(make, &events, clock).await;
                }))
            }
            EventSource::Asked => {
                let endpoint = Arc::clone(endpoint);
                let asked = EventSourceProbe { pod, endpoint, rank: rank.unwrap_or(0) };
                self.background().spawn(named(task, async move {
                    asked.follow(events, clock).await;
                }))
            }
        };
        Some(fed.abort_handle())
    }
}

/// Whether all that come can, beside those who are there.
fn check_pods(
    there: &[PodEntry],
    (coming, settings): (&[PodSettings], &Settings),
    routing: &Routing,
) -> Result<(), ApplyError> {
    for (at, pod) in coming.iter().enumerate() {
        let name = &pod.facts.name;
        let is_there = there.iter().any(|seat| seat.pod.facts().name == *name);
        if is_there || coming[..at].iter().any(|other| other.facts.name == *name) {
            return Err(ApplyError::Twice(name.to_string()));
        }
        endpoint(pod, settings)?;
        may_say_nothing(pod, routing)?;
        if let Some(source) = &pod.events {
            serving(pod, &[], settings)?;
            may_be_heard(source, settings)
                .map_err(|cause| ApplyError::Address { pod: name.to_string(), cause })?;
        }
    }
    Ok(())
}

/// A pod that never tells what it holds needs profiles that can do without.
fn may_say_nothing(pod: &PodSettings, routing: &Routing) -> Result<(), ApplyError> {
    match routing.refuses_without_events() {
        Some(profile) if pod.events.is_none() => Err(ApplyError::WithoutEvents {
            pod: pod.facts.name.to_string(),
            profile: profile.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Events come from where pods may be, by the rules of the moment when somebody connects.
pub(crate) fn judge(endpoint: &Arc<Endpoint>) -> DialPolicy {
    let (endpoint, is_told) = (Arc::clone(endpoint), AtomicBool::new(false));
    Arc::new(move |address| {
        let judged = endpoint.admits(address).map_err(|forbidden| forbidden.to_string());
        if let (Err(why), false) = (&judged, is_told.swap(judged.is_err(), Relaxed)) {
            tracing::warn!(pod = endpoint.url(), "its cache events are not taken: {why}");
        }
        judged
    })
}

/// The same before anybody does, as far as addresses are numbers.
fn may_be_heard(source: &EventSource, settings: &Settings) -> Result<(), EndpointError> {
    let EventSource::ZeroMq(address) = source else { return Ok(()) };
    for place in std::iter::once(&address.publisher).chain(&address.replay) {
        if let Ok(place) = place.parse::<SocketAddr>() {
            settings.reach.admit(place.ip())?;
        }
    }
    Ok(())
}

fn endpoint(pod: &PodSettings, settings: &Settings) -> Result<Endpoint, ApplyError> {
    let endpoint = Endpoint::new(&pod.url, settings.breaker, settings.workers.get())
        .and_then(|endpoint| endpoint.within(&settings.reach))
        .map_err(|cause| ApplyError::Address { pod: pod.facts.name.to_string(), cause })?;
    show_key(&endpoint, pod)?;
    Ok(endpoint)
}

/// Whether the engine that a pod was is the one it is now, whatever it is called and whatever else is said of it.
fn is_same_engine(former: &PodSettings, new: &PodSettings) -> bool {
    let engine = |pod: &PodSettings| (pod.facts.rank, pod.url.clone(), pod.key_file.clone());
    engine(former) == engine(new)
}

/// What is configured of a pod, and by its own word: the models, if they are not configured, and what it adapts them by
/// besides what is.
fn introduced(pod: &PodSettings, cards: &[Value]) -> PodFacts {
    let mut facts = pod.facts.clone();
    let name = |card: &Value| card["id"].as_str().map(Name::from);
    let is_base = |card: &&Value| !card["parent"].is_string();
    if facts.models.is_empty() {
        facts.models = cards.iter().filter(is_base).filter_map(name).collect();
    }
    for lora in cards.iter().filter(|card| !is_base(card)).filter_map(name) {
        if !facts.loras.contains(&lora) {
            facts.loras.push(lora);
        }
    }
    facts
}

/// The pod is shown the key that is in its file now, or if there is none any more the one before.
fn keep_or_show_key(endpoint: &Endpoint, pod: &PodSettings) {
    if let Err(error) = show_key(endpoint, pod) {
        tracing::error!("{error}; the key that it was shown before stays");
    }
}

/// From now on the pod is shown the key that is in its file now.
fn show_key(endpoint: &Endpoint, pod: &PodSettings) -> Result<(), ApplyError> {
    let Some(file) = &pod.key_file else { return Ok(()) };
    let key = authorization(file).map_err(|cause| {
        let (pod, file) = (pod.facts.name.to_string(), file.clone());
        ApplyError::Key { pod, file, cause }
    })?;
    endpoint.set_key(Some(key));
    Ok(())
}

#[cfg(test)]
mod tests;
