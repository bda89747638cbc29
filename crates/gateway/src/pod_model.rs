//! Which model a pod's events are about.
//!
//! Blocks are called by their model, so that equal prompts of two models are not one. Where a pod's model is not
//! configured, the pod is asked for it; until it has answered it gets no requests, and what it says is taken for
//! the first listed model's, which is right wherever there is only one.

use crate::fleet::PodEntry;
use crate::settings::{ModelSettings, PodSettings, Settings};
use crate::state::{ApplyError, Gateway};
use wornpath_events::{BlockIdScheme, ServedModel};
use wornpath_routing::Name;

impl Gateway {
    /// Understands the pod's events by what is known of it now.
    pub(crate) fn bind(&self, seat: &PodEntry) {
        if seat.settings.events.is_none() {
            return;
        }
        let (pod, settings) = (seat.pod.facts(), self.settings());
        // Without a model it would not have got its seat; if its model is listed no more, all stays.
        if let Ok(serving) = serving(&seat.settings, &pod.models, &settings) {
            self.events().set_served_model(pod.name.as_str(), serving, self.now());
        }
    }
}

/// How a pod's events are to be understood, if it says that it serves `told`.
pub(crate) fn serving(
    pod: &PodSettings,
    told: &[Name],
    settings: &Settings,
) -> Result<ServedModel, ApplyError> {
    let listed = |name: &Name| settings.models.iter().find(|model| *name == *model.name.as_str());
    let model: Option<&ModelSettings> = match pod.facts.models.first() {
        Some(name) => listed(name),
        None => told.iter().find_map(listed).or(settings.models.first()),
    };
    let model = model.ok_or_else(|| ApplyError::EventsWithoutModel(pod.facts.name.to_string()))?;
    Ok(ServedModel {
        key: settings.key.clone(),
        model: model.name.clone(),
        block_size: model.block_size.tokens(),
        id_scheme: BlockIdScheme::default(),
    })
}
