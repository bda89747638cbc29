//! `concurrency`: keeps pods below a limit of requests or tokens.
//!
//! The router counts what it sent itself, so the limit holds at once and needs no report of the
//! engine.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, PodState};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "concurrency",
    summary: "Keeps pods below every limit that is set. Holds the request if no pod passes.",
    parameters: &[
        Parameter::optional(
            "requests",
            Takes::Whole(1, 4_294_967_295),
            "Limit on requests in flight.",
        ),
        Parameter::optional(
            "prefill_tokens",
            Takes::Whole(1, u64::MAX),
            "Limit on prompt tokens sent and not yet computed.",
        ),
        Parameter::optional(
            "decode_tokens",
            Takes::Whole(1, u64::MAX),
            "Limit on tokens in decoding contexts.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "concurrency: {requests: 64, on_empty: reject}",
    make: Make::Filter(make),
};

struct ConcurrencyLimits {
    requests: u64,
    prefill_tokens: u64,
    decode_tokens: u64,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let limit = |name| assembly.maybe(name).unwrap_or(u64::MAX);
    let limits = ConcurrencyLimits {
        requests: limit("requests"),
        prefill_tokens: limit("prefill_tokens"),
        decode_tokens: limit("decode_tokens"),
    };
    if limits.requests & limits.prefill_tokens & limits.decode_tokens == u64::MAX {
        let cure = "set `requests`, `prefill_tokens` or `decode_tokens`";
        return Err(assembly.refuse("requests", "no limit is set", cure));
    }
    Ok(Box::new(limits))
}

impl ConcurrencyLimits {
    #[inline]
    fn reached(&self, pod_state: &PodState) -> bool {
        u64::from(pod_state.requests()) >= self.requests
            || pod_state.prefill_tokens() >= self.prefill_tokens
            || pod_state.decode_tokens() >= self.decode_tokens
    }
}

impl Filter for ConcurrencyLimits {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = !self.reached(decision.pod(*candidate).state());
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let pod_state = decision.pod(candidate).state();
        let figures = [
            ("requests in flight", u64::from(pod_state.requests()), self.requests),
            ("prefill tokens", pod_state.prefill_tokens(), self.prefill_tokens),
            ("decode tokens", pod_state.decode_tokens(), self.decode_tokens),
        ];
        let reached = figures.iter().find(|(_, has, limit)| has >= limit);
        reached.map_or_else(
            || "below every limit".to_owned(),
            |(what, has, limit)| format!("{has} {what} (limit {limit})"),
        )
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::busy("all pods are at their concurrency limit; retry later")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::Reservation;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn a_pod_at_its_limit_is_dropped_until_a_request_ends() {
        let harness = Harness::of(2);
        let run = harness.run(&[], Stage::Filter, "concurrency: {requests: 2}");
        let first = Reservation::new(harness.pod_state(0), 10, 10);
        let _second = Reservation::new(harness.pod_state(0), 10, 10);
        assert_eq!(run.kept(), [1]);
        assert_eq!(run.why(0), "2 requests in flight (limit 2)");
        drop(first);
        assert_eq!(run.kept(), [0, 1]);
    }

    #[test]
    fn tokens_can_be_limited_too() {
        let harness = Harness::of(2);
        let yaml = "concurrency: {prefill_tokens: 100, decode_tokens: 50}";
        let run = harness.run(&[], Stage::Filter, yaml);
        let mut long = Reservation::new(harness.pod_state(0), 100, 100);
        assert_eq!(run.kept(), [1]);
        assert_eq!(run.why(0), "100 prefill tokens (limit 100)");
        long.first_token();
        assert_eq!(run.why(0), "100 decode tokens (limit 50)");
        assert_eq!(run.kept(), [1]);
    }

    #[test]
    fn a_filter_without_a_limit_is_refused() {
        assert_eq!(
            Harness::assembly_error(Stage::Filter, "concurrency"),
            "`concurrency`: no limit is set"
        );
    }
}
