//! What decides about planned requests, by the models of now: a configuration that is read again may bring others.

use crate::error::BatchesError;
use std::sync::{Arc, Mutex, PoisonError};
use wornpath_config::Settings;
use wornpath_gateway::RouteTable;
use wornpath_gateway::proxy::gateway::Gateway;
use wornpath_routing::{Profile, ProfileEnv};

/// How planned requests are routed: where the plan says, if that pod may take them. They wait in the queue, behind
/// everybody else's, until that pod is about to have computed what it was sent, and none waits inside its engine.
pub const PLANNED: &str = "\
prepare: [plan_hint, tokenize, block_hash]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 0, rates: fixed}
  deadline: 10m
";

/// The same by the prompts' text, where some model has no tokenizer.
const PLANNED_BY_TEXT: &str = "\
prepare: [plan_hint, text_blocks]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 0}
  deadline: 10m
speculate: 600s
";

/// The profile, and what it was made by.
struct BuiltProfile {
    settings: Arc<Settings>,
    routing: Arc<RouteTable>,
    profile: Arc<Profile>,
}

/// The profile of planned requests.
pub(crate) struct PlannedProfile(Mutex<BuiltProfile>);

impl PlannedProfile {
    /// By what is in force.
    ///
    /// # Errors
    /// If it does not fit.
    pub(crate) fn new(gateway: &Gateway) -> Result<Self, BatchesError> {
        let (settings, routing) = (gateway.settings(), gateway.routes());
        let profile = Arc::new(check(&settings, &routing)?);
        Ok(Self(Mutex::new(BuiltProfile { settings, routing, profile })))
    }

    /// By what is in force now. Should it not fit any more, by what was before.
    pub(crate) fn now(&self, gateway: &Gateway) -> Arc<Profile> {
        let (settings, routing) = (gateway.settings(), gateway.routes());
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&made.settings, &settings) || !Arc::ptr_eq(&made.routing, &routing) {
            match check(&settings, &routing) {
                Ok(profile) => made.profile = Arc::new(profile),
                Err(error) => tracing::error!("{error}; what was in force before stays"),
            }
            (made.settings, made.routing) = (settings, routing);
        }
        Arc::clone(&made.profile)
    }
}

fn check(settings: &Settings, routing: &RouteTable) -> Result<Profile, BatchesError> {
    let surroundings = ProfileEnv { models: Arc::clone(routing.models()), ..ProfileEnv::default() };
    let models = &settings.models;
    let is_exact = !models.is_empty() && models.iter().all(|model| model.tokenizer.is_some());
    let planned = if is_exact { PLANNED } else { PLANNED_BY_TEXT };
    Profile::check("planned requests", planned, &surroundings).map_err(BatchesError::Profile)
}
