//! What decides about planned requests, by the models of now: a configuration that is read again may bring others.

use super::{BatchesError, PLANNED, PLANNED_BY_TEXT};
use crate::routing::Routing;
use crate::state::Gateway;
use std::sync::{Arc, Mutex, PoisonError};
use wornpath_config::Settings;
use wornpath_routing::{Profile, ProfileEnv};

/// The profile, and what it was made by.
struct BuiltProfile {
    settings: Arc<Settings>,
    routing: Arc<Routing>,
    profile: Arc<Profile>,
}

/// The profile of planned requests.
pub(super) struct PlannedProfile(Mutex<BuiltProfile>);

impl PlannedProfile {
    /// By what is in force.
    ///
    /// # Errors
    /// If it does not fit.
    pub(super) fn new(gateway: &Gateway) -> Result<Self, BatchesError> {
        let (settings, routing) = (gateway.settings(), gateway.routing());
        let profile = Arc::new(check(&settings, &routing)?);
        Ok(Self(Mutex::new(BuiltProfile { settings, routing, profile })))
    }

    /// By what is in force now. Should it not fit any more, by what was before.
    pub(super) fn now(&self, gateway: &Gateway) -> Arc<Profile> {
        let (settings, routing) = (gateway.settings(), gateway.routing());
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

fn check(settings: &Settings, routing: &Routing) -> Result<Profile, BatchesError> {
    let surroundings = ProfileEnv { models: Arc::clone(routing.models()), ..ProfileEnv::default() };
    let models = &settings.models;
    let is_exact = !models.is_empty() && models.iter().all(|model| model.tokenizer.is_some());
    let planned = if is_exact { PLANNED } else { PLANNED_BY_TEXT };
    Profile::check("planned requests", planned, &surroundings).map_err(BatchesError::Profile)
}
