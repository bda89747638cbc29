//! Which pod a session was last sent to, forgotten after a while: what `session_affinity` and `session`
//! have in common.
//!
//! A bounded table. Every session has one entry in a circle of reminders; when a reminder comes up,
//! its session is dropped if it has expired or the table is full, and reminded of again otherwise. So
//! a session that is used costs nothing but its own entry, and no clock has to run.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wornpath_index::{Moment, PodId};
use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::plugin::Assembly;
use crate::slot::Reads;
use crate::stage::Decision;
use crate::values::SessionKey;

/// How long, of a plugin that remembers sessions.
pub(super) const TTL: Parameter =
    Parameter::with_default("ttl", Takes::Time, "10m", "How long an idle session is remembered.");

/// How many, of a plugin that remembers sessions.
pub(super) const CAPACITY: Parameter = Parameter::with_default(
    "capacity",
    Takes::Whole(1, 100_000_000),
    "100000",
    "How many sessions are remembered.",
);

/// Where the session of a request was last, for a plugin with [`TTL`] and [`CAPACITY`].
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

    /// Where the request's session was last; none for one that is new or says nothing of a session.
    pub(super) fn find(&self, scene: &Decision<'_>) -> Option<PodId> {
        self.sessions().find(scene.read(&self.session)?.0, scene.now())
    }

    /// The request's session, if it has one, is with this pod from now on.
    pub(super) fn remember(&self, scene: &Decision<'_>, pod: Candidate) {
        if let Some(session) = scene.read(&self.session) {
            self.sessions().remember(session.0, scene.pod(pod).id(), scene.now());
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Sessions {
    entries: HashMap<u64, SessionEntry>,
    reminders: VecDeque<(Moment, u64)>,
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
        Self { entries: HashMap::new(), reminders: VecDeque::new(), capacity: capacity.max(1), ttl }
    }

    /// Where the session was last, unless that is too long ago.
    fn find(&self, session: u64, now: Moment) -> Option<PodId> {
        self.entries.get(&session).filter(|entry| entry.expires > now).map(|entry| entry.pod)
    }

    /// The session is with this pod from now on.
    fn remember(&mut self, session: u64, pod: PodId, now: Moment) {
        self.drop_expired(now);
        let expires = now.saturating_add(self.ttl);
        if self.entries.insert(session, SessionEntry { pod, expires }).is_none() {
            self.reminders.push_back((expires, session));
            while self.entries.len() > self.capacity {
                self.drop_oldest(session);
            }
        }
    }

    fn drop_expired(&mut self, now: Moment) {
        while let Some((due, session)) = self.reminders.front().copied()
            && due <= now
        {
            self.reminders.pop_front();
            match self.entries.get(&session) {
                Some(entry) if entry.expires > now => {
                    self.reminders.push_back((entry.expires, session));
                }
                _ => {
                    self.entries.remove(&session);
                }
            }
        }
    }

    /// Drops the session that was reminded of first, passing over those used since, and `newcomer`.
    fn drop_oldest(&mut self, newcomer: u64) {
        for _ in 0..self.reminders.len() {
            let Some((due, session)) = self.reminders.pop_front() else { return };
            let expires = self.entries.get(&session).map(|entry| entry.expires);
            match expires {
                Some(expires) if expires > due || session == newcomer => {
                    self.reminders.push_back((expires, session));
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
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_session_is_remembered_until_it_has_been_idle_for_its_time() {
        let pod = pods(1)[0];
        let mut sessions = Sessions::new(8, at(10));
        sessions.remember(1, pod, at(0));
        assert_eq!(sessions.find(1, at(9)), Some(pod));
        sessions.remember(1, pod, at(9));
        assert_eq!(sessions.find(1, at(18)), Some(pod));
        assert_eq!(sessions.find(1, at(19)), None);
        assert_eq!(sessions.find(2, at(0)), None);
    }

    #[test]
    fn a_full_table_forgets_the_session_that_was_idle_longest() {
        let pod = pods(1)[0];
        let mut sessions = Sessions::new(2, at(100));
        sessions.remember(1, pod, at(0));
        sessions.remember(2, pod, at(1));
        sessions.remember(1, pod, at(2));
        sessions.remember(3, pod, at(3));
        let known = [1, 2, 3].map(|session| sessions.find(session, at(4)).is_some());
        assert_eq!(known, [true, false, true]);
    }

    proptest! {
        #[test]
        fn the_table_never_lies_and_never_outgrows_its_capacity(
            steps in prop::collection::vec((0..12_u64, 0..3_usize, 0..4_u64), 0..200),
            capacity in 1..10_usize,
        ) {
            let pods = pods(3);
            let mut sessions = Sessions::new(capacity, at(5));
            let mut last: HashMap<u64, (PodId, Moment)> = HashMap::new();
            let mut now = at(0);
            for (session, pod, pass) in steps {
                now += at(pass);
                sessions.remember(session, pods[pod], now);
                last.insert(session, (pods[pod], now));
                for (session, (pod, when)) in &last {
                    let fresh = now < *when + at(5);
                    match sessions.find(*session, now) {
                        Some(found) => prop_assert!(fresh && found == *pod),
                        None => prop_assert!(!fresh || last.len() > capacity),
                    }
                }
                prop_assert_eq!(sessions.find(session, now), Some(pods[pod]));
                prop_assert!(sessions.entries.len() <= capacity);
                prop_assert_eq!(sessions.entries.len(), sessions.reminders.len());
            }
        }
    }
}
