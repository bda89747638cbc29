//! The values that an expression's fields have in one decision.

use super::placed_tokens::PlacedTokenSums;
use super::vocabulary::{Field, FieldNames, FleetField, PodField, RequestField};
use crate::fleet::{Candidate, FleetPod};
use crate::name::Name;
use crate::plugin::Assembly;
use crate::plugins::cel::CelBatch;
use crate::slot::{Attributes, Reads};
use crate::stage::{Decision, HeldBlocks, HeldDepth};

/// The fields that an expression names, and the right to read them.
pub(super) struct UsedFields {
    /// The pod labels, by the number in [`Field::Label`].
    labels: Vec<Name>,
    /// The request attributes, by the number in [`Field::Attribute`].
    attribute_names: Vec<Name>,
    held: Option<HeldDepth>,
    attributes: Option<Reads<Attributes>>,
    /// None if the expression does not use `pod.placed_tokens`.
    pub(super) placed: Option<PlacedTokenSums>,
}

impl UsedFields {
    /// Takes the handles that the collected fields need.
    pub(super) fn new(fields: FieldNames, assembly: &mut Assembly<'_>) -> Self {
        let placed = fields.uses_placed.get().then(PlacedTokenSums::default);
        let uses_held = fields.uses_held.get() || placed.is_some();
        let attribute_names = fields.attributes.into_inner();
        Self {
            held: uses_held.then(|| assembly.held()),
            attributes: (!attribute_names.is_empty()).then(|| assembly.reads()),
            labels: fields.labels.into_inner(),
            attribute_names,
            placed,
        }
    }

    pub(super) fn scope<'a>(
        &'a self,
        decision: &'a Decision<'a>,
        candidates: &'a [Candidate],
    ) -> ExpressionScope<'a> {
        ExpressionScope {
            fields: self,
            decision,
            candidates,
            held: self.held.as_ref().and_then(|handle| decision.held(handle)),
            attributes: self.attributes.as_ref().and_then(|handle| decision.read(handle)),
        }
    }
}

/// The values of an expression's fields in one decision.
pub(super) struct ExpressionScope<'a> {
    fields: &'a UsedFields,
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

    pub(super) fn uncached_tokens(&self, pod: &FleetPod) -> u64 {
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
                if let Some(placed) = &self.fields.placed {
                    let pods =
                        self.candidates.iter().map(|candidate| self.decision.pod(*candidate));
                    placed.fill(pods, column);
                }
            }
            // Strings, which `text` returns.
            PodField::Name
            | PodField::Speed
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
            Field::Pod(PodField::Speed) => facts.engine.as_ref(),
            Field::Pod(PodField::Host) => facts.topology.host.as_ref(),
            Field::Pod(PodField::Rack) => facts.topology.rack.as_ref(),
            Field::Pod(PodField::Zone) => facts.topology.zone.as_ref(),
            Field::Pod(PodField::Region) => facts.topology.region.as_ref(),
            Field::Request(RequestField::Model) => Some(&request.model.base),
            Field::Request(RequestField::Lora) => request.model.lora.as_ref(),
            Field::Request(RequestField::Tenant) => request.tenant.as_ref(),
            Field::Label(at) => facts.label(self.fields.labels.get(usize::from(at))?),
            Field::Attribute(at) => {
                self.attributes?.get(self.fields.attribute_names.get(usize::from(at))?)
            }
            _ => None,
        };
        name.map(Name::as_str)
    }
}
