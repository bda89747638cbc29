//! How many requests a pod gets at once.
//!
//! Too few and the engine's batch is not full; too many and they wait where nobody can take them back. The window
//! opens while an engine keeps up and closes to what it runs when requests queue there for want of
//! memory; an engine that refuses a request gets half as many. Requests that wait for their turn in
//! the next step are no sign of anything: how many of those there are is bounded by their prefill.

use crate::run::RunCapacity;

/// An engine whose cache is fuller than this has no memory for more.
const FULL: f64 = 0.95;

/// What an engine says about itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PodLoad {
    /// Requests that it computes.
    pub running: usize,
    /// Requests that wait in it.
    pub waiting: usize,
    /// The share of its cache in use.
    pub kv_usage: f64,
}

/// The window of one pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    most: usize,
    limit: usize,
    prefill_tokens: usize,
}

impl Window {
    /// A window for an engine that runs at most `most` sequences and computes at most `step_tokens` at once.
    #[must_use]
    pub const fn new(most: usize, step_tokens: usize) -> Self {
        Self { most, limit: most, prefill_tokens: 2 * step_tokens }
    }

    /// What the pod can take.
    #[must_use]
    pub const fn room(&self) -> RunCapacity {
        RunCapacity { requests: self.limit, prefill_tokens: self.prefill_tokens }
    }

    /// Takes in what an engine says.
    pub fn observe(&mut self, vitals: PodLoad) {
        if vitals.waiting > 0 && vitals.kv_usage > FULL {
            self.limit = (vitals.running + 1).min(self.limit).max(1);
        } else if vitals.running + vitals.waiting >= self.limit {
            self.limit = (self.limit + self.limit.div_ceil(8)).min(self.most);
        }
    }

    /// The engine has refused a request because it has too many.
    pub fn refused(&mut self) {
        self.limit = (self.limit / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_closes_to_what_runs_and_opens_again() {
        let mut window = Window::new(256, 8_192);
        window.observe(PodLoad { running: 20, waiting: 3, kv_usage: 0.99 });
        assert_eq!(window.room().requests, 21);
        window.observe(PodLoad { running: 12, waiting: 0, kv_usage: 0.5 });
        assert_eq!(window.room().requests, 21, "it is not used up");
        for _ in 0..100 {
            let running = window.room().requests;
            window.observe(PodLoad { running, waiting: 0, kv_usage: 0.5 });
        }
        assert_eq!(window.room().requests, 256);
        window.refused();
        assert_eq!(window.room(), RunCapacity { requests: 128, prefill_tokens: 16_384 });
    }
}
