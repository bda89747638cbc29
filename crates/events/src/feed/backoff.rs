//! When the next question may be asked: at most one in a pause, and fewer the longer they fail.

use super::rules::FeedRules;
use std::time::Duration;
use wornpath_index::Moment;

#[derive(Debug, Default)]
pub(super) struct Backoff {
    last: Option<Moment>,
    failures: u32,
}

impl Backoff {
    pub(super) fn ready_at(&self, rules: &FeedRules) -> Moment {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = rules.pause.saturating_mul(factor).min(rules.longest_pause.max(rules.pause));
        self.last.map_or(Duration::ZERO, |last| last + pause)
    }

    pub(super) fn asked(&mut self, now: Moment) {
        self.last = Some(now);
    }

    pub(super) fn give_back(&mut self) {
        self.last = None;
    }

    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}
