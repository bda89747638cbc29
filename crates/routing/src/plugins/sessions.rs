//! Session table: the pod that each session was last sent to, with a time to live and a capacity.
//! `session_affinity` and `session` share it.
//!
//! Every session has one entry in an expiry queue. When an entry comes to the front, its session is
//! dropped if it has expired or the table is full, and queued again otherwise. So a request of a
//! known session touches only its own entry, and no timer has to run. The order of eviction is
//! approximate: a session that was used since it was queued gets a second round.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wornpath_index::{Moment, PodId};
use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::Assembly;
use crate::slot::{Reads, SessionKey};
use crate::stage::Decision;

/// Time to live of an idle session.
pub(super) const TTL: Parameter =
    Parameter::with_default("ttl", Takes::Time, "10m", "Time to live of an idle session.");

/// Size of the session table.
pub(super) const CAPACITY: Parameter = Parameter::with_default(
    "capacity",
    Takes::Whole(1, 100_000_000),
    "100000",
    "Maximum number of sessions; the one that was idle longest is evicted.",
);

/// The last pod of every session, for a plugin with the parameters [`TTL`] and [`CAPACITY`].
#[derive(Debug)]
pub(super) struct LastPods {
    session: Reads<SessionKey>,
    sessions: Mutex<Sessions>,
}

impl LastPods {
    pub(super) fn new(assembly: &mut Assembly<'_>) -> Self {
        let sessions = Sessions::new(assembly.get(CAPACITY.name), assembly.get(TTL.name));
        Self { session: assembly.reads(), sessions: Mutex::new(sessions) }
    }

    /// The last pod of the request's session; none for a new session or a request without one.
    pub(super) fn find(&self, decision: &Decision<'_>) -> Option<PodId> {
        self.sessions().find(decision.read(&self.session)?.0, decision.now())
    }

    /// Records the pod as the last one of the request's session, if it has one.
    pub(super) fn remember(&self, decision: &Decision<'_>, pod: Candidate) {
        if let Some(session) = decision.read(&self.session) {
            self.sessions().remember(session.0, decision.pod(pod).id(), decision.now());
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Sessions {
    entries: HashMap<u64, SessionEntry>,
    expiry_queue: VecDeque<(Moment, u64)>,
    capacity: usize,
    ttl: Duration,
}

#[derive(Clone, Copy, Debug)]
struct SessionEntry {
    pod: PodId,
    expires: Moment,
}

impl Sessions {
    fn new(capacity: usize, ttl: Duration) -> Self {
        Self {
            entries: HashMap::new(),
            expiry_queue: VecDeque::new(),
            capacity: capacity.max(1),
            ttl,
        }
    }

    /// The session's last pod, unless the entry has expired.
    fn find(&self, session: u64, now: Moment) -> Option<PodId> {
        self.entries.get(&session).filter(|entry| entry.expires > now).map(|entry| entry.pod)
    }

    fn remember(&mut self, session: u64, pod: PodId, now: Moment) {
        self.drop_expired(now);
        let expires = now.saturating_add(self.ttl);
        if self.entries.insert(session, SessionEntry { pod, expires }).is_none() {
            self.expiry_queue.push_back((expires, session));
            while self.entries.len() > self.capacity {
                self.evict_oldest(session);
            }
        }
    }

    fn drop_expired(&mut self, now: Moment) {
        while let Some((due, session)) = self.expiry_queue.front().copied()
            && due <= now
        {
            self.expiry_queue.pop_front();
            match self.entries.get(&session) {
                Some(entry) if entry.expires > now => {
                    self.expiry_queue.push_back((entry.expires, session));
                }
                _ => {
                    self.entries.remove(&session);
                }
            }
        }
    }

    /// Evicts the first session in the queue that was not used since it was queued, but never
    /// `added`.
    fn evict_oldest(&mut self, added: u64) {
        for _ in 0..self.expiry_queue.len() {
            let Some((due, session)) = self.expiry_queue.pop_front() else { return };
            let expires = self.entries.get(&session).map(|entry| entry.expires);
            match expires {
                Some(expires) if expires > due || session == added => {
                    self.expiry_queue.push_back((expires, session));
                }
                _ => {
                    self.entries.remove(&session);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wornpath_index::{Index, IndexLimits};

    fn pods(count: usize) -> Vec<PodId> {
        let index = Index::new(IndexLimits::default(), 1);
        (0..count).map(|_| index.add_pod().unwrap()).collect()
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    #[test]
    fn a_session_expires_after_its_idle_time() {
        let pod = pods(1)[0];
        let mut sessions = Sessions::new(8, Duration::from_secs(10));
        sessions.remember(1, pod, at(0));
        assert_eq!(sessions.find(1, at(9)), Some(pod));
        sessions.remember(1, pod, at(9));
        assert_eq!(sessions.find(1, at(18)), Some(pod));
        assert_eq!(sessions.find(1, at(19)), None);
        assert_eq!(sessions.find(2, at(0)), None);
    }

    #[test]
    fn a_full_table_evicts_the_session_that_was_idle_longest() {
        let pod = pods(1)[0];
        let mut sessions = Sessions::new(2, Duration::from_secs(100));
        sessions.remember(1, pod, at(0));
        sessions.remember(2, pod, at(1));
        sessions.remember(1, pod, at(2));
        sessions.remember(3, pod, at(3));
        let known = [1, 2, 3].map(|session| sessions.find(session, at(4)).is_some());
        assert_eq!(known, [true, false, true]);
    }

    proptest! {
        #[test]
        fn the_table_returns_only_last_pods_and_stays_within_its_capacity(
            steps in prop::collection::vec((0..12_u64, 0..3_usize, 0..4_u64), 0..200),
            capacity in 1..10_usize,
        ) {
            let pods = pods(3);
            let mut sessions = Sessions::new(capacity, Duration::from_secs(5));
            let mut last: HashMap<u64, (PodId, Moment)> = HashMap::new();
            let mut now = at(0);
            for (session, pod, pass) in steps {
                now += Duration::from_secs(pass);
                sessions.remember(session, pods[pod], now);
                last.insert(session, (pods[pod], now));
                for (session, (pod, when)) in &last {
                    let fresh = now < *when + Duration::from_secs(5);
                    match sessions.find(*session, now) {
                        Some(found) => prop_assert!(fresh && found == *pod),
                        None => prop_assert!(!fresh || last.len() > capacity),
                    }
                }
                prop_assert_eq!(sessions.find(session, now), Some(pods[pod]));
                prop_assert!(sessions.entries.len() <= capacity);
                prop_assert_eq!(sessions.entries.len(), sessions.expiry_queue.len());
            }
        }
    }
}
