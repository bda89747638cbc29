//! Totals by model and tenant, for the dashboard.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use wornpath_config::OFFLINE;

use super::{TrafficMetrics, TrafficSeries};
use crate::observe::metrics::totals::Figures;

/// The model and the tenant of requests; empty if there is none, and `other` beyond the limits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    /// The base model.
    pub model: String,
    /// The tenant.
    pub tenant: String,
}

/// Figures by model and tenant.
pub type ByOrigin = BTreeMap<Origin, Figures>;

impl TrafficMetrics {
    /// The sum over all profiles.
    pub(crate) fn by_origin(&self) -> ByOrigin {
        let mut sums = ByOrigin::new();
        for series in self.series.iter().map_while(OnceLock::get) {
            let labels = &series.labels;
            let origin =
                Origin { model: labels.model.to_string(), tenant: labels.tenant.to_string() };
            let sum = sums.entry(origin).or_default();
            *sum = sum.and(&series.figures());
        }
        sums
    }
}

impl TrafficSeries {
    fn figures(&self) -> Figures {
        let counters = &self.counters;
        let none = Figures::default();
        let is_online = self.labels.profile.as_str() != OFFLINE;
        let output = counters.output_tokens.load(Relaxed);
        let mut figures = Figures {
            requests: counters.ends.other.load(Relaxed),
            first_byte: if is_online { counters.first_token.fine() } else { none.first_byte },
            prompt_tokens: counters.prompt_tokens.load(Relaxed),
            output_tokens: output.saturating_add(counters.own_output_tokens.load(Relaxed)),
            reported_tokens: counters.reported.load(Relaxed),
            cached_tokens: counters.cached.load(Relaxed),
            gaps: counters.inter_token.fine().last().copied().unwrap_or(0),
            gap_nanos: counters.inter_token.nanos(),
            given_away: counters.given_away.load(Relaxed),
            ..none
        };
        for (status, end, count) in counters.ends.pairs() {
            figures.add_ends(status, end, count);
        }
        figures
    }
}
