//! The task that owns an engine: lets its time pass, and tells everybody what happened to them.

use super::clock::EngineClock;
use super::events::{EventStream, Subject};
use super::faults::Faults;
use super::metrics::EngineCounters;
use crate::engine::{EngineLoad, SimEngine};
use crate::request::{Output, RequestId, SimOutcome, SimRefused, SimRequest};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// What the engine is asked to do.
pub(super) enum DriverCommand {
    Submit(Box<Submission>),
    Cancel(RequestId),
    ReleaseLease(RequestId, oneshot::Sender<bool>),
    ClearCache(oneshot::Sender<Result<(), usize>>),
    Report(oneshot::Sender<DriverReport>),
}

/// A request with everything its answer and its events need.
pub(super) struct Submission {
    pub(super) request: SimRequest,
    pub(super) subject: Subject,
    /// Why its answer will end, for the metrics.
    pub(super) reason: &'static str,
    pub(super) progress: mpsc::UnboundedSender<SubmissionProgress>,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SubmissionProgress {
    Refused(SimRefused),
    Accepted,
    Admitted { cached_tokens: usize },
    Token,
    Finished,
}

/// How an engine does, for its metrics.
pub(super) struct DriverReport {
    pub(super) load: EngineLoad,
    pub(super) counters: EngineCounters,
}

struct Flight {
    subject: Subject,
    reason: &'static str,
    progress: mpsc::UnboundedSender<SubmissionProgress>,
    submitted: Duration,
    prompt_tokens: usize,
}

/// An engine and those who wait for it.
pub(super) struct Driver {
    engine: SimEngine,
    clock: EngineClock,
    events: EventStream,
    faults: Arc<Mutex<Faults>>,
    flights: HashMap<RequestId, Flight>,
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
        let (flights, counters) = (HashMap::new(), EngineCounters::default());
        Self { engine, clock, events, faults, flights, counters, outputs: Vec::new() }
    }

    /// Runs until nobody can command any more.
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
                        self.obey(command);
                    }
                    None => return,
                },
                () = sleep => self.catch_up(),
            }
        }
    }

    fn obey(&mut self, command: DriverCommand) {
        match command {
            DriverCommand::Submit(submission) => self.submit(*submission),
            DriverCommand::Cancel(request) => {
                if self.flights.remove(&request).is_some() {
                    self.engine.cancel(request);
                    self.counters.count_end("abort");
                }
            }
            // Whoever asked may have gone; then nobody needs the answer.
            DriverCommand::ReleaseLease(request, answer) => {
                let _ = answer.send(self.engine.release_lease(request));
            }
            DriverCommand::ClearCache(answer) => {
                let _ = answer.send(self.engine.clear_cache());
            }
            DriverCommand::Report(answer) => {
                let report =
                    DriverReport { load: self.engine.load(), counters: self.counters.clone() };
                let _ = answer.send(report);
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, subject, reason, progress } = submission;
        let (id, prompt_tokens) = (request.id, request.prompt_tokens);
        let submitted = self.clock.now();
        match self.engine.submit(submitted, request) {
            Ok(()) => {
                let _ = progress.send(SubmissionProgress::Accepted);
                let flight = Flight { subject, reason, progress, submitted, prompt_tokens };
                self.flights.insert(id, flight);
            }
            Err(refused) => {
                let _ = progress.send(SubmissionProgress::Refused(refused));
            }
        }
    }

    /// Lets the engine live up to now.
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
            self.tell(&output);
        }
        self.events.flush(&faults);
        self.outputs = outputs;
    }

    fn tell(&mut self, output: &Output) {
        let (request, progress) = match output.outcome {
            SimOutcome::Admitted { request, cached_tokens } => {
                (request, SubmissionProgress::Admitted { cached_tokens })
            }
            SimOutcome::Token { request, .. } => (request, SubmissionProgress::Token),
            SimOutcome::Finished { request } => (request, SubmissionProgress::Finished),
            SimOutcome::Stored { request, .. } => {
                let subject = self.flights.get(&request).map(|flight| &flight.subject);
                return self.events.add(&output.outcome, subject);
            }
            SimOutcome::Preempted { .. } => return,
            SimOutcome::Removed { .. } | SimOutcome::Cleared => {
                return self.events.add(&output.outcome, None);
            }
        };
        let Some(flight) = self.flights.get(&request) else { return };
        match output.outcome {
            SimOutcome::Admitted { .. } => {
                self.counters.prompt_tokens += flight.prompt_tokens as u64
            }
            SimOutcome::Token { index, .. } => {
                self.counters.generation_tokens += 1;
                if index == 0 {
                    self.counters.count_first_token(output.at.saturating_sub(flight.submitted));
                }
            }
            _ => self.counters.count_end(flight.reason),
        }
        // A receiver that has gone will cancel, or has.
        let _ = flight.progress.send(progress);
        if progress == SubmissionProgress::Finished {
            self.flights.remove(&request);
        }
    }
}
