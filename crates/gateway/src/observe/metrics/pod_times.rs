//! How fast each pod answers: times to the first token and between tokens, by pod.
//!
//! A time to the first token counts for the pod that computed the prompt, from the decision on: what
//! a request waits in the router's queue says nothing about a pod. Requests that were retried do not
//! count, because their time is also that of the pod that failed, and batches neither, because they
//! fill whatever room there is. The series have no label but the pod, so that there are two
//! histograms for each and no more.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use wornpath_config::OFFLINE;
use wornpath_routing::Name;

use crate::observe::metrics::family;
use crate::observe::metrics::histogram::{Cumulative, FINE, Histogram, SeriesTable, quantile};
use crate::observe::metrics::page::MetricsPage;
use crate::observe::summary::RequestSummary;

/// The counters of all pods.
#[derive(Default)]
pub(crate) struct TimesByPod(SeriesTable<Name, PodTimeCounters>);

#[derive(Default)]
struct PodTimeCounters {
    first_token: Histogram,
    inter_token: Histogram,
    /// Prompts whose cached tokens the engine reported, and their tokens that were not cached.
    prompts: AtomicU64,
    computed_tokens: AtomicU64,
}

/// The times of a pod since the router started, or between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodTimes {
    first_token: Cumulative,
    gaps: u64,
    gap_nanos: u64,
    prompts: u64,
    computed_tokens: u64,
}

impl Default for PodTimes {
    fn default() -> Self {
        let first_token = [0; FINE.len() + 1];
        Self { first_token, gaps: 0, gap_nanos: 0, prompts: 0, computed_tokens: 0 }
    }
}

impl PodTimes {
    /// The growth since `earlier`; zero if a pod was removed and added again in between.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        for (own, before) in self.first_token.iter_mut().zip(earlier.first_token) {
            *own = own.saturating_sub(before);
        }
        self.gaps = self.gaps.saturating_sub(earlier.gaps);
        self.gap_nanos = self.gap_nanos.saturating_sub(earlier.gap_nanos);
        self.prompts = self.prompts.saturating_sub(earlier.prompts);
        self.computed_tokens = self.computed_tokens.saturating_sub(earlier.computed_tokens);
        self
    }

    /// Times to a first token that were counted.
    #[must_use]
    pub fn first_tokens(&self) -> u64 {
        self.first_token[FINE.len()]
    }

    /// Times between two tokens that were counted.
    #[must_use]
    pub const fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Half of the times to the first token are below this many seconds.
    #[must_use]
    pub fn first_token(&self) -> Option<f64> {
        quantile(&self.first_token, 0.5)
    }

    /// The mean time between two tokens, in seconds.
    #[must_use]
    pub fn inter_token(&self) -> Option<f64> {
        let nanos = self.gap_nanos.checked_div(self.gaps)?;
        Some(Duration::from_nanos(nanos).as_secs_f64())
    }

    /// Tokens of a prompt that were not cached, in the mean.
    pub(crate) fn computed_tokens(&self) -> Option<f64> {
        (self.prompts > 0).then(|| self.computed_tokens as f64 / self.prompts as f64)
    }
}

#[cfg(test)]
impl PodTimes {
    /// Times that were all alike.
    pub(crate) fn counted(
        first_token: Duration,
        requests: u64,
        gap: Duration,
        gaps: u64,
        computed_tokens: u64,
    ) -> Self {
        let histogram = Histogram::default();
        (0..requests).for_each(|_| histogram.record(first_token));
        let gap_nanos = gaps * u64::try_from(gap.as_nanos()).expect("a test's gap is short");
        let prompts = requests;
        let computed_tokens = computed_tokens * requests;
        Self { first_token: histogram.fine(), gaps, gap_nanos, prompts, computed_tokens }
    }

    /// The sum of both.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        for (own, other) in self.first_token.iter_mut().zip(other.first_token) {
            *own += other;
        }
        self.gaps += other.gaps;
        self.gap_nanos += other.gap_nanos;
        self.prompts += other.prompts;
        self.computed_tokens += other.computed_tokens;
        self
    }
}

