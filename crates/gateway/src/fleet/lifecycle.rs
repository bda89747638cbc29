//! Pod lifecycle: adding, draining and removing one pod, or applying all changes of a new
//! configuration.
//!
//! A configuration is applied as a whole or not at all, so all of its pods are checked before
//! anything changes.

use crate::fleet::block_size;
use crate::fleet::engine_calls::fetch;
use crate::fleet::learning::{self, facts_with};
use crate::fleet::leaving::{is_needed, may_stay};
use crate::fleet::registry::{ApplyError, PodRegistry, lock, served_model};
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::routes::RouteTable;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::named;
use bytes::Bytes;
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::AbortHandle;
use wornpath_config::authorization;
use wornpath_config::{EventSource, PodConfig, Settings};
use wornpath_events::{Clock, DialPolicy, EventPods, PodName, ZeroMq, ZmqAddress, supervise};
use wornpath_execution::Endpoint;
use wornpath_execution::EndpointError;
use wornpath_index::{NoSlot, PodId};
use wornpath_routing::{EventTrust, FleetPod, Health};

/// Blocks swept at a time when slots are needed immediately.
const SWEPT_BLOCKS: usize = 1 << 16;

impl PodRegistry {
    /// Adds a pod. It gets requests once its models are known.
    ///
    /// # Errors
    /// If its name is in use, its address is invalid or not allowed, or the index has no slot left.
    pub fn add_pod(&self, config: PodConfig) -> Result<(), ApplyError> {
        self.add_pod_after(config, &[])
    }

    /// Like [`Self::add_pod`]. If one of the `former` entries is the same engine, the pod keeps its
    /// health, load and connections.
    ///
    /// # Errors
    /// As [`Self::add_pod`].
    pub(crate) fn add_pod_after(
        &self,
        config: PodConfig,
        former: &[PodEntry],
    ) -> Result<(), ApplyError> {
        let _changing = lock(&self.changing);
        let is_replaced = |entry: &PodEntry| {
            let is_same = entry.pod.facts().name == config.facts.name;
            entry.is_leaving && (is_same || is_same_engine(&entry.config, &config))
        };
        let (replaced, mut entries): (Vec<_>, Vec<_>) =
            self.snapshot().entries().iter().cloned().partition(is_replaced);
        let added = std::slice::from_ref(&config);
        check_pods(&entries, added, &self.settings(), &self.routes())?;
        replaced.iter().for_each(|entry| self.release(entry));
        if entries.len() + 1 + self.index().stats().leaving > self.slots {
            self.sweep_leaving();
        }
        let mut formers = former.iter().chain(&replaced);
        let former = formers.find(|entry| is_same_engine(&entry.config, &config));
        self.insert(&mut entries, config, former)?;
        self.publish(entries);
        Ok(())
    }

    /// Removes a pod at once; its requests in flight continue. Returns whether it existed.
    pub fn remove_pod(&self, name: &str) -> bool {
        let _changing = lock(&self.changing);
        let mut entries = self.snapshot().entries().to_vec();
        let Some(at) = entries.iter().position(|entry| *entry.pod.facts().name.as_str() == *name)
        else {
            return false;
        };
        let entry = entries.remove(at);
        self.publish(entries);
        self.release(&entry);
        true
    }

    /// Drains a pod: it gets no new requests. Returns whether it exists.
    pub fn drain_pod(&self, name: &str) -> bool {
        let snapshot = self.snapshot();
        let Some(entry) = snapshot.named(name) else { return false };
        entry.pod.state().set_health(Health::Draining);
        true
    }

    /// Ends the draining of a pod: it gets requests again once it has answered a probe. Returns
    /// whether it exists.
    pub fn resume_pod(&self, name: &str) -> bool {
        let snapshot = self.snapshot();
        let Some(entry) = snapshot.named(name) else { return false };
        if entry.pod.state().health() == Health::Draining {
            entry.pod.state().set_health(Health::Down);
        }
        true
    }

    /// Checks new settings and applies them; invalid ones change nothing. Listeners and the number
    /// of threads stay as they are in any case.
    ///
    /// # Errors
    /// Why the settings cannot be applied.
    pub fn apply(&self, settings: Settings) -> Result<(), ApplyError> {
        self.apply_adopting(settings, &[])
    }

