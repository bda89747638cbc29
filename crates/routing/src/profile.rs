//! A profile: plugins and steps, checked as a whole. A value of this type is valid.

mod read;
mod render;
mod slots;
mod steps;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use read::HOLD;
pub use read::WithoutEvents;
use render::ProfileView;
pub use render::{SlotGraph, StepView};

use crate::explain::Recorder;
use crate::models::Models;
use crate::name::Role;
use crate::plugin::Registry;
use crate::request::Request;
use crate::slot::{
    Attributes, BlockHashes, ProfileId, Reads, RoutingContext, SlotKind, Slots, Tokens,
};
use crate::stage::{ConfiguredFilter, Prepare, Preparing, Rejection};
use crate::wait_queue::{QueueRules, Tenant};
use crate::workflow::{Bind, WorkflowStep};

/// How requests are routed: made by [`Profile::check`], shared by all threads.
pub struct Profile {
    pub(crate) id: ProfileId,
    pub(crate) slots: Vec<SlotKind>,
    pub(crate) preparers: Vec<(&'static str, Box<dyn Prepare>)>,
    pub(crate) steps: Vec<WorkflowStep>,
    /// The prompt's blocks. A profile that hashes prompts looks them up, whether or not a plugin
    /// reads them: conditional steps, reservations and cache hints depend on the result.
    pub(crate) blocks: Option<Reads<BlockHashes>>,
    pub(crate) tokens: Option<Reads<Tokens>>,
    /// Among them the request's own deadline.
    pub(crate) attributes: Option<Reads<Attributes>>,
    /// The lifetime of a speculative insert.
    pub(crate) speculate: Option<Duration>,
    without_events: WithoutEvents,
    pub(crate) holding: HoldPolicy,
    view: ProfileView,
}

/// When a request waits, and in which order.
pub(crate) struct HoldPolicy {
    /// The chosen pod must pass these, or the request waits.
    pub(crate) unless: Vec<ConfiguredFilter>,
    /// Tenants with more than one share.
    pub(crate) shares: Vec<(Tenant, u32)>,
    pub(crate) max_wait: Duration,
    pub(crate) rules: QueueRules,
}

/// What a profile is checked against.
#[derive(Clone, Debug, Default)]
pub struct ProfileEnv {
    /// The known plugins.
    pub registry: Registry,
    /// The models that are served.
    pub models: Arc<Models>,
    /// The roles of the configured pods; none if pods are not known yet.
    pub roles: Option<Vec<Role>>,
}

impl Profile {
    /// A context for a new request.
    #[must_use]
    pub fn context(&self, request: Request) -> RoutingContext {
        let slots = Slots::new(self.id, &self.slots);
        RoutingContext { request, slots, untokenized: None }
    }

    /// The blocks of a prepared prompt, if the profile hashes prompts.
    ///
    /// # Panics
    /// If another profile made the context.
    #[must_use]
    pub fn prompt_blocks<'a>(&self, context: &'a RoutingContext) -> Option<&'a BlockHashes> {
        self.assert_owns(context);
        context.slots.read(self.blocks.as_ref()?)
    }

    /// The tokens of a prepared prompt, if the profile tokenizes prompts and this one was tokenized
    /// to its end.
    ///
    /// # Panics
    /// If another profile made the context.
    #[must_use]
    pub fn prompt_length(&self, context: &RoutingContext) -> Option<u64> {
        self.assert_owns(context);
        let tokens = context.slots.read(self.tokens.as_ref()?)?;
        context.untokenized().is_none().then_some(tokens.0.len() as u64)
    }

    /// Runs the preparers, once for each request. Needs no pods, and may take long: tokenization.
    ///
    /// # Errors
    /// If the request cannot be served at all.
    pub fn prepare(&self, context: &mut RoutingContext) -> Result<(), Rejection> {
        self.run_preparers(context, None)
    }

    /// Like [`Profile::prepare`], and records how long each preparer took.
    ///
    /// # Errors
    /// If the request cannot be served at all.
    pub fn prepare_explained(
        &self,
        context: &mut RoutingContext,
        recorder: &mut Recorder<'_>,
    ) -> Result<(), Rejection> {
        self.run_preparers(context, Some(recorder))
    }

    /// Its description.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.view.description.as_deref()
    }

    /// The profile as YAML, with every default filled in.
    #[must_use]
    pub fn printed(&self) -> String {
        self.view.printed()
    }

    /// The stages, the plugins in them, and the slots between them.
    #[must_use]
    pub const fn graph(&self) -> &SlotGraph {
        &self.view.graph
    }

    /// Whether it looks prompts up in the index.
    #[must_use]
    pub const fn looks_up(&self) -> bool {
        self.blocks.is_some()
    }

    /// Whether its plans are what a simulation can run: one call, or a prefill whose KV a second call
    /// takes, with both pods chosen with the plan.
    #[must_use]
    pub fn is_one_call_or_handover(&self) -> bool {
        let is_early = |step: &WorkflowStep| step.rules.bind == Bind::Early;
        match &self.steps[..] {
            [only] => is_early(only),
            [prefill, decode] => prefill.rules.offers_kv() && is_early(prefill) && is_early(decode),
            _ => false,
        }
    }

    /// How it treats pods without events; none if it does not look prompts up.
    #[must_use]
    pub fn without_events(&self) -> Option<WithoutEvents> {
        self.looks_up().then_some(self.without_events)
    }

    /// The rules of the wait queue.
    #[must_use]
    pub const fn queue_rules(&self) -> QueueRules {
        self.holding.rules
    }

    fn run_preparers(
        &self,
        context: &mut RoutingContext,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<(), Rejection> {
        self.assert_owns(context);
        context.slots.clear();
        for (name, preparer) in &self.preparers {
            let started = recorder.as_deref().map(Recorder::now);
            let RoutingContext { request, slots, untokenized } = context;
            preparer.prepare(&mut Preparing { request, slots, untokenized })?;
            if let (Some(recorder), Some(started)) = (recorder.as_deref_mut(), started) {
                recorder.prepared(name, started);
            }
        }
        Ok(())
    }

    /// # Panics
    /// If another profile made the context: its slots would mean something else.
    pub(crate) fn assert_owns(&self, context: &RoutingContext) {
        assert!(context.slots.belongs_to(self.id), "the context was made by another profile");
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.printed())
    }
}
