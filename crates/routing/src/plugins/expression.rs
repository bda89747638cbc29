//! `expression`: a score written by the user in CEL, over the pod, the request and all candidates.
//!
//! The expression is parsed and type-checked when the profile is assembled; see [`cel`](super::cel)
//! for the language and [`vocabulary`] for the fields. A decision computes only the fields that the
//! expression names.

mod placed_tokens;
mod vocabulary;

use wornpath_yaml::{Parameter, Takes};

use super::cel::{CelBatch, FUNCTIONS, Program, compile};
use crate::fleet::{Candidate, FleetPod};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Attributes, Reads};
use crate::stage::{Decision, HeldBlocks, HeldDepth, Scale, Score};
use placed_tokens::PlacedTokenSums;
use vocabulary::{Field, FieldNames, FleetField, PodField, RequestField};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "expression",
    summary: "The value of a CEL expression over `pod`, `request` and `fleet`. A score is clamped to 0 to 1, more is \
              better; a cost is in milliseconds, less is better. A value that cannot be computed, such as a division \
              by zero, counts as the worst.",
    parameters: &[
        Parameter::optional(
            "score",
            Takes::Text,
            "An expression with a value from 0 to 1. Numbers of one candidate: pod.requests, pod.decoding, \
             pod.prefill_tokens, pod.unanswered_tokens (uncached tokens of requests without a first token), \
             pod.in_flight_tokens (of all requests in flight), pod.decode_tokens, pod.waiting, pod.kv_usage, \
             pod.kv_tokens, pod.cached_blocks, pod.cached_share, pod.uncached_tokens, pod.placed_tokens (uncached tokens that \
             this profile sent to it so far); its strings: pod.name, pod.engine, pod.host, pod.rack, pod.zone, \
             pod.region, pod.labels.…. Of the request: request.prompt_tokens, request.block_tokens, \
             request.output_tokens, request.priority; request.model, request.lora, request.tenant, \
             request.attributes.…. Of all candidates together: fleet.pods, fleet.least_requests, \
             fleet.most_requests, fleet.least_prefill_tokens, fleet.most_prefill_tokens, \
             fleet.most_cached_share.",
        ),
        Parameter::optional("cost", Takes::Text, "An expression with a value in milliseconds."),
    ],
    needs: &[],
    conflicts: &[],
    example: "expression: {score: \"pod.labels.gpu == 'h100' ? 1.0 : 0.5\"}",
    make: Make::Score(make),
};

struct Expression {
    program: Program<Field>,
    scale: Scale,
    /// The pod labels that the expression names, by the number in [`Field::Label`].
    labels: Vec<Name>,
    /// The request attributes that it names, by the number in [`Field::Attribute`].
    attribute_names: Vec<Name>,
    held: Option<HeldDepth>,
    attributes: Option<Reads<Attributes>>,
    /// None if the expression does not use `pod.placed_tokens`.
    placed: Option<PlacedTokenSums>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let score = assembly.maybe::<String>("score");
    let cost = assembly.maybe::<String>("cost");
    let (parameter, text, scale) = match (score, cost) {
        (Some(text), None) => ("score", text, Scale::Unit),
        (None, Some(text)) => ("cost", text, Scale::Milliseconds),
        (Some(_), Some(_)) => {
            let cure = "keep one of them; for two rules, add two scorers";
            return Err(assembly.refuse("cost", "both `score` and `cost` are set", cure));
        }
        (None, None) => {
            let cure = "set `score`, for example \"1.0 - pod.kv_usage\", or `cost`";
            return Err(assembly.refuse("score", "no expression is set", cure));
        }
    };
    let fields = FieldNames::default();
    let program = match compile(&text, &fields) {
        Ok(program) => program,
        Err(error) => {
            let cure = format!("expressions are CEL; functions: {}", FUNCTIONS.join(", "));
            return Err(assembly.refuse(parameter, &error.to_string(), &cure));
        }
    };
    let placed = fields.uses_placed.get().then(PlacedTokenSums::default);
    let uses_held = fields.uses_held.get() || placed.is_some();
    let labels = fields.labels.into_inner();
    let attribute_names = fields.attributes.into_inner();
    Ok(Box::new(Expression {
        program,
        scale,
        held: uses_held.then(|| assembly.held()),
        attributes: (!attribute_names.is_empty()).then(|| assembly.reads()),
        labels,
        attribute_names,
        placed,
    }))
}

