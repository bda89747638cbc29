//! `model`: keeps pods that serve the model, the adapter and a context of the request's length.

use super::healthy;
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Filter, Rejection};
use crate::values::Tokens;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "model",
    summary: "Keeps pods that serve the request's model and LoRA adapter, and whose context is long enough \
              where the prompt's tokens are known. Rejects the request if there is none.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "model",
    make: Make::Filter(make),
};

struct ServesModel {
    /// If some preparer tokenizes. An estimate from the text would turn away what fits.
    tokens: Option<Reads<Tokens>>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(ServesModel { tokens: assembly.reads_if_written() }))
}

impl ServesModel {
    /// The tokens that the context must hold, as far as they are known.
    fn tokens(&self, scene: &Decision<'_>) -> u64 {
        let prompt = self.tokens.as_ref().and_then(|handle| scene.read(handle));
        let output = scene.request().output_tokens.unwrap_or(1);
        prompt.map_or(0, |prompt| prompt.0.len() as u64 + u64::from(output))
    }
}

#[inline]
fn unfit(scene: &Decision<'_>, pod: &FleetPod, tokens: u64) -> Option<&'static str> {
    let (facts, wanted) = (pod.facts(), &scene.request().model);
    if !facts.models.contains(&wanted.base) {
        return Some("does not serve the model");
    }
    if wanted.lora.as_ref().is_some_and(|lora| !facts.loras.contains(lora)) {
        return Some("does not serve the adapter");
    }
    let short = facts.context_tokens.is_some_and(|most| tokens > u64::from(most));
    short.then_some("its context is too short")
}

impl Filter for ServesModel {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let (fleet, tokens) = (scene.fleet(), self.tokens(scene));
        let fits = |pod: Candidate| unfit(scene, scene.pod(pod), tokens).is_none();
        let kinds = fleet.kinds();
        if kinds.iter().all(|kind| fits(*kind)) {
            return;
        }
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = fits(kinds[fleet.kind(*candidate)]);
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let (pod, tokens) = (scene.pod(candidate), self.tokens(scene));
        let why = unfit(scene, pod, tokens).unwrap_or("fits");
        match (why, pod.facts().context_tokens) {
            ("its context is too short", Some(most)) => {
                format!("{why}: {tokens} tokens, {most} fit")
            }
            _ => why.to_owned(),
        }
    }

    /// Pods that another filter has turned away count here: what they serve is not served now, but known.
    fn rejection(&self, scene: &Decision<'_>) -> Rejection {
        let (model, tokens, pods) =
            (&scene.request().model, self.tokens(scene), scene.fleet().pods());
        let name = model.lora.as_ref().unwrap_or(&model.base);
        if pods.iter().any(|pod| unfit(scene, pod, tokens).is_none()) {
            let fits = |pod: &FleetPod| unfit(scene, pod, tokens).is_none();
            if let Some(busy) = healthy::resting(scene, fits) {
                return busy;
            }
            let reason = format!("no pod that serves `{name}` can take a request now");
            return Rejection::unavailable(&reason);
        }
        let longest = pods.iter().filter(|pod| unfit(scene, pod, 0).is_none());
        if let Some(most) = longest.filter_map(|pod| pod.facts().context_tokens).max() {
            let reason = format!(
                "the prompt and its answer may have {tokens} tokens, and no pod that serves `{name}` has a context of \
                 more than {most}; shorten the prompt, or ask for fewer tokens"
            );
            return Rejection::refused(400, reason);
        }
        if pods.iter().any(|pod| pod.facts().models.is_empty()) {
            let reason =
                format!("no pod says that it serves `{name}`, and some have said nothing yet");
            return Rejection::unavailable(&reason);
        }
        let reason =
            format!("no pod serves the model `{name}`; GET /v1/models lists what is served");
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
        let mut rehearsal = Harness::with(vec![
            plain.clone(),
            PodFacts::serving("other", "n"),
            PodFacts { loras: vec!["sql".into()], ..plain.clone() },
            PodFacts { context_tokens: Some(6), loras: vec!["sql".into()], ..plain },
        ])
        .prompt(&[1, 2, 3, 4]);
        rehearsal.request.output_tokens = Some(3);
        let tokenized = rehearsal.play(&["tokenize"], Stage::Filter, "model");
        assert_eq!(tokenized.kept(), [0, 2]);
        assert_eq!(tokenized.why(1), "does not serve the model");
        assert_eq!(tokenized.why(3), "its context is too short: 7 tokens, 6 fit");
        let unknown = rehearsal.play(&[], Stage::Filter, "model");
        assert_eq!(unknown.kept(), [0, 2, 3], "a length that is not known turns nobody away");
        rehearsal.request.model.lora = Some("sql".into());
        let adapted = rehearsal.play(&["tokenize"], Stage::Filter, "model");
        assert_eq!(adapted.kept(), [2]);
        assert_eq!(adapted.why(0), "does not serve the adapter");
    }

    #[test]
    fn who_is_turned_away_learns_whether_it_will_be_served_later() {
        let short = PodFacts { context_tokens: Some(6), ..PodFacts::serving("short", "m") };
        let mut rehearsal =
            Harness::with(vec![short.clone(), PodFacts::serving("down", "other")]).prompt(&[1; 9]);
        let mut says = |model: &str| {
            rehearsal.request.model.base = model.into();
            rehearsal.play(&["tokenize"], Stage::Filter, "model").rejection()
        };
        let (long, later, never) = (says("m"), says("other"), says("mm"));
        assert_eq!((long.status, later.status, never.status), (400, 503, 404));
        assert!(long.reason.contains("10 tokens") && long.reason.contains("more than 6"));
        assert!(later.retry_after.is_some() && never.reason.contains("`mm`"));
        let silent = PodFacts { models: Vec::new(), ..short };
        let rehearsal = Harness::with(vec![silent]).prompt(&[1]);
        let rejection = rehearsal.play(&[], Stage::Filter, "model").rejection();
        assert_eq!(rejection.status, 503, "it may serve it");
    }
}
