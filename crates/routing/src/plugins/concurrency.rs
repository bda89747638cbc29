//! `concurrency`: keeps pods that are below a cap.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, Vitals};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "concurrency",
    summary: "Keeps pods that have less to do than every cap given. The request waits if there is none.",
    parameters: &[
        Parameter::optional("requests", Takes::Whole(1, 4_294_967_295), "Requests in flight."),
        Parameter::optional(
            "prefill_tokens",
            Takes::Whole(1, u64::MAX),
            "Prompt tokens sent and not computed yet.",
        ),
        Parameter::optional(
            "decode_tokens",
            Takes::Whole(1, u64::MAX),
            "Tokens in the contexts that decode.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "concurrency: {requests: 64, on_empty: reject}",
    make: Make::Filter(make),
};

struct ConcurrencyCaps {
    requests: u64,
    prefill_tokens: u64,
    decode_tokens: u64,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let cap = |name| assembly.maybe(name).unwrap_or(u64::MAX);
    let caps = ConcurrencyCaps {
        requests: cap("requests"),
        prefill_tokens: cap("prefill_tokens"),
        decode_tokens: cap("decode_tokens"),
    };
    if caps.requests & caps.prefill_tokens & caps.decode_tokens == u64::MAX {
        let cure = "give `requests`, `prefill_tokens` or `decode_tokens`";
        return Err(assembly.refuse("requests", "no cap is given", cure));
    }
    Ok(Box::new(caps))
}

impl ConcurrencyCaps {
    #[inline]
    fn reached(&self, vitals: &Vitals) -> bool {
        u64::from(vitals.requests()) >= self.requests
            || vitals.prefill_tokens() >= self.prefill_tokens
            || vitals.decode_tokens() >= self.decode_tokens
    }
}

impl Filter for ConcurrencyCaps {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = !self.reached(scene.pod(*candidate).vitals());
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let vitals = scene.pod(candidate).vitals();
        let figures = [
            ("requests", u64::from(vitals.requests()), self.requests),
            ("prefill tokens", vitals.prefill_tokens(), self.prefill_tokens),
            ("decode tokens", vitals.decode_tokens(), self.decode_tokens),
        ];
        let reached = figures.iter().find(|(_, has, cap)| has >= cap);
        reached.map_or_else(
            || "below every cap".to_owned(),
            |(what, has, cap)| format!("{has} {what}, {cap} is the cap"),
        )
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::busy("every pod has as much to do as it may")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::Reservation;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn a_pod_at_its_cap_gets_nothing_until_something_ends() {
        let rehearsal = Harness::of(2);
        let played = rehearsal.play(&[], Stage::Filter, "concurrency: {requests: 2}");
        let first = Reservation::new(rehearsal.vitals(0), 10, 10);
        let _second = Reservation::new(rehearsal.vitals(0), 10, 10);
        assert_eq!(played.kept(), [1]);
        assert_eq!(played.why(0), "2 requests, 2 is the cap");
        drop(first);
        assert_eq!(played.kept(), [0, 1]);
    }

    #[test]
    fn tokens_can_be_capped_too() {
        let rehearsal = Harness::of(2);
        let yaml = "concurrency: {prefill_tokens: 100, decode_tokens: 50}";
        let played = rehearsal.play(&[], Stage::Filter, yaml);
        let mut long = Reservation::new(rehearsal.vitals(0), 100, 100);
        assert_eq!(played.kept(), [1]);
        assert_eq!(played.why(0), "100 prefill tokens, 100 is the cap");
        long.first_token();
        assert_eq!(played.why(0), "100 decode tokens, 50 is the cap");
        assert_eq!(played.kept(), [1]);
    }

    #[test]
    fn no_cap_at_all_is_refused() {
        assert_eq!(
            Harness::complaint(Stage::Filter, "concurrency"),
            "`concurrency`: no cap is given"
        );
    }
}