    /// Like [`Self::apply`], where pods in `adopted`, of other owners so far, are now listed.
    ///
    /// # Errors
    /// Why the settings cannot be applied.
    pub(crate) fn apply_adopting(
        &self,
        mut settings: Settings,
        adopted: &[PodConfig],
    ) -> Result<(), ApplyError> {
        let _changing = lock(&self.changing);
        let before = self.settings();
        learning::carry_over(&before, &mut settings);
        block_size::carry_over(&before, &mut settings, self.snapshot().entries());
        let routing = RouteTable::check(&settings)?;
        let is_adopted = |pod: &PodConfig| {
            adopted.iter().any(|it| it.facts.name == pod.facts.name || it.url() == pod.url())
        };
        let is_kept = |entry: &PodEntry| {
            let is_in = |pods: &[PodConfig]| pods.iter().any(|pod| pod.is_same_pod(&entry.config));
            let is_listed = is_in(&settings.pods) && !entry.is_leaving;
            let is_other = !is_in(&before.pods) && !entry.is_leaving;
            (is_listed || is_other) && !is_adopted(&entry.config)
        };
        let (mut entries, removed): (Vec<_>, Vec<_>) =
            self.snapshot().entries().iter().cloned().partition(is_kept);
        let is_known = |pod: &PodConfig| before.pods.iter().any(|known| known.is_same_pod(pod));
        let is_new = |pod: &&PodConfig| !is_known(pod) || is_adopted(pod);
        let added: Vec<_> = settings.pods.iter().filter(is_new).cloned().collect();
        check_pods(&entries, &added, &settings, &routing)?;
        for entry in &entries {
            check_event_policy(&entry.config, &routing)?;
        }
        for entry in &entries {
            let pod = entry.pod.facts().name.to_string();
            let allowed = entry.endpoint.check_egress(&settings.egress_policy);
            allowed.map_err(|cause| ApplyError::Address { pod, cause })?;
        }
        if entries.len() + added.len() > self.slots {
            return Err(NoSlot { capacity: self.slots, leaving: 0 }.into());
        }
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routing);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.sampler.reset();
        self.events().set_rules(self.settings().event_rules);
        let reach = &self.settings().egress_policy;
        for entry in &mut entries {
            entry.endpoint.set_egress_policy(reach);
            // A new key does not make another pod: the state of its cache stays.
            reload_key(&entry.endpoint, &entry.config);
            self.bind_model(entry);
            self.follow_events(entry);
        }
        let free = self.slots - entries.len() - added.len();
        let (mut leaving, removed): (Vec<_>, Vec<_>) = removed.into_iter().partition(|entry| {
            may_stay(entry, &added) && entry.endpoint.check_egress(reach).is_ok()
        });
        let surplus = leaving.split_off(free.min(leaving.len()));
        let removed = [removed, surplus].concat();
        // Pods that are replaced by new entries stay routable in between.
        let former = |new: &PodConfig| {
            removed.iter().find(|entry| is_same_engine(&entry.config, new)).cloned()
        };
        let formers = added.iter().filter_map(former);
        self.publish([&entries[..], &leaving[..]].concat().into_iter().chain(formers).collect());
        removed.iter().for_each(|entry| self.release(entry));
        for entry in &mut leaving {
            entry.is_leaving = true;
            if added.iter().any(|new| new.facts.name == entry.pod.facts().name) {
                self.give_up_name(entry)?;
            }
        }
        if !added.is_empty() {
            // The check of `slots` above assumes that removed pods occupy none.
            self.sweep_leaving();
        }
        for new in added {
            let former = former(&new);
            self.insert(&mut entries, new, former.as_ref())?;
        }
        let (staying, leaving): (Vec<_>, Vec<_>) =
            leaving.into_iter().partition(|entry| is_needed(entry, &entries));
        for entry in &staying {
            let pod = &entry.pod.facts().name;
            tracing::info!(%pod, "pod serves on until those that take its place answer");
        }
        entries.extend(staying);
        self.publish(entries);
        leaving.iter().for_each(|entry| self.release(entry));
        Ok(())
    }

    /// Stores the model cards that the engine at `url` reported.
    pub(crate) fn set_models(&self, url: &str, cards: &Arc<[Value]>) {
        let _changing = lock(&self.changing);
        let mut entries = self.snapshot().entries().to_vec();
        for entry in entries.iter_mut().filter(|entry| entry.config.url() == url) {
            let facts = facts_with(&entry.config, &entry.endpoint, cards, &entry.engine);
            entry.cards = Arc::clone(cards);
            if facts != *entry.pod.facts() {
                entry.pod = entry.pod.with_facts(facts);
            }
            self.bind_model(entry);
            self.follow_events(entry);
        }
        self.publish(entries);
    }

    /// Frees the slots of removed pods in the index.
    pub(crate) fn sweep_leaving(&self) {
        let mut writer = self.index().writer();
        while self.index().stats().leaving > 0 {
            writer.sweep(SWEPT_BLOCKS);
        }
    }

    /// Adds the entry of a checked pod. The entry keeps the state of `former`, the same engine
    /// before.
    fn insert(
        &self,
        entries: &mut Vec<PodEntry>,
        config: PodConfig,
        former: Option<&PodEntry>,
    ) -> Result<(), ApplyError> {
        let name = config.facts.name.clone();
        let same = entries.iter().find(|entry| entry.config.url() == config.url());
        let known = former.or(same);
        let endpoint = match known {
            Some(entry) => Arc::clone(&entry.endpoint),
            None => Arc::new(new_endpoint(&config, &self.settings())?),
        };
        let cards = known.map(|entry| Arc::clone(&entry.cards)).unwrap_or_default();
        let was_queried = known.map(|entry| Arc::clone(&entry.was_queried)).unwrap_or_default();
        let block_size = known.and_then(|entry| entry.block_size);
        let engine = known.map(|entry| Arc::clone(&entry.engine)).unwrap_or_default();
        let facts = facts_with(&config, &endpoint, &cards, &engine);
        // Without a model by which to hash their blocks, events are followed once there is one.
        let served = served_model(&config, &facts.models, &self.settings());
        let (id, source, event_task) = match config.event_source().cloned().zip(served) {
            None => (self.add_approximate(&config)?, None, None),
            Some((source, served)) => {
                let pod: Arc<str> = name.as_str().into();
                let id = self.events().add(&pod, served)?;
                let task = self.subscribe(&pod, &source, &endpoint, config.facts.rank);
                (id, Some(source), task)
            }
        };
        let pod = match former {
            Some(entry) => {
                endpoint.set_egress_policy(&self.settings().egress_policy);
                reload_key(&endpoint, &config);
                if entry.is_leaving && entry.pod.state().health() == Health::Draining {
                    entry.pod.state().set_health(Health::Up);
                }
                entry.pod.anew(id, facts)
            }
            None => {
                let pod = FleetPod::new(id, facts);
                // Its models are unknown until it has answered a probe.
                pod.state().set_health(Health::Down);
                endpoint.add_pod_state(pod.state());
                pod
            }
        };
        if self.settings().epp.is_some() && pod.facts().address.is_none() {
            tracing::warn!(
                pod = %name,
                url = endpoint.url(),
                "the endpoint picker cannot choose this pod: data planes need an IP address and no \
                 path; give its URL an IP address, or find it by `discovery`"
            );
        }
        let pod_state = pod.state();
        if pod.facts().models.is_empty() && pod_state.health() == Health::Up {
            pod_state.set_health(Health::Down);
        }
        pod_state.set_trust(if source.is_none() {
            EventTrust::Guessed
        } else {
            EventTrust::Unsure
        });
        let is_recalled = self.events().is_unconfirmed(name.as_str());
        pod_state.set_freshness(if is_recalled { 0.0 } else { 1.0 });
        let mut entry = PodEntry {
            config,
            pod,
            endpoint,
            cards,
            block_size,
            engine,
            source,
            event_task,
            was_queried,
            is_leaving: false,
        };
        self.follow_events(&mut entry);
        entries.push(entry);
        Ok(())
    }

    /// Frees what a removed entry holds: its event subscription and its blocks in the index.
    pub(crate) fn release(&self, entry: &PodEntry) {
        if let Some(event_task) = &entry.event_task {
            event_task.abort();
        }
        self.history.0.remove(entry.pod.id());
        if !self.events().remove(entry.pod.facts().name.as_str()) {
            self.index().remove_pod(entry.pod.id());
        }
    }

    pub(crate) fn publish(&self, entries: Vec<PodEntry>) {
        let snapshot = FleetSnapshot::new(entries, self.routes().aliases());
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// Adds a pod without cache events to the index, with a warning: its cache is only
    /// approximated.
    fn add_approximate(&self, pod: &PodConfig) -> Result<PodId, NoSlot> {
        let id = self.index().add_pod()?;
        let name = &pod.facts.name;
        if pod.asks_for_events || !pod.events.is_empty() {
            // Logged once it is known what its engine says.
            return Ok(id);
        }
        let Some(tokens) = pod.facts.kv_tokens else {
            tracing::warn!(pod = %name, "pod without cache events: assuming recent prompts are cached; set `events`, or `kv_tokens` for a better approximation");
            return Ok(id);
        };
        tracing::warn!(pod = %name, kv_tokens = tokens, "pod without cache events: approximating its cache from routed prompts");
        self.history.0.add(id, tokens);
        Ok(id)
    }

    /// Subscribes to the events of a pod's engine; none if a sidecar or broker delivers them.
    pub(crate) fn subscribe(
        &self,
        pod: &Arc<str>,
        source: &EventSource,
        endpoint: &Arc<Endpoint>,
        rank: Option<u32>,
    ) -> Option<AbortHandle> {
        let events = Arc::clone(self.events());
        let clock = self.clock();
        let pod = Arc::clone(pod);
        let task = TaskName::new(&format!("cache events of {pod}"));
        let subscription = match source {
            EventSource::Source(_) => return None,
            EventSource::Zmq(address) => {
                let address = address.clone();
                let policy = dial_policy(endpoint);
                self.background().spawn(named(task, async move {
                    let new = || ZeroMq::new(Arc::clone(&pod), address.clone());
                    let make = || new().with_dial_policy(Arc::clone(&policy));
                    supervise(make, &events, clock).await;
                }))
            }
            EventSource::ReportedByEngine => {
                let endpoint = Arc::clone(endpoint);
                let probe = EventSourceProbe { pod, endpoint, rank: rank.unwrap_or(0) };
                self.background().spawn(named(task, async move {
                    probe.follow(events, clock).await;
                }))
            }
        };
        Some(subscription.abort_handle())
    }
}

