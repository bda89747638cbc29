//! Histograms of times, recorded with relaxed additions only, and series of values by label.
//!
//! Fine buckets, each at most an eighth wide, bound the error of a percentile on the dashboard.
//! Exported buckets are coarse, because Prometheus stores every bucket of every pod. Every exported
//! bound is also a fine one, so the coarse counts are exact sums.

use crate::observe::buckets::{BOUNDS, GapCounts};
use crate::observe::metrics::exemplar::{BucketExemplars, Exemplar, Exemplars};
use crate::observe::timestamp::Timestamp;
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The bounds within one power of ten.
const DECADE: [u64; 24] = [
    100, 110, 120, 132, 145, 160, 175, 190, 210, 230, 250, 275, 300, 330, 365, 400, 450, 500, 550,
    600, 660, 730, 800, 900,
];

/// The first bound, a millisecond, over the first of [`DECADE`].
const SMALLEST_NANOS: u64 = 10_000;

/// Fine upper bounds in nanoseconds: from one millisecond to five minutes.
pub(crate) const FINE: [u64; 133] = {
    let mut bounds = [0; 133];
    let mut at = 0;
    let mut scale = SMALLEST_NANOS;
    while at < bounds.len() {
        bounds[at] = DECADE[at % DECADE.len()] * scale;
        at += 1;
        if at % DECADE.len() == 0 {
            scale *= 10;
        }
    }
    bounds
};

/// Cumulative counts: for every fine bound, and last for all times.
pub(crate) type Cumulative = [u64; FINE.len() + 1];

/// The quantile `share` in seconds, interpolated linearly within its bucket as Prometheus does.
pub(crate) fn quantile(counts: &Cumulative, share: f64) -> Option<f64> {
    let all = *counts.last()?;
    if all == 0 {
        return None;
    }
    let wanted = share * all as f64;
    let bucket = counts.iter().position(|count| *count as f64 >= wanted)?;
    let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
    let upper = seconds(FINE[bucket.min(FINE.len() - 1)]);
    if bucket == FINE.len() {
        return Some(upper);
    }
    let (lower, below) = match bucket.checked_sub(1) {
        Some(before) => (seconds(FINE[before]), counts[before]),
        None => (0.0, 0),
    };
    let within = (counts[bucket] - below).max(1) as f64;
    Some(lower + (upper - lower) * (wanted - below as f64) / within)
}

/// A histogram of times.
#[derive(Debug)]
pub struct Histogram {
    /// By the smallest bound that is not exceeded; the last bucket is beyond all bounds.
    counts: [AtomicU64; FINE.len() + 1],
    nanos: AtomicU64,
    exemplars: Exemplars,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; FINE.len() + 1],
            nanos: AtomicU64::new(0),
            exemplars: Exemplars::default(),
        }
    }
}

impl Histogram {
    /// Records a time.
    pub fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = FINE.partition_point(|bound| *bound < nanos);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// Records a time, and the trace of the request if it has one.
    pub(crate) fn record_traced(&self, time: Duration, trace: Option<u128>) {
        self.record(time);
        if let Some(trace) = trace {
            let seconds = time.as_secs_f64();
            self.exemplars.keep(Exemplar { trace, seconds, at: Timestamp::now() });
        }
    }

    /// Adds times that were counted by the exported bounds.
    pub(crate) fn add(&self, gaps: &GapCounts) {
        for (bucket, count) in gaps.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.counts[fine_bucket(bucket)].fetch_add(u64::from(*count), Relaxed);
        }
        if gaps.nanos > 0 {
            self.nanos.fetch_add(gaps.nanos, Relaxed);
        }
    }

    /// The last traced request of each exported bucket.
    pub(crate) fn exemplars(&self) -> Option<Box<BucketExemplars>> {
        self.exemplars.all()
    }

    /// Cumulative counts for the exported bounds, and last for all times.
    #[must_use]
    pub fn cumulative(&self) -> [u64; BOUNDS.len() + 1] {
        let fine = self.fine();
        std::array::from_fn(|bucket| fine[fine_bucket(bucket)])
    }

    /// Cumulative counts for the fine bounds, and last for all times.
    pub(crate) fn fine(&self) -> Cumulative {
        let mut total = 0;
        std::array::from_fn(|bucket| {
            total += self.counts[bucket].load(Relaxed);
            total
        })
    }

    /// The sum of all times, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        self.nanos.load(Relaxed)
    }

    /// The sum of all times, in seconds.
    #[must_use]
    pub fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanos()).as_secs_f64()
    }
}

/// The fine bucket with the upper bound of an exported one.
fn fine_bucket(exported: usize) -> usize {
    let bound = BOUNDS.get(exported).map(|bound| Duration::from_secs_f64(*bound).as_nanos());
    bound.map_or(FINE.len(), |bound| FINE.partition_point(|fine| u128::from(*fine) < bound))
}

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
    fn a_time_on_a_bound_counts_below_it_and_a_long_one_beyond_all() {
        let histogram = Histogram::default();
        for millis in [1, 2, 400_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let counts = histogram.cumulative();
        assert_eq!((counts[0], counts[1], counts[15], counts[16]), (1, 2, 2, 3));
        assert!((histogram.sum() - 400.003).abs() < 1e-9);
    }

    #[test]
    fn times_that_were_counted_by_exported_bounds_keep_their_buckets_and_their_sum() {
        let histogram = Histogram::default();
        let mut gaps = GapCounts::default();
        for millis in [1, 2, 40, 400_000] {
            gaps.record(Duration::from_millis(millis), 1);
        }
        histogram.add(&gaps);
        histogram.record(Duration::from_millis(2));
        let counts = histogram.cumulative();
        assert_eq!((counts[0], counts[1], counts[5], counts[15], counts[16]), (1, 3, 4, 4, 5));
        assert!((histogram.sum() - 400.045).abs() < 1e-9);
    }

    #[test]
    fn every_exported_bound_is_a_fine_bound_and_no_bucket_is_wider_than_an_eighth() {
        for bound in BOUNDS {
            let nanos = Duration::from_secs_f64(bound).as_nanos() as u64;
            assert!(FINE.contains(&nanos), "{bound}");
            let histogram = Histogram::default();
            histogram.record(Duration::from_nanos(nanos));
            histogram.record(Duration::from_nanos(nanos + 1));
            let at = BOUNDS.iter().position(|other| *other == bound).unwrap();
            assert_eq!((histogram.cumulative()[at], histogram.cumulative()[at + 1]), (1, 2));
        }
        assert_eq!((FINE[0], FINE[FINE.len() - 1]), (1_000_000, 300_000_000_000));
        for pair in FINE.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] * 8 <= pair[0] * 9, "{pair:?}");
        }
    }

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