impl TimesByPod {
    pub(crate) fn count(&self, record: &RequestSummary) {
        if record.profile.as_str() == OFFLINE {
            return;
        }
        let (computed_by, usage) = record.computed();
        let first_token = record.first_token.filter(|_| record.retries == 0);
        if let (Some(first_token), Some(pod)) = (first_token, computed_by) {
            let own = first_token.saturating_sub(record.decided);
            self.0.with(pod, |times| {
                times.first_token.record_traced(own, record.trace_id());
                if let (Some(prompt), Some(cached)) = (usage.prompt_tokens, usage.cached_tokens) {
                    times.prompts.fetch_add(1, Relaxed);
                    times.computed_tokens.fetch_add(prompt.saturating_sub(cached), Relaxed);
                }
            });
        }
        // The gaps of a stream that another pod continued are of both pods.
        let answered_by = record.pod.as_ref().filter(|_| record.continued == 0);
        if let (Some((_, pod)), false) = (answered_by, record.gaps.is_empty()) {
            self.0.with(pod, |times| times.inter_token.add(&record.gaps));
        }
    }

    /// The times of all pods since the start.
    pub(crate) fn all(&self) -> BTreeMap<String, PodTimes> {
        let all = self.0.all().into_iter();
        all.map(|(pod, times)| (pod.to_string(), times.read())).collect()
    }

    pub(crate) fn retain(&self, keep: impl Fn(&Name) -> bool) {
        self.0.retain(keep);
    }

    pub(crate) fn write(&self, page: &mut MetricsPage) {
        let mut all = self.0.all();
        all.sort_by_cached_key(|(pod, _)| pod.to_string());
        let first_token = page.family(family::POD_FIRST_TOKEN_SECONDS);
        for (pod, times) in &all {
            first_token.histogram(&[pod.as_str()], &times.first_token);
        }
        let inter_token = page.family(family::POD_INTER_TOKEN_SECONDS);
        for (pod, times) in &all {
            inter_token.histogram(&[pod.as_str()], &times.inter_token);
        }
    }
}

impl PodTimeCounters {
    fn read(&self) -> PodTimes {
        PodTimes {
            first_token: self.first_token.fine(),
            gaps: self.inter_token.fine()[FINE.len()],
            gap_nanos: self.inter_token.nanos(),
            prompts: self.prompts.load(Relaxed),
            computed_tokens: self.computed_tokens.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use crate::observe::buckets::GapCounts;
    use crate::observe::metrics::text::text;
    use crate::observe::summary::{Computed, Usage};
    use wornpath_index::{Index, IndexLimits};

    fn record() -> RequestSummary {
        let pod = Index::new(IndexLimits::default(), 1).add_pod().unwrap();
        let mut gaps = GapCounts::default();
        gaps.record(Duration::from_millis(30), 3);
        RequestSummary {
            profile: "p".into(),
            pod: Some((pod, "a".into())),
            decided: Duration::from_millis(900),
            first_token: Some(Duration::from_millis(940)),
            gaps,
            usage: Usage { prompt_tokens: Some(100), cached_tokens: Some(64), output_tokens: None },
            ..RequestSummary::new("r", Api::CHAT)
        }
    }

    #[test]
    fn times_count_by_pod_without_the_wait_in_the_router_retries_and_batches() {
        let times = TimesByPod::default();
        times.count(&record());
        times.count(&RequestSummary { profile: OFFLINE.into(), ..record() });
        let seen = times.all()["a"];
        assert_eq!((seen.first_tokens(), seen.gaps()), (1, 3));
        assert!((0.03..0.045).contains(&seen.first_token().unwrap()), "{seen:?}");
        assert_eq!((seen.inter_token(), seen.computed_tokens()), (Some(0.01), Some(36.0)));
        times.count(&RequestSummary { retries: 1, continued: 1, ..record() });
        assert_eq!(times.all()["a"].since(&seen), PodTimes::default());
    }

    #[test]
    fn a_first_token_counts_for_the_pod_that_computed_the_prompt() {
        let times = TimesByPod::default();
        let computed = Computed { pod: Some("prefill".into()), usage: Usage::default() };
        times.count(&RequestSummary { computed: Some(Box::new(computed)), ..record() });
        let all = times.all();
        assert_eq!((all["prefill"].first_tokens(), all["prefill"].gaps()), (1, 0));
        assert_eq!((all["a"].first_tokens(), all["a"].gaps()), (0, 3));
        let mut page = MetricsPage::default();
        times.write(&mut page);
        let text = text(&page);
        for line in [
            r#"wornpath_pod_first_token_seconds_bucket{pod="prefill",le="0.05"} 1"#,
            r#"wornpath_pod_inter_token_seconds_count{pod="a"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        times.retain(|pod| pod.as_str() == "a");
        assert_eq!(times.all().into_keys().collect::<Vec<_>>(), ["a"]);
    }
}