/// The values of an expression's fields in one decision.
struct ExpressionScope<'a> {
    expression: &'a Expression,
    decision: &'a Decision<'a>,
    candidates: &'a [Candidate],
    held: Option<HeldBlocks<'a>>,
    attributes: Option<&'a Attributes>,
}

impl ExpressionScope<'_> {
    fn prompt_tokens(&self) -> u64 {
        match self.held {
            Some(held) => held.prompt().prompt_tokens as u64,
            None => self.decision.request().estimated_tokens(),
        }
    }

    fn uncached_tokens(&self, pod: &FleetPod) -> u64 {
        self.held.map_or_else(|| self.prompt_tokens(), |held| held.uncached_tokens(pod))
    }

    /// Fills a column with one number per candidate.
    #[inline]
    fn each(&self, column: &mut [f64], figure: impl Fn(&FleetPod) -> f64) {
        for (candidate, value) in self.candidates.iter().zip(column) {
            *value = figure(self.decision.pod(*candidate));
        }
    }

    fn fill_pod_column(&self, field: PodField, column: &mut [f64]) {
        let held = self.held;
        match field {
            PodField::Requests => self.each(column, |pod| pod.state().requests().into()),
            PodField::Decoding => self.each(column, |pod| pod.state().decoding().into()),
            PodField::Waiting => self.each(column, |pod| pod.state().waiting().into()),
            PodField::PrefillTokens => {
                self.each(column, |pod| pod.state().prefill_tokens() as f64);
            }
            PodField::DecodeTokens => self.each(column, |pod| pod.state().decode_tokens() as f64),
            PodField::UnansweredTokens => {
                self.each(column, |pod| pod.state().unanswered_tokens() as f64);
            }
            PodField::InFlightTokens => {
                self.each(column, |pod| pod.state().in_flight_tokens() as f64);
            }
            PodField::KvUsage => self.each(column, |pod| pod.state().kv_usage()),
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
                if let Some(placed) = &self.expression.placed {
                    let pods =
                        self.candidates.iter().map(|candidate| self.decision.pod(*candidate));
                    placed.fill(pods, column);
                }
            }
            // Strings, which `text` returns.
            PodField::Name
            | PodField::Engine
            | PodField::Host
            | PodField::Rack
            | PodField::Zone
            | PodField::Region => {}
        }
    }

    fn request_value(&self, field: RequestField) -> f64 {
        let request = self.decision.request();
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

    fn fleet_value(&self, field: FleetField) -> f64 {
        let pods = || self.candidates.iter().map(|candidate| self.decision.pod(*candidate));
        let requests = || pods().map(|pod| pod.state().requests());
        let prefill = || pods().map(|pod| pod.state().prefill_tokens());
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
            Field::Pod(field) => self.fill_pod_column(field, column),
            Field::Request(field) => column.fill(self.request_value(field)),
            Field::Fleet(field) => column.fill(self.fleet_value(field)),
            Field::Label(_) | Field::Attribute(_) => {}
        }
    }

    fn text(&self, field: Field, candidate: usize) -> Option<&str> {
        let facts = self.decision.pod(*self.candidates.get(candidate)?).facts();
        let request = self.decision.request();
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
            Field::Label(at) => facts.label(self.expression.labels.get(usize::from(at))?),
            Field::Attribute(at) => {
                self.attributes?.get(self.expression.attribute_names.get(usize::from(at))?)
            }
            _ => None,
        };
        name.map(Name::as_str)
    }
}

impl Expression {
    fn scope<'a>(
        &'a self,
        decision: &'a Decision<'a>,
        candidates: &'a [Candidate],
    ) -> ExpressionScope<'a> {
        ExpressionScope {
            expression: self,
            decision,
            candidates,
            held: self.held.as_ref().and_then(|handle| decision.held(handle)),
            attributes: self.attributes.as_ref().and_then(|handle| decision.read(handle)),
        }
    }
}

impl Score for Expression {
    fn scale(&self) -> Scale {
        self.scale
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        self.program.evaluate(&self.scope(decision, candidates), scores);
        for score in scores {
            *score = match self.scale {
                Scale::Unit if !score.is_finite() => 0.0,
                Scale::Unit => score.clamp(0.0, 1.0),
                Scale::Milliseconds if !score.is_finite() => f64::INFINITY,
                Scale::Milliseconds => *score,
            };
        }
    }

    fn chosen(&self, decision: &Decision<'_>, pod: Candidate) {
        if let Some(placed) = &self.placed {
            let chosen = decision.pod(pod);
            placed.add(chosen, self.scope(decision, &[pod]).uncached_tokens(chosen));
        }
    }
}

#[cfg(test)]
mod tests;
