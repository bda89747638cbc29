//! `expression`: a rule of the user's own, in CEL, over the pod, the request and all candidates.
//!
//! The expression is parsed and typed when the profile is assembled; see [`cel`](super::cel) for the
//! language and [`vocabulary`] for the fields. Only the fields that are named cost anything.

mod vocabulary;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cel::{FUNCTIONS, Program, Values, compile};
use crate::assembly::{Assembly, Refused};
use crate::fleet::{Candidate, Pod};
use crate::name::Name;
use crate::parameter::{Parameter, Takes};
use crate::plugin::{Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Held, HeldBlocks, Scale, Score};
use crate::values::Attributes;
use vocabulary::{Field, FleetField, PodField, RequestField, Words};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "expression",
    summary: "A number from a CEL expression over `pod`, `request` and `fleet`. A score is cut to 0 to 1, more is \
              better; a cost is in milliseconds, less is better. What cannot be computed, such as a division by \
              zero, is the worst.",
    parameters: &[
        Parameter::optional("score", Takes::Text, "The expression, if its value is from 0 to 1."),
        Parameter::optional(
            "cost",
            Takes::Text,
            "The expression, if its value is in milliseconds.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "expression: {score: \"pod.labels.gpu == 'h100' ? 1.0 : 0.5\"}",
    make: Make::Score(make),
};

struct Expression {
    program: Program<Field>,
    scale: Scale,
    labels: Vec<Name>,
    names: Vec<Name>,
    held: Option<Held>,
    attributes: Option<Reads<Attributes>>,
    /// Prompt tokens that each pod was sent to compute, by its slot; empty unless the rule asks.
    placed: Vec<AtomicU64>,
}

/// As many pods as an index can hold.
const MOST_PODS: usize = 4096;

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, Refused> {
    let (score, cost) = (assembly.maybe::<String>("score"), assembly.maybe::<String>("cost"));
    let (parameter, text, scale) = match (score, cost) {
        (Some(text), None) => ("score", text, Scale::Unit),
        (None, Some(text)) => ("cost", text, Scale::Milliseconds),
        (Some(_), Some(_)) => {
            let cure = "keep one; two rules are two scorers";
            return Err(assembly.refuse("cost", "a `score` is given as well", cure));
        }
        (None, None) => {
            let cure = "give `score`, for instance \"1.0 - pod.kv_usage\", or `cost`";
            return Err(assembly.refuse("score", "there is no expression", cure));
        }
    };
    let words = Words::default();
    let program = match compile(&text, &words) {
        Ok(program) => program,
        Err(error) => {
            let cure = format!("expressions are CEL; functions: {}", FUNCTIONS.join(", "));
            return Err(assembly.refuse(parameter, &error.to_string(), &cure));
        }
    };
    let placed = if words.asks_placed.get() { MOST_PODS } else { 0 };
    let (labels, names) = (words.labels.into_inner(), words.attributes.into_inner());
    let asks_held = words.asks_held.get() || words.asks_placed.get();
    Ok(Box::new(Expression {
        program,
        scale,
        held: asks_held.then(|| assembly.held()),
        attributes: (!names.is_empty()).then(|| assembly.reads()),
        labels,
        names,
        placed: (0..placed).map(|_| AtomicU64::new(0)).collect(),
    }))
}

/// The fields of one candidate.
struct Scope<'a> {
    rule: &'a Expression,
    scene: &'a Decision<'a>,
    pod: &'a Pod,
    held: Option<HeldBlocks<'a>>,
    attributes: Option<&'a Attributes>,
    prompt_tokens: u64,
    fleet: FleetFigures,
}

/// What is the same for all candidates.
#[derive(Clone, Copy)]
struct FleetFigures {
    pods: usize,
    requests: (u32, u32),
    prefill_tokens: (u64, u64),
    most_cached_share: f64,
}

impl FleetFigures {
    fn of(scene: &Decision<'_>, candidates: &[Candidate], held: Option<HeldBlocks<'_>>) -> Self {
        let mut figures = Self {
            pods: candidates.len(),
            requests: (u32::MAX, 0),
            prefill_tokens: (u64::MAX, 0),
            most_cached_share: 0.0,
        };
        for candidate in candidates {
            let pod = scene.pod(*candidate);
            let (requests, tokens) = (pod.vitals().requests(), pod.vitals().prefill_tokens());
            let (least, most) = figures.requests;
            figures.requests = (least.min(requests), most.max(requests));
            let (least, most) = figures.prefill_tokens;
            figures.prefill_tokens = (least.min(tokens), most.max(tokens));
            let share = held.map_or(0.0, |held| held.share(pod));
            figures.most_cached_share = figures.most_cached_share.max(share);
        }
        figures
    }
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Values<Field> for Scope<'_> {
    fn int(&self, field: Field) -> i64 {
        let vitals = self.pod.vitals();
        match field {
            Field::Pod(PodField::Requests) => vitals.requests().into(),
            Field::Pod(PodField::Decoding) => vitals.decoding().into(),
            Field::Pod(PodField::Waiting) => vitals.waiting().into(),
            Field::Pod(PodField::PrefillTokens) => int(vitals.prefill_tokens()),
            Field::Pod(PodField::DecodeTokens) => int(vitals.decode_tokens()),
            Field::Pod(PodField::KvTokens) => int(self.pod.facts().kv_tokens.unwrap_or(0)),
            Field::Pod(PodField::CachedBlocks) => {
                self.held.map_or(0, |held| held.depth(self.pod).into())
            }
            Field::Pod(PodField::UncachedTokens) => int(self.uncached_tokens()),
            Field::Pod(PodField::PlacedTokens) => {
                let placed = self.rule.placed.get(self.pod.slot().position());
                placed.map_or(0, |tokens| int(tokens.load(Relaxed)))
            }
            Field::Request(RequestField::PromptTokens) => int(self.prompt_tokens),
            Field::Request(RequestField::BlockTokens) => {
                self.held.map_or(0, |held| held.prompt().block_tokens as i64)
            }
            Field::Request(RequestField::OutputTokens) => {
                self.scene.request().output_tokens.unwrap_or(0).into()
            }
            Field::Request(RequestField::Priority) => self.scene.request().priority.level().into(),
            Field::Fleet(FleetField::Pods) => self.fleet.pods as i64,
            Field::Fleet(FleetField::LeastRequests) => self.fleet.requests.0.into(),
            Field::Fleet(FleetField::MostRequests) => self.fleet.requests.1.into(),
            Field::Fleet(FleetField::LeastPrefillTokens) => int(self.fleet.prefill_tokens.0),
            Field::Fleet(FleetField::MostPrefillTokens) => int(self.fleet.prefill_tokens.1),
            _ => 0,
        }
    }

    fn double(&self, field: Field) -> f64 {
        match field {
            Field::Pod(PodField::KvUsage) => self.pod.vitals().kv_usage(),
            Field::Pod(PodField::CachedShare) => self.held.map_or(0.0, |held| held.share(self.pod)),
            Field::Fleet(FleetField::MostCachedShare) => self.fleet.most_cached_share,
            _ => 0.0,
        }
    }

    fn truth(&self, _: Field) -> bool {
        false
    }

    fn text(&self, field: Field) -> Option<&str> {
        let (facts, request) = (self.pod.facts(), self.scene.request());
        let name = match field {
            Field::Pod(PodField::Name) => Some(&facts.name),
            Field::Pod(PodField::Engine) => facts.engine.as_ref(),
            Field::Pod(PodField::Host) => facts.topology.host.as_ref(),
            Field::Pod(PodField::Rack) => facts.topology.rack.as_ref(),
            Field::Pod(PodField::Zone) => facts.topology.zone.as_ref(),
            Field::Pod(PodField::Region) => facts.topology.region.as_ref(),
            Field::Request(RequestField::Model) => Some(&request.model.base),
            Field::Request(RequestField::Lora) => request.model.lora.as_ref(),
            Field::Request(RequestField::Tenant) => request.tenant.as_ref(),
            Field::Label(at) => facts.label(self.rule.labels.get(usize::from(at))?),
            Field::Attribute(at) => self.attributes?.get(self.rule.names.get(usize::from(at))?),
            _ => None,
        };
        name.map(Name::as_str)
    }
}

impl Scope<'_> {
    fn uncached_tokens(&self) -> u64 {
        self.held.map_or(self.prompt_tokens, |held| held.uncached_tokens(self.pod))
    }
}

