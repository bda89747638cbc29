//! The life of a request in a replay: sent to an engine, handed from prefill to decode, ended.

use super::ReplayState;
use crate::replay::router::{RouterOutcome, is_cache_event};
use crate::request::{PromptSource, RequestId, SimOutcome, SimRequest};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{EngineHash, Moment, Tier};
use wornpath_routing::{Reservation, RoutingPlan};

use super::DueEvent;

/// How long a prefill engine keeps the blocks for the decode engine: until they are fetched. Real
/// leases are shorter and are renewed while the request waits for the decode engine.
const UNTIL_FETCHED: Duration = Duration::from_secs(1 << 32);

/// A plan that is being executed. Of two steps, the first computes the prompt, and the second loads
/// it and generates.
#[derive(Debug)]
pub(super) struct RunningPlan {
    plan: RoutingPlan,
    /// The pod of each step.
    pods: Vec<usize>,
    /// The step that runs.
    step: usize,
}

impl RunningPlan {
    /// The pod that has the request now.
    pub(super) fn pod(&self) -> usize {
        self.pods[self.step]
    }

    /// The pod that has computed the prompt for the step that runs.
    fn prefill_pod(&self) -> Option<usize> {
        self.step.checked_sub(1).map(|step| self.pods[step])
    }

    fn is_last_step(&self) -> bool {
        self.step + 1 == self.pods.len()
    }

    fn reservation(&mut self) -> Option<&mut Reservation> {
        self.plan.steps[self.step].reservation.as_mut()
    }
}

impl ReplayState<'_> {
    pub(super) fn apply_outcome(&mut self, now: Duration, outcome: RouterOutcome) {
        match outcome {
            RouterOutcome::Held => {}
            RouterOutcome::Refused { turn } => self.end(now, turn),
            RouterOutcome::Sent { turn, pods, plan } => {
                if let Some((background, job)) = self.background_job(turn) {
                    background.sent(job, pods[0]);
                }
                self.plans[turn] = Some(RunningPlan { plan, pods, step: 0 });
                self.start_step(now, turn);
            }
        }
    }

    /// Sends a request to the engine of its step.
    fn start_step(&mut self, now: Duration, turn: usize) {
        let running = self.plans[turn].as_ref().expect("a step belongs to a running plan");
        let pod = running.pod();
        let is_last = running.is_last_step();
        let prefill_pod = running.prefill_pod();
        let predicted = running.plan.steps[0].cache.tokens;
        let record = &mut self.records[turn];
        match is_last {
            true => record.sent = Some((now, pod)),
            false => record.prefilled = Some((now, pod)),
        }
        record.predicted_tokens = predicted;
        let prompt = self.turn(turn);
        let blocks = prompt.full_blocks(self.trace.block_size);
        let reply = self.replies.get(turn).copied().unwrap_or_default();
        let chain = blocks.iter().chain(reply).copied().map(EngineHash);
        let request = SimRequest {
            id: RequestId(turn as u64),
            prompt_tokens: prompt.prompt_tokens,
            output_tokens: if is_last { prompt.output_tokens } else { 1 },
            chain: chain.collect::<Arc<[_]>>(),
            source: match prefill_pod {
                Some(_) => PromptSource::Transferred,
                None => PromptSource::Computed,
            },
            lease: (!is_last).then_some(UNTIL_FETCHED),
        };
        let submitted = self.engines[pod].submit(now, request);
        self.schedule_engine(pod);
        if submitted.is_err() {
            self.release_prefill(now, turn);
            self.end(now, turn);
        }
    }

    /// Takes a request off its pods, as when one of them leaves.
    pub(super) fn withdraw(&mut self, now: Duration, turn: usize) {
        self.release_prefill(now, turn);
        if let Some(running) = self.plans[turn].take() {
            self.engines[running.pod()].cancel(now, RequestId(turn as u64));
        }
    }

    /// Releases the blocks that a prefill engine keeps for the step that runs.
    fn release_prefill(&mut self, now: Duration, turn: usize) {
        let prefill_pod = self.plans[turn].as_ref().and_then(RunningPlan::prefill_pod);
        if let Some(pod) = prefill_pod {
            self.engines[pod].release_lease(now, RequestId(turn as u64));
            self.schedule_engine(pod);
        }
    }

    pub(super) fn record(&mut self, now: Duration, pod: usize, outcome: &SimOutcome) {
        match *outcome {
            SimOutcome::Admitted { request, cached_tokens } => {
                let turn = request.0 as usize;
                let running = self.plans[turn].as_ref();
                // What a decode engine loads was computed, or cached, by the prefill engine.
                if running.is_some_and(|running| running.prefill_pod().is_none()) {
                    self.records[turn].cached_tokens = cached_tokens;
                }
            }
            SimOutcome::Token { request, .. } => self.first_token(now, request.0 as usize),
            SimOutcome::Finished { request } => self.finished(now, request.0 as usize),
            SimOutcome::Stored { request, ref blocks, tier: Tier::Gpu, .. } => {
                let tokens = (blocks.len() * self.trace.block_size.get()) as u64;
                if self.tracks_prefill
                    && let Some(reservation) = self.reservation(request.0 as usize)
                {
                    reservation.computed_at(tokens, Moment::at(now));
                }
            }
            _ => {}
        }
        if is_cache_event(outcome) {
            for router in &mut self.routers {
                router.receive_event(now, pod, outcome);
            }
        }
    }

    fn first_token(&mut self, now: Duration, turn: usize) {
        if let Some(reservation) = self.reservation(turn) {
            reservation.first_token_at(Moment::at(now));
        }
        if self.plans[turn].as_ref().is_none_or(RunningPlan::is_last_step) {
            self.records[turn].first_token = Some(now);
            self.release_prefill(now, turn);
        }
        if let Some((background, job)) = self.background_job(turn) {
            background.prefilled(job);
        }
    }

    fn finished(&mut self, now: Duration, turn: usize) {
        if let Some(running) = &mut self.plans[turn]
            && !running.is_last_step()
        {
            running.plan.steps[running.step].reservation = None;
            running.step += 1;
            return self.start_step(now, turn);
        }
        // An embedding has no first token.
        self.release_prefill(now, turn);
        self.records[turn].end = Some(now);
        let generated = self.turn(turn).output_tokens.saturating_sub(1) as u64;
        if let Some(reservation) = self.reservation(turn) {
            reservation.decoded(generated);
            reservation.ended_at(Moment::at(now));
        }
        self.end(now, turn);
    }

    fn reservation(&mut self, turn: usize) -> Option<&mut Reservation> {
        self.plans[turn].as_mut()?.reservation()
    }

    /// Ends a request, finished or failed: releases its load and starts the next turn of its
    /// session.
    fn end(&mut self, now: Duration, turn: usize) {
        self.plans[turn] = None;
        if let Some((background, job)) = self.background_job(turn) {
            background.ended(job);
            return;
        }
        self.unfinished -= 1;
        self.is_stopped |= (self.watch)(turn, &self.records[turn]).is_break();
        for (next, delay) in std::mem::take(&mut self.following[turn]) {
            self.due_events.push(Reverse((now + delay, DueEvent::Arrival(next))));
        }
    }
}
