//! The window: how many requests a pod gets at once.
//!
//! With too few, the engine's batch is not full; with too many, requests wait in the engine, where
//! the planner cannot take them back. The window grows while the engine keeps up, shrinks to the
//! running requests when others queue for memory, and halves when the engine rejects a request.
//! Requests that wait for the next step signal nothing: the limit on prefill tokens bounds their
//! number.

use crate::run::RunCapacity;

/// An engine whose cache is fuller than this has no memory for more requests.
const FULL: f64 = 0.95;

/// The load that an engine reports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PodLoad {
    /// Running requests.
    pub running: usize,
    /// Requests queued in the engine.
    pub waiting: usize,
    /// The share of its cache in use.
    pub kv_usage: f64,
    /// Tokens that its cache can hold, if it says so.
    pub kv_tokens: Option<usize>,
}

/// The window of one pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    max: usize,
    limit: usize,
    prefill_tokens: usize,
}

impl Window {
    /// The window of an engine that runs at most `max` sequences and computes at most `step_tokens`
    /// per step.
    #[must_use]
    pub const fn new(max: usize, step_tokens: usize) -> Self {
        Self { max, limit: max, prefill_tokens: 2 * step_tokens }
    }

    /// The work that the pod accepts at once.
    #[must_use]
    pub const fn capacity(&self) -> RunCapacity {
        RunCapacity { requests: self.limit, prefill_tokens: self.prefill_tokens }
    }

    /// Adapts the window to a load report.
    pub fn observe(&mut self, load: PodLoad) {
        if load.waiting > 0 && load.kv_usage > FULL {
            self.limit = (load.running + 1).min(self.limit).max(1);
        } else if load.running + load.waiting >= self.limit {
            self.limit = (self.limit + self.limit.div_ceil(8)).min(self.max);
        }
    }

    /// The engine has rejected a request because it is overloaded.
    pub fn refused(&mut self) {
        self.limit = (self.limit / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shrinks_to_the_running_requests_and_grows_again() {
        let mut window = Window::new(256, 8_192);
        window.observe(PodLoad { running: 20, waiting: 3, kv_usage: 0.99, kv_tokens: None });
        assert_eq!(window.capacity().requests, 21);
        window.observe(PodLoad { running: 12, waiting: 0, kv_usage: 0.5, kv_tokens: None });
        assert_eq!(window.capacity().requests, 21, "the window is not used up");
        for _ in 0..100 {
            let running = window.capacity().requests;
            window.observe(PodLoad { running, waiting: 0, kv_usage: 0.5, kv_tokens: None });
        }
        assert_eq!(window.capacity().requests, 256);
        window.refused();
        assert_eq!(window.capacity(), RunCapacity { requests: 128, prefill_tokens: 16_384 });
    }
}
