//! A table of series: one value for each combination of labels seen so far.
//!
//! Counting must not block: the table is immutable and shared, so a lookup takes no lock, and its
//! result is a few atomics. Only the first request of a new combination takes a lock, and copies
//! the table. The number of series is bounded; those of removed pods are pruned.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

/// More series than a fleet of 1024 pods with four profiles needs.
const MAX_SERIES: usize = 16_384;

/// Series with values `V`, by their labels `K`.
pub(crate) struct SeriesTable<K, V> {
    series: ArcSwap<HashMap<K, Arc<V>>>,
    /// Held while the table is copied.
    growing: Mutex<()>,
}

impl<K, V> Default for SeriesTable<K, V> {
    fn default() -> Self {
        Self { series: ArcSwap::default(), growing: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone, V: Default> SeriesTable<K, V> {
    /// Applies `count` to the series of `key`. Returns whether the table had room for it.
    pub(crate) fn with(&self, key: &K, count: impl FnOnce(&V)) -> bool {
        if let Some(value) = self.series.load().get(key) {
            count(value);
            return true;
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let series = self.series.load_full();
        if let Some(value) = series.get(key) {
            count(value);
            return true;
        }
        if series.len() >= MAX_SERIES {
            return false;
        }
        let value = Arc::<V>::default();
        count(&value);
        let mut grown = HashMap::clone(&series);
        grown.insert(key.clone(), value);
        self.series.store(Arc::new(grown));
        true
    }

    /// All series.
    pub(crate) fn all(&self) -> Vec<(K, Arc<V>)> {
        self.series.load().iter().map(|(key, value)| (key.clone(), Arc::clone(value))).collect()
    }

    /// Keeps only the series whose key satisfies `keep`.
    pub(crate) fn retain(&self, keep: impl Fn(&K) -> bool) {
        if self.series.load().keys().all(&keep) {
            return;
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let series = self.series.load_full();
        let kept = series.iter().filter(|(key, _)| keep(key));
        let kept = kept.map(|(key, value)| (key.clone(), Arc::clone(value))).collect();
        self.series.store(Arc::new(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn threads_that_add_keys_concurrently_lose_no_count() {
        let table = SeriesTable::<u64, AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for at in 0..10_000_u64 {
                        assert!(table.with(&(at % 37), |value| {
                            value.fetch_add(1, Relaxed);
                        }));
                    }
                });
            }
        });
        let total: u64 = table.all().iter().map(|(_, value)| value.load(Relaxed)).sum();
        assert_eq!((table.all().len(), total), (37, 40_000));
    }

    #[test]
    fn the_table_is_bounded_and_accepts_keys_again_after_pruning() {
        let table = SeriesTable::<usize, AtomicU64>::default();
        let series: HashMap<_, _> = (0..MAX_SERIES).map(|key| (key, Arc::default())).collect();
        table.series.store(Arc::new(series));
        assert!(!table.with(&MAX_SERIES, |_| panic!("no room")));
        assert!(table.with(&1, |_| {}), "existing series still count");
        table.retain(|key| *key < 10);
        assert!(table.with(&MAX_SERIES, |_| {}));
        assert_eq!(table.all().len(), 11);
    }
}
