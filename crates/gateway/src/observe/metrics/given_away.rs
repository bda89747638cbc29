//! Prefill given away: cached tokens that the best pod held beyond the chosen one, by the reason why
//! it was passed over.

use crate::observe::metrics::family;
use crate::observe::metrics::histogram::SeriesTable;
use crate::observe::metrics::page::MetricsPage;
use crate::observe::summary::RequestSummary;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use wornpath_routing::{Name, PassedOver};

/// A figure for every reason, in the order of [`PassedOver::ALL`].
pub type ByReason = [u64; PassedOver::ALL.len()];

/// The counters, by profile.
#[derive(Default)]
pub(crate) struct GivenAway(SeriesTable<Name, [AtomicU64; PassedOver::ALL.len()]>);

impl GivenAway {
    pub(crate) fn count(&self, record: &RequestSummary) {
        let Some((tokens, why)) = record.given_away().filter(|(tokens, _)| *tokens > 0) else {
            return;
        };
        let at = PassedOver::ALL.iter().position(|known| *known == why).unwrap_or_default();
        self.0.with(&record.profile, |counts| {
            counts[at].fetch_add(tokens, Relaxed);
        });
    }

    /// The sum over all profiles.
    pub(crate) fn total(&self) -> ByReason {
        let mut total = ByReason::default();
        for (_, counts) in self.0.all() {
            for (sum, count) in total.iter_mut().zip(counts.iter()) {
                *sum += count.load(Relaxed);
            }
        }
        total
    }

    pub(crate) fn write(&self, page: &mut MetricsPage) {
        let mut all = self.0.all();
        all.sort_by_cached_key(|(profile, _)| profile.to_string());
        let family = page.family(family::GIVEN_AWAY);
        for (profile, counts) in &all {
            for (why, count) in PassedOver::ALL.iter().zip(counts.iter()) {
                family.value(&[profile.as_str(), why.word()], count.load(Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use crate::observe::summary::BestPod;

    #[test]
    fn tokens_that_the_best_pod_held_beyond_the_chosen_one_count_by_reason() {
        let given_away = GivenAway::default();
        let record = |predicted, why| RequestSummary {
            predicted_tokens: predicted,
            best: Some(Box::new(BestPod { pod: "b".into(), tokens: 100, why })),
            ..RequestSummary::new("r", Api::CHAT)
        };
        given_away.count(&record(Some(40), PassedOver::Load));
        given_away.count(&record(Some(0), PassedOver::Role));
        given_away.count(&record(None, PassedOver::Role));
        given_away.count(&record(Some(100), PassedOver::Health));
        assert_eq!(given_away.total(), [60, 0, 100, 0, 0, 0, 0]);
    }
}
