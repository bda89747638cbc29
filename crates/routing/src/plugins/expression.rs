//! `expression`: a rule of the user's own, in CEL, over the pod, the request and all candidates.
//!
//! The expression is parsed and typed when the profile is assembled; see [`cel`](super::cel) for the
//! language and [`vocabulary`] for the fields. Only the fields that are named cost anything.

mod placed;
mod vocabulary;

use wornpath_yaml::{Parameter, Takes};

use super::cel::{CelBatch, FUNCTIONS, Program, compile};
use crate::fleet::{Candidate, FleetPod};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, HeldBlocks, HeldDepth, Scale, Score};
use crate::values::Attributes;
use placed::Placed;
use vocabulary::{Field, FieldNames, FleetField, PodField, RequestField};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "expression",
    summary: "A number from a CEL expression over `pod`, `request` and `fleet`. A score is cut to 0 to 1, more is \
              better; a cost is in milliseconds, less is better. What cannot be computed, such as a division by \
              zero, is the worst.",
    parameters: &[
        Parameter::optional(
            "score",
            Takes::Text,
            "The expression, if its value is from 0 to 1. Numbers of one candidate: pod.requests, pod.decoding, \
             pod.prefill_tokens, pod.decode_tokens, pod.waiting, pod.kv_usage, pod.kv_tokens, \
             pod.cached_blocks, pod.cached_share, pod.uncached_tokens, pod.placed_tokens (what this scorer's \
             profile sent it to compute so far); its texts: pod.name, pod.engine, pod.host, pod.rack, pod.zone, \
             pod.region, pod.labels.…. Of the request: request.prompt_tokens, request.block_tokens, \
             request.output_tokens, request.priority; request.model, request.lora, request.tenant, \
             request.attributes.…. Of all candidates together: fleet.pods, fleet.least_requests, \
             fleet.most_requests, fleet.least_prefill_tokens, fleet.most_prefill_tokens, \
             fleet.most_cached_share.",
        ),
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
    held: Option<HeldDepth>,
    attributes: Option<Reads<Attributes>>,
    /// Unless the rule does not ask.
    placed: Option<Placed>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
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
    let words = FieldNames::default();
    let program = match compile(&text, &words) {
        Ok(program) => program,
        Err(error) => {
            let cure = format!("expressions are CEL; functions: {}", FUNCTIONS.join(", "));
            return Err(assembly.refuse(parameter, &error.to_string(), &cure));
        }
    };
    let placed = words.asks_placed.get().then(Placed::default);
    let (labels, names) = (words.labels.into_inner(), words.attributes.into_inner());
    let asks_held = words.asks_held.get() || placed.is_some();
    Ok(Box::new(Expression {
        program,
        scale,
        held: asks_held.then(|| assembly.held()),
        attributes: (!names.is_empty()).then(|| assembly.reads()),
        labels,
        names,
        placed,
    }))
}

/// The candidates as an expression sees them.
struct ExpressionScope<'a> {
    rule: &'a Expression,
    scene: &'a Decision<'a>,
    candidates: &'a [Candidate],
    held: Option<HeldBlocks<'a>>,
    attributes: Option<&'a Attributes>,
}

