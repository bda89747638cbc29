//! Who may upload at the same time, and how slowly.
//!
//! Each upload has a thread that writes it, so there are few, and a client that sends one byte now
//! and then would keep the others out. A tenant has at most a part of them, and an upload must keep
//! a minimum rate, except for a while that fast bytes earn.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wornpath_index::Moment;

/// Maximum concurrent uploads of all tenants, and of one.
pub(crate) const UPLOADS: usize = 64;
pub(crate) const TENANT_UPLOADS: usize = 16;
/// Minimum bytes per second.
pub(crate) const RATE: u64 = 1 << 10;

/// Uploads in progress, by owner.
#[derive(Default)]
pub(crate) struct UploadSlots(Mutex<BTreeMap<String, usize>>);

/// The slot of one upload; given back when dropped.
pub(crate) struct UploadSlot<'a> {
    slots: &'a UploadSlots,
    owner: String,
}

impl UploadSlots {
    /// A slot, or the limit that is reached. Without tenants, all uploads have one owner.
    pub(crate) fn take(&self, owner: &str) -> Result<UploadSlot<'_>, usize> {
        let mut slots = self.lock();
        let most = if owner.is_empty() { UPLOADS } else { TENANT_UPLOADS };
        if slots.values().sum::<usize>() >= UPLOADS {
            return Err(UPLOADS);
        }
        let own = slots.entry(owner.to_owned()).or_default();
        if *own >= most {
            return Err(most);
        }
        *own += 1;
        Ok(UploadSlot { slots: self, owner: owner.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UploadSlot<'_> {
    fn drop(&mut self) {
        let mut slots = self.slots.lock();
        if let Some(own) = slots.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                slots.remove(&self.owner);
            }
        }
    }
}

/// When an upload is too slow.
pub(crate) struct UploadPace {
    /// How far ahead of the minimum rate an upload can be.
    slack: Duration,
    deadline: Moment,
}

impl UploadPace {
    /// An upload that begins now.
    pub(crate) fn start(now: Moment, slack: Duration) -> Self {
        Self { slack, deadline: now.saturating_add(slack) }
    }

    /// Bytes have come; each moves the deadline.
    pub(crate) fn received(&mut self, now: Moment, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / RATE as f64);
        let latest = now.saturating_add(self.slack);
        self.deadline = self.deadline.saturating_add(earned).min(latest);
    }

    /// The time left for the next bytes.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.deadline.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_part_of_the_slots_and_another_one_finds_some() {
        let slots = UploadSlots::default();
        let own: Vec<_> = (0..TENANT_UPLOADS).map(|_| slots.take("a").ok().unwrap()).collect();
        assert_eq!(slots.take("a").err(), Some(TENANT_UPLOADS));
        assert!(slots.take("b").is_ok());
        drop(own);
        assert!(slots.lock().is_empty(), "a tenant without uploads is removed");
        let all: Vec<_> = (0..UPLOADS).map(|_| slots.take("").ok().unwrap()).collect();
        assert_eq!(slots.take("").err(), Some(UPLOADS));
        assert_eq!(slots.take("a").err(), Some(UPLOADS));
        drop(all);
        assert!(slots.take("a").is_ok());
    }

    #[test]
    fn an_upload_below_the_minimum_rate_runs_out_of_time_whatever_it_sent_before() {
        let second = Duration::from_secs(1);
        let mut pace = UploadPace::start(Moment::from_secs(100), 60 * second);
        pace.received(Moment::from_secs(101), 1 << 30);
        assert_eq!(
            pace.left(Moment::from_secs(101)),
            60 * second,
            "fast bytes earn no more than that"
        );
        let mut now = Moment::from_secs(101);
        let mut bytes = 0;
        while pace.left(now) >= 8 * second {
            now += 8 * second;
            pace.received(now, 1);
            bytes += 1;
            assert!(bytes < 20, "one byte in eight seconds goes on and on");
        }
        let mut steady = UploadPace::start(Moment::ZERO, 60 * second);
        for passed in 1..100_000 {
            assert!(steady.left(Moment::at(passed * second)) > 50 * second);
            steady.received(Moment::at(passed * second), 1 << 10);
        }
    }
}
