//! Prepare: the profile tokenizes and hashes the prompt.
//!
//! A long prompt is tokenized in the low-priority pool, in turns with those of other senders and
//! until its deadline. A prompt that no engine of its model would accept, that waits for too long,
//! or that cannot be tokenized piece by piece is routed without its tokens: by load, with an
//! estimated length, and without a prediction. What becomes of it is up to the engine.

use crate::log_limit::LogLimit;
use crate::observe::request_trace::RequestTrace;
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::low_priority_pool::{BodyWork, PoolError};
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::EncodeLimits;
use wornpath_events::Clock;
use wornpath_routing::{
    Explanation, Profile, Recorder, Rejection, Request, RoutingContext, Untokenized,
};

static PREPARE: TaskName = TaskName::new("tokenize a prompt");

/// The longest part of a prompt that is tokenized in one go. A mebibyte of a single letter takes
/// half a second, and one of ordinary text 50 ms.
const UNSPLIT_BYTES: usize = 1 << 20;

/// One line per minute and reason.
static UNTOKENIZED_LOG: [LogLimit; Untokenized::ALL.len()] =
    [const { LogLimit::new(Duration::from_secs(60)) }; Untokenized::ALL.len()];

/// The context of a request after the profile's `prepare` plugins.
pub(crate) async fn prepare(
    worker: &Arc<Worker>,
    profile: &Arc<Profile>,
    request: Request,
    body: &BodyWork<'_>,
    trace: &mut Option<Box<RequestTrace>>,
) -> Result<RoutingContext, ErrorResponse> {
    let mut context = profile.context(request);
    if !body.length.is_long && trace.is_none() {
        let _running = running(&PREPARE);
        profile.prepare(&mut context)?;
        report_untokenized(worker, &context, body);
        return Ok(context);
    }
    let clock = trace.is_some().then(|| worker.gateway.pods().clock());
    if let Some(trace) = trace {
        trace.prepared = worker.gateway.now();
    }
    let work = Preparation { profile: Arc::clone(profile), context, clock };
    let prepared = if body.length.is_long {
        Box::pin(prepare_long(worker, body, work)).await?
    } else {
        let _running = running(&PREPARE);
        work.run()?
    };
    report_untokenized(worker, &prepared.context, body);
    if let Some(trace) = trace {
        trace.explanation = prepared.explanation;
    }
    Ok(prepared.context)
}

/// A request to be prepared, on any thread.
struct Preparation {
    profile: Arc<Profile>,
    context: RoutingContext,
    /// Measures how long each plugin takes, if the request is traced.
    clock: Option<Clock>,
}

struct Prepared {
    context: RoutingContext,
    explanation: Explanation,
}

impl Preparation {
    fn run(mut self) -> Result<Prepared, Rejection> {
        let explanation = match self.clock {
            None => {
                self.profile.prepare(&mut self.context)?;
                Explanation::default()
            }
            Some(clock) => {
                let now = || clock.now();
                let mut recorder = Recorder::new(&now);
                self.profile.prepare_explained(&mut self.context, &mut recorder)?;
                recorder.finish()
            }
        };
        Ok(Prepared { context: self.context, explanation })
    }
}

/// Prepares a request with a long body in the pool, within the limits of its model.
async fn prepare_long(
    worker: &Arc<Worker>,
    body: &BodyWork<'_>,
    mut work: Preparation,
) -> Result<Prepared, ErrorResponse> {
    let gateway = &worker.gateway;
    let limits = gateway.settings().limits;
    let context_limit = gateway.snapshot().context_limit(&work.context.request().model.base);
    let tokens = context_limit.map_or(limits.prompt_tokens, |limit| limit.tokens);
    work.context.set_encode_limits(EncodeLimits { tokens, unsplit_bytes: UNSPLIT_BYTES });
    let prepared = match gateway.pool.turn_in_time(body, limits.waiting_bytes).await {
        Ok(turn) => {
            let bytes = body.length.bytes;
            let job = gateway.pool.start(turn, &PREPARE, bytes, move || work.run());
            job.result_by(body.deadline).await??
        }
        Err(PoolError::Closed) => return Err(PoolError::Closed.into()),
        Err(error @ (PoolError::QueueFull | PoolError::Timeout)) => {
            let is_late = error == PoolError::Timeout;
            let reason = if is_late { Untokenized::Timeout } else { Untokenized::QueueFull };
            work.context.skip_tokenization(reason);
            work.run()?
        }
    };
    if let (Some(Untokenized::TooLong), Some(limit)) =
        (prepared.context.untokenized(), context_limit)
        && limit.is_configured
    {
        report_untokenized(worker, &prepared.context, body);
        return Err(longer_than_configured(&prepared.context, limit.tokens).into());
    }
    Ok(prepared)
}

/// A prompt that is too long for every pod is refused if the pods are configured with their context
/// lengths. Otherwise the engine decides.
fn longer_than_configured(context: &RoutingContext, tokens: usize) -> Rejection {
    let model = &context.request().model.base;
    let reason = format!(
        "context window exceeded: the prompt has more than {tokens} tokens, and `{model}` is served with at most \
         {tokens}; shorten the prompt"
    );
    Rejection::refused(400, reason)
}

fn report_untokenized(worker: &Worker, context: &RoutingContext, body: &BodyWork<'_>) {
    let Some(reason) = context.untokenized() else { return };
    if let Some(metrics) = worker.gateway.metrics() {
        metrics.untokenized(reason);
    }
    if UNTOKENIZED_LOG[reason as usize].is_due() {
        let request = context.request();
        let model = &request.model.base;
        let is_known = worker.gateway.snapshot().knows(model);
        tracing::warn!(
            reason = reason.word(),
            model = is_known.then(|| tracing::field::display(model)),
            tenant = request.tenant.as_ref().map(tracing::field::display),
            bytes = body.length.bytes,
            "prompt not tokenized: routed by load, without a prediction (one line per minute)"
        );
    }
}
