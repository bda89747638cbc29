//! Waits while the model of a request has no pod that is up, as after a scale-in to zero.
//!
//! The wait is limited by the model's `wait_for_pod`, in number, and by the budget of bodies that
//! may wait. A request counts as waiting for its model meanwhile, which is the signal to start a
//! pod.

use crate::proxy::error_response::ErrorResponse;
use crate::proxy::gateway::Gateway;
use crate::proxy::model_waits::MostWithoutPod;
use std::time::Duration;
use wornpath_config::{ModelSettings, Settings};
use wornpath_routing::{Health, Name, Rejection};

/// Requests that may wait for a first pod, of all models.
const MOST_REQUESTS: usize = 4096;

/// How often a waiting request looks for a pod that came up without being asked for its models.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Waits until a pod that is up serves the model of a request, if the model is one that waits.
pub(crate) async fn wait_for_first_pod(
    gateway: &Gateway,
    settings: &Settings,
    name: &str,
    bytes: usize,
) -> Result<(), ErrorResponse> {
    let base = gateway.snapshot().model(name).base;
    let Some(model) = settings.models.iter().find(|model| model.name == base.as_str()) else {
        return Ok(());
    };
    if model.wait_for_pod.is_zero() || has_pod(gateway, &base) {
        return Ok(());
    }
    let most = MostWithoutPod { requests: MOST_REQUESTS, bytes: settings.limits.waiting_bytes };
    let Some(_admitted) = gateway.model_waits.admit(bytes, most) else {
        let why = format!("model `{base}` has no pod, and too many requests wait for one");
        return Err(Rejection::busy(&why).into());
    };
    let _waiting = gateway.model_waits.enter(&base, gateway.now());
    match tokio::time::timeout(model.wait_for_pod, until_pod(gateway, &base)).await {
        Ok(()) => Ok(()),
        Err(_) => Err(Rejection::unavailable(&too_late(model)).into()),
    }
}

fn too_late(model: &ModelSettings) -> String {
    let ModelSettings { name, wait_for_pod, .. } = model;
    format!(
        "model `{name}` has no pod that is up; waited {wait_for_pod:?} (`models[].wait_for_pod`)"
    )
}

async fn until_pod(gateway: &Gateway, model: &Name) {
    loop {
        let queried = gateway.pods().models_queried.notified();
        if has_pod(gateway, model) {
            return;
        }
        // Ends early when a pod has said which models it serves.
        let _ = tokio::time::timeout(CHECK_INTERVAL, queried).await;
    }
}

fn has_pod(gateway: &Gateway, model: &Name) -> bool {
    gateway
        .snapshot()
        .fleet()
        .pods()
        .iter()
        .any(|pod| pod.state().health() == Health::Up && pod.facts().models.contains(model))
}
