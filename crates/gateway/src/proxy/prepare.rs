//! Prepare: the profile's plugins read the prompt, mostly by tokenizing and hashing it. Long
//! prompts go to the low-priority pool, so that streams on this thread do not stall.

use crate::observe::request_trace::RequestTrace;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use std::sync::Arc;
use wornpath_config::BodyLength;
use wornpath_routing::{Explanation, Profile, Recorder, Request, RoutingContext};

static PREPARE: TaskName = TaskName::new("tokenize a prompt");

/// The context of a request after the profile's `prepare` plugins.
pub(crate) async fn prepare(
    worker: &Arc<Worker>,
    profile: &Arc<Profile>,
    request: Request,
    length: BodyLength,
    trace: &mut Option<Box<RequestTrace>>,
) -> Result<RoutingContext, ErrorResponse> {
    let mut context = profile.context(request);
    if !length.is_long && trace.is_none() {
        let _running = running(&PREPARE);
        profile.prepare(&mut context)?;
        return Ok(context);
    }
    let profile = Arc::clone(profile);
    let clock = worker.gateway.pods().clock();
    let is_traced = trace.is_some();
    let work = move || {
        if !is_traced {
            return profile.prepare(&mut context).map(|()| (context, Explanation::default()));
        }
        let now = || clock.now();
        let mut recorder = Recorder::new(&now);
        let prepared = profile.prepare_explained(&mut context, &mut recorder);
        prepared.map(|()| (context, recorder.finish()))
    };
    if let Some(trace) = trace {
        trace.prepared = worker.gateway.now();
    }
    let (context, explanation) = if length.is_long {
        Box::pin(worker.run_in_pool(&PREPARE, length, work)).await??
    } else {
        let _running = running(&PREPARE);
        work()?
    };
    if let Some(trace) = trace {
        trace.explanation = explanation;
    }
    Ok(context)
}