impl ExpressionScope<'_> {
    fn prompt_tokens(&self) -> u64 {
        match self.held {
            Some(held) => held.prompt().prompt_tokens as u64,
            None => self.scene.request().estimated_tokens(),
        }
    }

    fn uncached_tokens(&self, pod: &FleetPod) -> u64 {
        self.held.map_or_else(|| self.prompt_tokens(), |held| held.uncached_tokens(pod))
    }

    /// One number for each candidate.
    #[inline]
    fn each(&self, column: &mut [f64], figure: impl Fn(&FleetPod) -> f64) {
        for (candidate, place) in self.candidates.iter().zip(column) {
            *place = figure(self.scene.pod(*candidate));
        }
    }

    fn fill_pods(&self, field: PodField, column: &mut [f64]) {
        let held = self.held;
        match field {
            PodField::Requests => self.each(column, |pod| pod.vitals().requests().into()),
            PodField::Decoding => self.each(column, |pod| pod.vitals().decoding().into()),
            PodField::Waiting => self.each(column, |pod| pod.vitals().waiting().into()),
            PodField::PrefillTokens => {
                self.each(column, |pod| pod.vitals().prefill_tokens() as f64);
            }
            PodField::DecodeTokens => self.each(column, |pod| pod.vitals().decode_tokens() as f64),
            PodField::KvUsage => self.each(column, |pod| pod.vitals().kv_usage()),
            PodField::KvTokens => {
                self.each(column, |pod| pod.facts().kv_tokens.unwrap_or(0) as f64);
            }
            PodField::CachedBlocks => {
                self.each(column, |pod| held.map_or(0.0, |held| held.depth(pod).into()));
            }
            PodField::CachedShare => {
                self.each(column, |pod| held.map_or(0.0, |held| held.share(pod)));
            }
            PodField::UncachedTokens => self.each(column, |pod| self.uncached_tokens(pod) as f64),
            PodField::PlacedTokens => {
                if let Some(placed) = &self.rule.placed {
                    let pods = self.candidates.iter().map(|candidate| self.scene.pod(*candidate));
                    placed.fill(pods, column);
                }
            }
            // The texts, which have no number.
            PodField::Name
            | PodField::Engine
            | PodField::Host
            | PodField::Rack
            | PodField::Zone
            | PodField::Region => {}
        }
    }

    fn of_request(&self, field: RequestField) -> f64 {
        let request = self.scene.request();
        match field {
            RequestField::PromptTokens => self.prompt_tokens() as f64,
            RequestField::BlockTokens => {
                self.held.map_or(0.0, |held| held.prompt().block_tokens as f64)
            }
            RequestField::OutputTokens => request.output_tokens.unwrap_or(0).into(),
            RequestField::Priority => request.priority.level().into(),
            RequestField::Model | RequestField::Lora | RequestField::Tenant => 0.0,
        }
    }

    fn of_fleet(&self, field: FleetField) -> f64 {
        let pods = || self.candidates.iter().map(|candidate| self.scene.pod(*candidate));
        let requests = || pods().map(|pod| pod.vitals().requests());
        let prefill = || pods().map(|pod| pod.vitals().prefill_tokens());
        match field {
            FleetField::Pods => self.candidates.len() as f64,
            FleetField::LeastRequests => requests().min().unwrap_or(0).into(),
            FleetField::MostRequests => requests().max().unwrap_or(0).into(),
            FleetField::LeastPrefillTokens => prefill().min().unwrap_or(0) as f64,
            FleetField::MostPrefillTokens => prefill().max().unwrap_or(0) as f64,
            FleetField::MostCachedShare => {
                self.held.map_or(0.0, |held| pods().map(|pod| held.share(pod)).fold(0.0, f64::max))
            }
        }
    }
}

impl CelBatch<Field> for ExpressionScope<'_> {
    fn len(&self) -> usize {
        self.candidates.len()
    }

    fn varies(&self, field: Field) -> bool {
        matches!(field, Field::Pod(_) | Field::Label(_))
    }

    fn fill(&self, field: Field, column: &mut [f64]) {
        match field {
            Field::Pod(field) => self.fill_pods(field, column),
            Field::Request(field) => column.fill(self.of_request(field)),
            Field::Fleet(field) => column.fill(self.of_fleet(field)),
            Field::Label(_) | Field::Attribute(_) => {}
        }
    }

    fn text(&self, field: Field, candidate: usize) -> Option<&str> {
        let facts = self.scene.pod(*self.candidates.get(candidate)?).facts();
        let request = self.scene.request();
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

impl Expression {
    fn scope<'a>(
        &'a self,
        scene: &'a Decision<'a>,
        candidates: &'a [Candidate],
    ) -> ExpressionScope<'a> {
        ExpressionScope {
            rule: self,
            scene,
            candidates,
            held: self.held.as_ref().and_then(|handle| scene.held(handle)),
            attributes: self.attributes.as_ref().and_then(|handle| scene.read(handle)),
        }
    }
}

impl Score for Expression {
    fn scale(&self) -> Scale {
        self.scale
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        self.program.evaluate(&self.scope(scene, candidates), scores);
        for score in scores {
            *score = match self.scale {
                Scale::Unit if !score.is_finite() => 0.0,
                Scale::Unit => score.clamp(0.0, 1.0),
                Scale::Milliseconds if !score.is_finite() => f64::INFINITY,
                Scale::Milliseconds => *score,
            };
        }
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        if let Some(placed) = &self.placed {
            let chosen = scene.pod(pod);
            placed.add(chosen, self.scope(scene, &[pod]).uncached_tokens(chosen));
        }
    }
}

#[cfg(test)]
mod tests;