/// Checks pods that are to be added beside the `existing` ones.
fn check_pods(
    existing: &[PodEntry],
    added: &[PodConfig],
    settings: &Settings,
    routing: &RouteTable,
) -> Result<(), ApplyError> {
    for (at, pod) in added.iter().enumerate() {
        let name = &pod.facts.name;
        let exists = existing.iter().any(|entry| entry.pod.facts().name == *name);
        if exists || added[..at].iter().any(|other| other.facts.name == *name) {
            return Err(ApplyError::DuplicateName(name.to_string()));
        }
        new_endpoint(pod, settings)?;
        check_event_policy(pod, routing)?;
        if let Some(source) = pod.event_source() {
            check_event_addresses(source, settings)
                .map_err(|cause| ApplyError::Address { pod: name.to_string(), cause })?;
        }
    }
    Ok(())
}

/// A pod without cache events is refused if a profile in use requires them.
fn check_event_policy(pod: &PodConfig, routing: &RouteTable) -> Result<(), ApplyError> {
    match routing.refuses_without_events() {
        Some(profile) if pod.events.is_empty() => Err(ApplyError::WithoutEvents {
            pod: pod.facts.name.to_string(),
            profile: profile.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Checks the addresses of an event source against the egress policy. Host names are checked when a
/// connection is made.
fn check_event_addresses(source: &EventSource, settings: &Settings) -> Result<(), EndpointError> {
    let EventSource::Zmq(address) = source else { return Ok(()) };
    for address in std::iter::once(&address.publisher).chain(&address.replay) {
        if let Ok(address) = address.parse::<SocketAddr>() {
            settings.egress_policy.admit(address.ip())?;
        }
    }
    Ok(())
}

fn new_endpoint(pod: &PodConfig, settings: &Settings) -> Result<Endpoint, ApplyError> {
    let endpoint = Endpoint::new(pod.url(), settings.breaker, settings.workers.get())
        .and_then(|endpoint| endpoint.with_egress_policy(&settings.egress_policy))
        .map_err(|cause| ApplyError::Address { pod: pod.facts.name.to_string(), cause })?;
    set_key(&endpoint, pod)?;
    Ok(endpoint)
}

/// Whether two descriptions mean the same engine, whatever else about the pod has changed.
fn is_same_engine(former: &PodConfig, new: &PodConfig) -> bool {
    let engine =
        |pod: &PodConfig| (pod.facts.rank, pod.facts.endpoint.clone(), pod.key_file.clone());
    engine(former) == engine(new)
}

/// Reads the key file of a pod again; if that fails, the previous key stays.
fn reload_key(endpoint: &Endpoint, pod: &PodConfig) {
    if let Err(error) = set_key(endpoint, pod) {
        tracing::error!(%error, "pod key not reloaded; keeping the previous one");
    }
}

/// Sets the key in the pod's key file as the credential of all its calls.
fn set_key(endpoint: &Endpoint, pod: &PodConfig) -> Result<(), ApplyError> {
    let Some(file) = &pod.key_file else { return Ok(()) };
    let key = authorization(file).map_err(|cause| ApplyError::Key {
        pod: pod.facts.name.to_string(),
        file: file.clone(),
        cause,
    })?;
    endpoint.set_key(Some(key));
    Ok(())
}

#[cfg(test)]
mod tests;

/// Interval between two queries: an engine may be restarted with other ports.
const QUERY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval before the first successful query.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A pod that is queried for its event source.
pub(crate) struct EventSourceProbe {
    pub(crate) pod: PodName,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) rank: u32,
}

impl EventSourceProbe {
    /// Subscribes to the source that the pod names, and follows it when it moves; never returns.
    pub(crate) async fn follow(self, events: Arc<EventPods>, clock: Clock) -> Infallible {
        let mut known = self.first_address().await;
        let policy = dial_policy(&self.endpoint);
        loop {
            tracing::info!(pod = %self.pod, source = %known, "event source discovered");
            let new = || ZeroMq::new(Arc::clone(&self.pod), known.clone());
            let make = || new().with_dial_policy(Arc::clone(&policy));
            known = tokio::select! {
                never = supervise(make, &events, clock) => match never {},
                moved = self.moved_from(&known) => moved,
            };
        }
    }

    async fn first_address(&self) -> ZmqAddress {
        let mut is_logged = false;
        loop {
            match self.query().await {
                Ok(address) => return address,
                Err(problem) if !is_logged => {
                    is_logged = true;
                    tracing::warn!(pod = %self.pod, reason = problem, "event source discovery failed");
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits until the pod publishes at another address.
    async fn moved_from(&self, known: &ZmqAddress) -> ZmqAddress {
        loop {
            tokio::time::sleep(QUERY_INTERVAL).await;
            match self.query().await {
                Ok(address) if address != *known => return address,
                _ => {}
            }
        }
    }

    async fn query(&self) -> Result<ZmqAddress, String> {
        let body: Bytes = fetch(&self.endpoint, "/kv_event_sources").await?;
        let authority = self.endpoint.authority().to_str().unwrap_or_default();
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let mut listed = ZmqAddress::listed(&body, host).map_err(|error| error.to_string())?;
        listed
            .remove(&self.rank)
            .ok_or(format!("/kv_event_sources: no entry for rank {}", self.rank))
    }
}

/// Admits the addresses of an event source by the egress policy in force at the time of the
/// connection.
pub(crate) fn dial_policy(endpoint: &Arc<Endpoint>) -> DialPolicy {
    let endpoint = Arc::clone(endpoint);
    let is_logged = AtomicBool::new(false);
    Arc::new(move |address| {
        let admitted = endpoint.admits(address).map_err(|error| error.to_string());
        if let (Err(why), false) = (&admitted, is_logged.swap(admitted.is_err(), Relaxed)) {
            tracing::warn!(url = endpoint.url(), reason = why, "event source refused");
        }
        admitted
    })
}
