//! The calls of a plan: one attempt of a step, and the start of a concurrent step.

use super::{DEFAULT_LEASE, PlanExecution, ReadUntil};
use crate::coarse_timer;
use crate::concurrent_steps::{ConcurrentCall, ConcurrentSteps, FailureCause, StepFailure};
use crate::endpoint::Endpoint;
use crate::failure::CallError;
use crate::in_flight::{CancelledBy, InFlight};
use crate::kv_load;
use crate::replan::{CallAttempt, Replan};
use crate::request_builder::{
    MAX_STEP_BYTES, may_have_computed, outcome, query_engine_id, request, step_timeouts,
};
use crate::response::EngineResponse;
use crate::send::call;
use crate::transfer::{self, Rendezvous, reports_failed_load};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use wornpath_routing::{PlanStep, Reservation};

impl<D: Replan> PlanExecution<'_, D> {
    /// One call to the step's pod.
    pub(super) async fn attempt(
        &mut self,
        step: &mut PlanStep,
        cancelled_by: CancelledBy,
        until: ReadUntil,
    ) -> Result<(EngineResponse, Arc<Endpoint>), CallError> {
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.router.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.transfer)
            .inspect_err(|_never_sent| self.withdraw(step))?;
        let endpoint = target.endpoint;
        let traced_since = self.router.call_started();
        let in_flight = InFlight::begin(&endpoint, self.router.now(), cancelled_by);
        let timeouts = step_timeouts(self.options, step);
        let result = {
            let called = pin!(call(&endpoint, self.options.worker, request, timeouts));
            let called = pin!(after_first_poll(called, || self.router.request_sent()));
            match step.computed_after.zip(step.reservation.as_mut()) {
                None => called.await,
                Some((time, load)) => computing(called, time, load).await,
            }
        };
        // Boxed, because it is rare: it must not swell the state of every request.
        let result = match result {
            Ok(answer)
                if self.producer.is_some()
                    && reports_failed_load(&step.mutations, &self.transfer) =>
            {
                Box::pin(kv_load::check_load(answer)).await
            }
            result => result,
        };
        let result = match result {
            Ok(answer) if until == ReadUntil::End => Box::pin(self.read_whole(step, answer)).await,
            result => result,
        };
        in_flight.finish(outcome(&result), self.router.now());
        if let Some(started) = traced_since {
            let failure = result.as_ref().err();
            let attempt = CallAttempt { step: &step.name, endpoint: &endpoint, started, failure };
            self.router.call_ended(attempt);
        }
        if !may_have_computed(&result) {
            self.withdraw(step);
        }
        result.map(|mut answer| {
            answer.body.mark_client_traffic();
            (answer, endpoint)
        })
    }

    /// Reads the whole response of a step before the last; keeps what it brings for the next one.
    async fn read_whole(
        &mut self,
        step: &PlanStep,
        answer: EngineResponse,
    ) -> Result<EngineResponse, CallError> {
        let (head, body) = answer.whole(MAX_STEP_BYTES).await?;
        if head.status.is_success() {
            let from_prefill = transfer::from_prefill(&step.mutations, &body);
            self.transfer.from_prefill = from_prefill.map_err(CallError::MissingField)?;
            if self.produced(step, body.clone()) {
                // Even if an earlier prefill step was skipped, this one can be loaded.
                self.transfer.is_skipped = false;
            }
        }
        Ok(EngineResponse::from_bytes(head, body))
    }

    /// Starts a step that runs concurrently with `next`.
    pub(super) async fn start_concurrent(
        &mut self,
        step: PlanStep,
        next: &PlanStep,
        concurrent: &mut ConcurrentSteps,
    ) -> Result<(), Box<StepFailure>> {
        let prepared = self.prepare_concurrent(&step, next, concurrent.is_empty()).await;
        let (endpoint, request) = match prepared {
            Ok(prepared) => prepared,
            Err(cause) => {
                let cause = FailureCause::Failed(cause);
                return Err(Box::new(StepFailure { step, cause }));
            }
        };
        self.produced(&step, Bytes::new());
        let until = self.router.now() + step.lease.unwrap_or(DEFAULT_LEASE);
        self.router.kv_held_until(Some(until));
        let timeouts = step_timeouts(self.options, &step);
        let worker = self.options.worker;
        let now = self.router.now();
        let call = ConcurrentCall { step, endpoint, request, timeouts, worker, now };
        concurrent.spawn(call.run());
        Ok(())
    }

    /// The endpoint and the request of a step that runs concurrently with `next`.
    async fn prepare_concurrent(
        &mut self,
        step: &PlanStep,
        next: &PlanStep,
        is_first: bool,
    ) -> Result<(Arc<Endpoint>, Request<Full<Bytes>>), CallError> {
        if is_first {
            self.agree_on_rendezvous(step, next).await?;
        }
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.router.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.transfer)?;
        Ok((target.endpoint, request))
    }

    /// Sets where the two engines meet.
    async fn agree_on_rendezvous(
        &mut self,
        prefill: &PlanStep,
        decode: &PlanStep,
    ) -> Result<(), CallError> {
        let target =
            prefill.pod.and_then(|pod| self.router.target(pod)).ok_or(CallError::PodGone)?;
        let host = target.endpoint.host().to_owned();
        let port = target.bootstrap_port;
        let engine = if transfer::needs_engine_id(&decode.mutations) {
            let timeouts = step_timeouts(self.options, prefill);
            let query = pin!(query_engine_id(&target.endpoint, port, timeouts));
            after_first_poll(query, || self.router.request_sent()).await?
        } else {
            String::new()
        };
        let room = self.router.unique_id();
        self.transfer.rendezvous = Rendezvous { host, port, room, engine };
        Ok(())
    }
}

/// Calls `hook` once, after the first poll of a call: its request is on its way, and the task would
/// wait next.
async fn after_first_poll<T>(
    mut called: Pin<&mut impl Future<Output = T>>,
    hook: impl FnOnce(),
) -> T {
    let mut hook = Some(hook);
    poll_fn(|context| {
        let polled = called.as_mut().poll(context);
        if let Some(hook) = hook.take() {
            hook();
        }
        polled
    })
    .await
}

/// Waits for a response that is not streamed, and counts the prompt as computed when its estimated
/// time has passed: otherwise the pod would seem to compute it until the last token is generated.
async fn computing<T>(
    mut called: Pin<&mut impl Future<Output = T>>,
    time: Duration,
    load: &mut Reservation,
) -> T {
    match tokio::time::timeout_at(coarse_timer::after(time), called.as_mut()).await {
        Ok(answered) => answered,
        Err(_) => {
            load.first_token();
            called.await
        }
    }
}
