//! The routing profile of batch requests, rebuilt when a reload changes the models.

use crate::error::BatchesError;
use std::sync::{Arc, Mutex, PoisonError};
use wornpath_config::Settings;
use wornpath_gateway::RouteTable;
use wornpath_gateway::proxy::gateway::Gateway;
use wornpath_routing::{Profile, ProfileEnv};

/// Routes batch requests to their planned pod, if it is eligible. They wait in the queue, behind
/// all online requests, until the pod has nearly finished its work and no request waits in its
/// engine.
pub const PLANNED: &str = "\
prepare: [plan_hint, tokenize, block_hash]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 0, engine: 8b-h200, rates: fixed}
  deadline: 10m
";

/// The same by the prompts' text, for models without a tokenizer.
const PLANNED_BY_TEXT: &str = "\
prepare: [plan_hint, text_blocks]
filter: [healthy, model]
score:
  - least_load
pick:
  planned: {otherwise: max_score}
hold:
  unless:
    - backlog: {at_most_ms: 100, waiting: 0, engine: 8b-h200}
  deadline: 10m
speculate: 600s
";

/// A profile, and the settings and routes that it was built for.
struct BuiltProfile {
    settings: Arc<Settings>,
    routing: Arc<RouteTable>,
    profile: Arc<Profile>,
}

/// The profile of batch requests, for the current settings.
pub(crate) struct PlannedProfile(Mutex<BuiltProfile>);

impl PlannedProfile {
    /// Builds the profile for the current settings.
    ///
    /// # Errors
    /// If the profile is not valid with these settings.
    pub(crate) fn new(gateway: &Gateway) -> Result<Self, BatchesError> {
        let settings = gateway.settings();
        let routing = gateway.routes();
        let profile = Arc::new(check(&settings, &routing)?);
        Ok(Self(Mutex::new(BuiltProfile { settings, routing, profile })))
    }

    /// The profile for the current settings; the last valid one if they make it invalid.
    pub(crate) fn now(&self, gateway: &Gateway) -> Arc<Profile> {
        let settings = gateway.settings();
        let routing = gateway.routes();
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&built.settings, &settings) || !Arc::ptr_eq(&built.routing, &routing) {
            match check(&settings, &routing) {
                Ok(profile) => built.profile = Arc::new(profile),
                Err(error) => {
                    tracing::error!(%error, "batch profile is invalid; keeping the last one");
                }
            }
            built.settings = settings;
            built.routing = routing;
        }
        Arc::clone(&built.profile)
    }
}

fn check(settings: &Settings, routing: &RouteTable) -> Result<Profile, BatchesError> {
    let env = ProfileEnv { models: Arc::clone(routing.models()), ..ProfileEnv::default() };
    let models = &settings.models;
    let is_exact = !models.is_empty() && models.iter().all(|model| model.tokenizer.is_some());
    let planned = if is_exact { PLANNED } else { PLANNED_BY_TEXT };
    Profile::check("planned requests", planned, &env).map_err(BatchesError::Profile)
}
