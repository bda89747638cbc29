//! The scorer `expression`: a score written by the user.

use wornpath_yaml::{Parameter, Takes};

use super::language;
use super::scope::UsedFields;
use super::vocabulary::{Field, FieldNames};
use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::plugins::cel::{Program, compile_number};
use crate::stage::{Decision, Scale, Score};

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
             this profile sent to it so far); its strings: pod.name, pod.speed, pod.host, pod.rack, pod.zone, \
             pod.region, pod.labels.…. Of the request: request.prompt_tokens, request.block_tokens, \
             request.output_tokens, request.priority; request.model, request.lora, tenant.name (also as \
             request.tenant), request.attributes.…. Of all candidates together: fleet.pods, fleet.least_requests, \
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
    fields: UsedFields,
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
    let program = compile_number(&text, &fields)
        .map_err(|error| assembly.refuse(parameter, &error.to_string(), &language()))?;
    Ok(Box::new(Expression { program, scale, fields: UsedFields::new(fields, assembly) }))
}

impl Score for Expression {
    fn scale(&self) -> Scale {
        self.scale
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        self.program.evaluate(&self.fields.scope(decision, candidates), scores);
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
        if let Some(placed) = &self.fields.placed {
            let chosen = decision.pod(pod);
            placed.add(chosen, self.fields.scope(decision, &[pod]).uncached_tokens(chosen));
        }
    }
}
