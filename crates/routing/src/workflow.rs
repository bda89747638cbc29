//! Workflows: the steps that answer a request, and the selector that finds the pod of each.
//!
//! There is one mechanism, a list of steps; `single` and `prefill_decode` are shorthands for lists.
//! A step can be left out when too little of the prompt is uncached to be worth it.

mod parts;
mod read;

use std::time::Duration;

pub(crate) use read::{PREFILL_DECODE, STEP, read};
use wornpath_yaml::{Span, Value, writer};

use crate::name::{Name, Role};
use crate::plan::{FailurePolicy, Mutation, Start};
use crate::selector::Selector;
use crate::slot::{Picked, Writes};

/// The position of a step's selector in the profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SelectorPlace {
    /// At the top level of the profile.
    Top,
    /// In `selectors`, under this name.
    Named(String),
}

/// A step as the profile has it, before its selector is made.
pub(crate) struct StepDraft {
    pub(crate) name: Name,
    pub(crate) span: Span,
    /// Of `needs` or `brings`.
    pub(crate) parts_span: Span,
    pub(crate) role_span: Span,
    pub(crate) selector: SelectorPlace,
    pub(crate) selector_span: Span,
    pub(crate) rules: StepRules,
}

/// The settings of a step that do not depend on the chosen pod.
#[derive(Clone, Debug)]
pub(crate) struct StepRules {
    pub(crate) role: Role,
    pub(crate) failure: FailurePolicy,
    pub(crate) fallbacks: usize,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) bind: Bind,
    pub(crate) start: Start,
    pub(crate) min_uncached_tokens: Option<u64>,
    pub(crate) mutations: Vec<Mutation>,
    /// The body field that carries the cache hint.
    pub(crate) cache_hint: Option<String>,
    pub(crate) speculates: bool,
}

/// When a step gets its pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bind {
    /// With the plan.
    Early,
    /// When the step starts.
    Late,
}

/// A step with its selector.
pub(crate) struct WorkflowStep {
    pub(crate) name: Name,
    pub(crate) selector: Selector,
    pub(crate) rules: StepRules,
    pub(crate) picked: Writes<Picked>,
}

impl StepRules {
    /// Whether the step is left out when the next one has little to compute.
    pub(crate) const fn is_conditional(&self) -> bool {
        self.min_uncached_tokens.is_some()
    }

    /// Whether it keeps the KV of one computed prompt for a later step.
    pub(crate) fn offers_kv(&self) -> bool {
        self.mutations.iter().any(|mutation| matches!(mutation, Mutation::OfferKv(_)))
    }

    /// As YAML, without the name.
    pub(crate) fn to_yaml(&self) -> String {
        let mut all = vec![
            format!("role: {}", writer::word(self.role.as_str())),
            format!("attempts: {}", self.failure.attempts),
            format!("then: {}", self.failure.then.word()),
            format!("fallbacks: {}", self.fallbacks),
        ];
        all.extend(self.deadline.map(|time| format!("deadline: {}", writer::time(time))));
        all.extend(self.lease.map(|time| format!("lease: {}", writer::time(time))));
        all.push(format!("bind: {}", if self.bind == Bind::Late { "late" } else { "early" }));
        let start = if self.start == Start::Together { "together" } else { "after" };
        all.push(format!("start: {start}"));
        all.extend(self.min_uncached_tokens.map(|least| format!("min_uncached_tokens: {least}")));
        let [mut fields, mut brought, mut filled] = [(); 3].map(|()| Vec::new());
        for mutation in &self.mutations {
            match mutation {
                Mutation::PrefillOnly => all.push("prefill_only: true".to_owned()),
                Mutation::OfferKv(transfer) => all.push(format!("offers: {}", transfer.word())),
                Mutation::TakeKv(transfer) => all.push(format!("takes: {}", transfer.word())),
                Mutation::Set { field, value } => fields.push((field.clone(), value.clone())),
                Mutation::Bring { part, pointer } => {
                    brought.push((part.clone(), pointer.as_str().into()));
                }
                Mutation::Fill { field, template } => {
                    filled.push((field.clone(), template.clone()));
                }
            }
        }
        for (name, fields) in [("set", fields), ("brings", brought), ("needs", filled)] {
            if !fields.is_empty() {
                all.push(format!("{name}: {}", Value::Fields(fields)));
            }
        }
        all.extend(self.cache_hint.iter().map(|field| format!("cache_hint: {field}")));
        all.push(format!("speculate: {}", self.speculates));
        all.join(", ")
    }
}
