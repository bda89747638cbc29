//! `model`: keeps pods that serve the request's model and LoRA adapter with a long enough context.
//!
//! Pods of one kind serve the same, so the filter compares one pod of each kind. The context is
//! compared only where a preparer tokenizes: an estimate from the text would drop pods that fit.

use super::healthy;
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Reads, Tokens};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "model",
    summary: "Keeps pods that serve the request's model and LoRA adapter, and whose context window is long enough \
              where the prompt's tokens are known. Rejects the request if no pod passes.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "model",
    make: Make::Filter(make),
};

struct ServesModel {
    /// None if no preparer of the profile tokenizes.
    tokens: Option<Reads<Tokens>>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(ServesModel { tokens: assembly.reads_if_written() }))
}

impl ServesModel {
    /// The tokens that the context must hold; zero if the prompt's are not known.
    fn tokens(&self, decision: &Decision<'_>) -> u64 {
        let prompt = self.tokens.as_ref().and_then(|handle| decision.read(handle));
        let output = decision.request().output_tokens.unwrap_or(1);
        prompt.map_or(0, |prompt| prompt.0.len() as u64 + u64::from(output))
    }
}

/// Why a pod cannot serve a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mismatch {
    Model,
    Adapter,
    /// Its context window has so many tokens.
    Context(u32),
}

#[inline]
fn mismatch(decision: &Decision<'_>, pod: &FleetPod, tokens: u64) -> Option<Mismatch> {
    let facts = pod.facts();
    let wanted = &decision.request().model;
    if !facts.models.contains(&wanted.base) {
        return Some(Mismatch::Model);
    }
    if wanted.lora.as_ref().is_some_and(|lora| !facts.loras.contains(lora)) {
        return Some(Mismatch::Adapter);
    }
    facts.context_tokens.filter(|window| tokens > u64::from(*window)).map(Mismatch::Context)
}

impl Filter for ServesModel {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let fleet = decision.fleet();
        let tokens = self.tokens(decision);
        let fits = |pod: Candidate| mismatch(decision, decision.pod(pod), tokens).is_none();
        let kinds = fleet.kinds();
        if kinds.iter().all(|kind| fits(*kind)) {
            return;
        }
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = fits(kinds[fleet.kind(*candidate)]);
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let tokens = self.tokens(decision);
        match mismatch(decision, decision.pod(candidate), tokens) {
            Some(Mismatch::Model) => "does not serve the model".to_owned(),
            Some(Mismatch::Adapter) => "does not serve the LoRA adapter".to_owned(),
            Some(Mismatch::Context(window)) => {
                format!("context window too short: {tokens} tokens needed (limit {window})")
            }
            None => "serves the model".to_owned(),
        }
    }

    /// Looks at all pods of the fleet, also those that other filters dropped: a model that only an
    /// unhealthy pod serves is unavailable, not unknown.
    fn rejection(&self, decision: &Decision<'_>) -> Rejection {
        let model = &decision.request().model;
        let tokens = self.tokens(decision);
        let pods = decision.fleet().pods();
        let name = model.lora.as_ref().unwrap_or(&model.base);
        let fits = |pod: &FleetPod| mismatch(decision, pod, tokens).is_none();
        if pods.iter().any(fits) {
            if let Some(busy) = healthy::overload_rejection(decision, fits) {
                return busy;
            }
            let reason = format!("no pod that serves `{name}` is available; retry later");
            return Rejection::unavailable(&reason);
        }
        let serving = pods.iter().filter(|pod| mismatch(decision, pod, 0).is_none());
        if let Some(longest) = serving.filter_map(|pod| pod.facts().context_tokens).max() {
            let reason = format!(
                "context window exceeded: prompt and output need {tokens} tokens, and `{name}` is served with at most \
                 {longest}; shorten the prompt or lower the output limit"
            );
            return Rejection::refused(400, reason);
        }
        if pods.iter().any(|pod| pod.facts().models.is_empty()) {
            let reason = format!(
                "no pod reports that it serves `{name}`, and some pods have not reported their models yet; retry later"
            );
            return Rejection::unavailable(&reason);
        }
        let reason =
            format!("no pod serves the model `{name}`; GET /v1/models lists the available models");
        Rejection::refused(404, reason)
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::PodFacts;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn model_adapter_and_context_must_fit() {
        let plain = PodFacts::serving("plain", "m");
        let mut harness = Harness::with(vec![
            plain.clone(),
            PodFacts::serving("other", "n"),
            PodFacts { loras: vec!["sql".into()], ..plain.clone() },
            PodFacts { context_tokens: Some(6), loras: vec!["sql".into()], ..plain },
        ])
        .prompt(&[1, 2, 3, 4]);
        harness.request.output_tokens = Some(3);
        let tokenized = harness.run(&["tokenize"], Stage::Filter, "model");
        assert_eq!(tokenized.kept(), [0, 2]);
        assert_eq!(tokenized.why(1), "does not serve the model");
        assert_eq!(tokenized.why(3), "context window too short: 7 tokens needed (limit 6)");
        let unknown = harness.run(&[], Stage::Filter, "model");
        assert_eq!(unknown.kept(), [0, 2, 3], "an unknown prompt length drops no pod");
        harness.request.model.lora = Some("sql".into());
        let adapted = harness.run(&["tokenize"], Stage::Filter, "model");
        assert_eq!(adapted.kept(), [2]);
        assert_eq!(adapted.why(0), "does not serve the LoRA adapter");
    }

    #[test]
    fn the_rejection_tells_whether_a_retry_can_help() {
        let short = PodFacts { context_tokens: Some(6), ..PodFacts::serving("short", "m") };
        let mut harness =
            Harness::with(vec![short.clone(), PodFacts::serving("down", "other")]).prompt(&[1; 9]);
        let mut reject = |model: &str| {
            harness.request.model.base = model.into();
            harness.run(&["tokenize"], Stage::Filter, "model").rejection()
        };
        let long = reject("m");
        let later = reject("other");
        let never = reject("mm");
        assert_eq!((long.status, later.status, never.status), (400, 503, 404));
        assert!(long.reason.contains("10 tokens") && long.reason.contains("at most 6"));
        assert!(later.retry_after.is_some() && never.reason.contains("`mm`"));
        let silent = PodFacts { models: Vec::new(), ..short };
        let harness = Harness::with(vec![silent]).prompt(&[1]);
        let rejection = harness.run(&[], Stage::Filter, "model").rejection();
        assert_eq!(rejection.status, 503, "it may serve the model");
    }
}
