//! One line of figures for each combination of labels that came up.
//!
//! Counting must not wait: the table is immutable and shared, so finding a line takes no lock, and what is
//! found is a few atomics. Only the first request of a new combination takes a lock, and copies the table.
//! The number of lines is bounded; lines of pods that have gone go with them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

/// More lines than a fleet of 1024 pods with four profiles needs.
const MOST: usize = 16_384;

/// Lines of `V`, found by `K`.
pub(crate) struct SeriesTable<K, V> {
    lines: ArcSwap<HashMap<K, Arc<V>>>,
    /// Held while the table is copied.
    growing: Mutex<()>,
}

impl<K, V> Default for SeriesTable<K, V> {
    fn default() -> Self {
        Self { lines: ArcSwap::default(), growing: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone, V: Default> SeriesTable<K, V> {
    /// Counts on the line of `key`. Whether there was room for it.
    pub(crate) fn with(&self, key: &K, count: impl FnOnce(&V)) -> bool {
        if let Some(line) = self.lines.load().get(key) {
            count(line);
            return true;
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = self.lines.load_full();
        if let Some(line) = lines.get(key) {
            count(line);
            return true;
        }
        if lines.len() >= MOST {
            return false;
        }
        let line = Arc::<V>::default();
        count(&line);
        let mut grown = HashMap::clone(&lines);
        grown.insert(key.clone(), line);
        self.lines.store(Arc::new(grown));
        true
    }

    /// All lines.
    pub(crate) fn all(&self) -> Vec<(K, Arc<V>)> {
        self.lines.load().iter().map(|(key, line)| (key.clone(), Arc::clone(line))).collect()
    }

    /// Drops lines that nobody will count on again.
    pub(crate) fn retain(&self, keep: impl Fn(&K) -> bool) {
        if self.lines.load().keys().all(&keep) {
            return;
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = self.lines.load_full();
        let kept = lines.iter().filter(|(key, _)| keep(key));
        let kept = kept.map(|(key, line)| (key.clone(), Arc::clone(line))).collect();
        self.lines.store(Arc::new(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn many_threads_that_meet_new_keys_lose_no_count() {
        let table = SeriesTable::<u64, AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for at in 0..10_000_u64 {
                        assert!(table.with(&(at % 37), |line| {
                            line.fetch_add(1, Relaxed);
                        }));
                    }
                });
            }
        });
        let total: u64 = table.all().iter().map(|(_, line)| line.load(Relaxed)).sum();
        assert_eq!((table.all().len(), total), (37, 40_000));
    }

    #[test]
    fn the_table_is_bounded_and_makes_room_when_pods_go() {
        let table = SeriesTable::<usize, AtomicU64>::default();
        let lines: HashMap<_, _> = (0..MOST).map(|key| (key, Arc::default())).collect();
        table.lines.store(Arc::new(lines));
        assert!(!table.with(&MOST, |_| panic!("no room")));
        assert!(table.with(&1, |_| {}), "those that are there go on");
        table.retain(|key| *key < 10);
        assert!(table.with(&MOST, |_| {}));
        assert_eq!(table.all().len(), 11);
    }
}