impl Expression {
    fn scope<'a>(&'a self, scene: &'a Decision<'a>, candidates: &[Candidate]) -> Option<Scope<'a>> {
        let held = self.held.as_ref().and_then(|handle| scene.held(handle));
        Some(Scope {
            rule: self,
            scene,
            pod: scene.pod(*candidates.first()?),
            held,
            attributes: self.attributes.as_ref().and_then(|handle| scene.read(handle)),
            prompt_tokens: held.map_or_else(
                || scene.request().estimated_tokens(),
                |held| held.prompt().prompt_tokens as u64,
            ),
            fleet: FleetFigures::of(scene, candidates, held),
        })
    }
}

impl Score for Expression {
    fn scale(&self) -> Scale {
        self.scale
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(mut scope) = self.scope(scene, candidates) else { return };
        for (candidate, score) in candidates.iter().zip(scores) {
            scope.pod = scene.pod(*candidate);
            *score = match (self.program.evaluate(&scope), self.scale) {
                (Ok(value), Scale::Unit) => value.clamp(0.0, 1.0),
                (Ok(value), Scale::Milliseconds) => value,
                (Err(_), Scale::Unit) => 0.0,
                (Err(_), Scale::Milliseconds) => f64::INFINITY,
            };
        }
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        let placed = self.placed.get(scene.pod(pod).slot().position());
        if let (Some(placed), Some(scope)) = (placed, self.scope(scene, &[pod])) {
            placed.fetch_add(scope.uncached_tokens(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
