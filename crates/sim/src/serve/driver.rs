//! The task that owns an engine: advances its time, and sends each request its progress.

use super::clock::EngineClock;
use super::events::{EventStream, PromptScope};
use super::faults::Faults;
use super::metrics::{EngineCounters, EngineReport};
use crate::engine::SimEngine;
use crate::request::{Output, RequestId, SimOutcome, SimRefused, SimRequest};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A command to the engine's task.
pub(super) enum DriverCommand {
    Submit(Box<Submission>),
    Cancel(RequestId),
    ReleaseLease(RequestId, oneshot::Sender<bool>),
    ClearCache(oneshot::Sender<Result<(), usize>>),
    Report(oneshot::Sender<EngineReport>),
}

/// A request, and what its progress, its events and the metrics need.
pub(super) struct Submission {
    pub(super) request: SimRequest,
    pub(super) scope: PromptScope,
    /// The finish reason, for the metrics.
    pub(super) reason: &'static str,
    pub(super) progress: mpsc::UnboundedSender<SubmissionProgress>,
}

/// The progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SubmissionProgress {
    Refused(SimRefused),
    Accepted,
    Admitted { cached_tokens: usize },
    Token,
    Finished,
}

struct RequestInFlight {
    scope: PromptScope,
    reason: &'static str,
    progress: mpsc::UnboundedSender<SubmissionProgress>,
    submitted: Duration,
    prompt_tokens: usize,
}

/// An engine and its requests in flight.
pub(super) struct Driver {
    engine: SimEngine,
    clock: EngineClock,
    events: EventStream,
    faults: Arc<Mutex<Faults>>,
    in_flight: HashMap<RequestId, RequestInFlight>,
    counters: EngineCounters,
    outputs: Vec<Output>,
}

impl Driver {
    pub(super) fn new(
        engine: SimEngine,
        clock: EngineClock,
        events: EventStream,
        faults: Arc<Mutex<Faults>>,
    ) -> Self {
        Self {
            engine,
            clock,
            events,
            faults,
            in_flight: HashMap::new(),
            counters: EngineCounters::default(),
            outputs: Vec::new(),
        }
    }

    /// Runs until all senders of commands are dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<DriverCommand>) {
        loop {
            let wake = self.engine.next_event_time().map(|time| self.clock.when(time));
            let sleep = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => {
                        self.catch_up();
                        self.handle(command);
                    }
                    None => return,
                },
                () = sleep => self.catch_up(),
            }
        }
    }

    fn handle(&mut self, command: DriverCommand) {
        match command {
            DriverCommand::Submit(submission) => self.submit(*submission),
            DriverCommand::Cancel(request) => {
                if self.in_flight.remove(&request).is_some() {
                    self.engine.cancel(self.clock.now(), request);
                    self.counters.count_end("abort");
                }
            }
            // A reply to a caller that has gone is dropped.
            DriverCommand::ReleaseLease(request, reply) => {
                let _ = reply.send(self.engine.release_lease(self.clock.now(), request));
            }
            DriverCommand::ClearCache(reply) => {
                let _ = reply.send(self.engine.clear_cache());
            }
            DriverCommand::Report(reply) => {
                let report =
                    EngineReport { load: self.engine.load(), counters: self.counters.clone() };
                let _ = reply.send(report);
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, scope, reason, progress } = submission;
        let id = request.id;
        let prompt_tokens = request.prompt_tokens;
        let submitted = self.clock.now();
        match self.engine.submit(submitted, request) {
            Ok(()) => {
                let _ = progress.send(SubmissionProgress::Accepted);
                let request = RequestInFlight { scope, reason, progress, submitted, prompt_tokens };
                self.in_flight.insert(id, request);
            }
            Err(refused) => {
                let _ = progress.send(SubmissionProgress::Refused(refused));
            }
        }
    }

    /// Advances the engine to the present time.
    fn catch_up(&mut self) {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.engine.set_slowdown(faults.slow);
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.advance(self.clock.now(), &mut outputs);
        let mut time = Duration::ZERO;
        for output in outputs.drain(..) {
            if output.at != time {
                self.events.flush(&faults);
                time = output.at;
            }
            self.dispatch(&output);
        }
        self.events.flush(&faults);
        self.outputs = outputs;
    }

    fn dispatch(&mut self, output: &Output) {
        let (request, progress) = match output.outcome {
            SimOutcome::Admitted { request, cached_tokens } => {
                (request, SubmissionProgress::Admitted { cached_tokens })
            }
            SimOutcome::Token { request, .. } => (request, SubmissionProgress::Token),
            SimOutcome::Finished { request } => (request, SubmissionProgress::Finished),
            SimOutcome::Stored { request, .. } => {
                let scope = self.in_flight.get(&request).map(|in_flight| &in_flight.scope);
                return self.events.add(&output.outcome, scope);
            }
            SimOutcome::Preempted { .. } => return,
            SimOutcome::Removed { .. } | SimOutcome::Cleared => {
                return self.events.add(&output.outcome, None);
            }
        };
        let Some(in_flight) = self.in_flight.get(&request) else { return };
        match output.outcome {
            SimOutcome::Admitted { .. } => {
                self.counters.prompt_tokens += in_flight.prompt_tokens as u64;
            }
            SimOutcome::Token { index, .. } => {
                self.counters.generation_tokens += 1;
                if index == 0 {
                    self.counters.count_first_token(output.at.saturating_sub(in_flight.submitted));
                }
            }
            _ => self.counters.count_end(in_flight.reason),
        }
        // A dropped receiver cancels the request.
        let _ = in_flight.progress.send(progress);
        if progress == SubmissionProgress::Finished {
            self.in_flight.remove(&request);
        }
    }
}
