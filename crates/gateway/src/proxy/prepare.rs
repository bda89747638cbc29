//! Prepare: the profile's plugins read the prompt, mostly by tokenizing and hashing it. Long prompts
//! go to the low-priority pool, so that streams on this thread do not stall.

use crate::observe::request_trace::RequestTrace;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::parse::ParsedBody;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use std::sync::Arc;
use wornpath_config::BodyLength;
use wornpath_routing::{Explanation, Profile, Recorder, RoutingContext};

static PREPARE: TaskName = TaskName::new("tokenize a prompt");

pub(crate) async fn prepare(
    worker: &Arc<Worker>,
    profile: &Arc<Profile>,
    (read, length): (ParsedBody, BodyLength),
    seen: &mut Option<Box<RequestTrace>>,
) -> Result<RoutingContext, ErrorResponse> {
    let mut context = profile.context(read.request);
    let is_short = !length.is_long;
    if is_short && seen.is_none() {
        let _running = running(&PREPARE);
        profile.prepare(&mut context)?;
        return Ok(context);
    }
    let (profile, clock, is_seen) =
        (Arc::clone(profile), worker.gateway.pods().clock(), seen.is_some());
    let work = move || {
        if !is_seen {
            return profile.prepare(&mut context).map(|()| (context, Explanation::default()));
        }
        let now = || clock.now();
        let mut recorder = Recorder::new(&now);
        let prepared = profile.prepare_explained(&mut context, &mut recorder);
        prepared.map(|()| (context, recorder.finish()))
    };
    if let Some(seen) = seen {
        seen.prepared = worker.gateway.now();
    }
    let (context, explanation) = if is_short {
        let _running = running(&PREPARE);
        work()?
    } else {
        Box::pin(worker.run_apart(&PREPARE, length, work)).await??
    };
    if let Some(seen) = seen {
        seen.explanation = explanation;
    }
    Ok(context)
}
