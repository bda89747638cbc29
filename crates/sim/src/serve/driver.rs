//! The task that owns an engine: lets its time pass, and tells everybody what happened to them.

use super::clock::Clock;
use super::events::{EventStream, Subject};
use super::faults::Faults;
use super::metrics::Counters;
use crate::engine::{Engine, Load};
use crate::request::{Outcome, Output, Refused, Request, RequestId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// What the engine is asked to do.
pub(super) enum Command {
    Submit(Box<Submission>),
    Cancel(RequestId),
    ReleaseLease(RequestId, oneshot::Sender<bool>),
    ClearCache(oneshot::Sender<Result<(), usize>>),
    Report(oneshot::Sender<Report>),
}

/// A request with everything its answer and its events need.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) subject: Subject,
    /// Why its answer will end, for the metrics.
    pub(super) reason: &'static str,
    pub(super) progress: mpsc::UnboundedSender<Progress>,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    Refused(Refused),
    Accepted,
    Admitted { cached_tokens: usize },
    Token,
    Finished,
}

/// How an engine does, for its metrics.
pub(super) struct Report {
    pub(super) load: Load,
    pub(super) counters: Counters,
}

struct Flight {
    subject: Subject,
    reason: &'static str,
    progress: mpsc::UnboundedSender<Progress>,
    submitted: Duration,
    prompt_tokens: usize,
}

/// An engine and those who wait for it.
pub(super) struct Driver {
    engine: Engine,
    clock: Clock,
    events: EventStream,
    faults: Arc<Mutex<Faults>>,
    flights: HashMap<RequestId, Flight>,
    counters: Counters,
    outputs: Vec<Output>,
}

impl Driver {
    pub(super) fn new(
        engine: Engine,
        clock: Clock,
        events: EventStream,
        faults: Arc<Mutex<Faults>>,
    ) -> Self {
        let (flights, counters) = (HashMap::new(), Counters::default());
        Self { engine, clock, events, faults, flights, counters, outputs: Vec::new() }
    }

    /// Runs until nobody can command any more.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
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

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Cancel(request) => {
                if self.flights.remove(&request).is_some() {
                    self.engine.cancel(request);
                    self.counters.count_end("abort");
                }
            }
            // Whoever asked may have gone; then nobody needs the answer.
            Command::ReleaseLease(request, answer) => {
                let _ = answer.send(self.engine.release_lease(request));
            }
            Command::ClearCache(answer) => {
                let _ = answer.send(self.engine.clear_cache());
            }
            Command::Report(answer) => {
                let report = Report { load: self.engine.load(), counters: self.counters.clone() };
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
                let _ = progress.send(Progress::Accepted);
                let flight = Flight { subject, reason, progress, submitted, prompt_tokens };
                self.flights.insert(id, flight);
            }
            Err(refused) => {
                let _ = progress.send(Progress::Refused(refused));
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
            Outcome::Admitted { request, cached_tokens } => {
                (request, Progress::Admitted { cached_tokens })
            }
            Outcome::Token { request, .. } => (request, Progress::Token),
            Outcome::Finished { request } => (request, Progress::Finished),
            Outcome::Stored { request, .. } => {
                let subject = self.flights.get(&request).map(|flight| &flight.subject);
                return self.events.add(&output.outcome, subject);
            }
            Outcome::Preempted { .. } => return,
            Outcome::Removed { .. } | Outcome::Cleared => {
                return self.events.add(&output.outcome, None);
            }
        };
        let Some(flight) = self.flights.get(&request) else { return };
        match output.outcome {
            Outcome::Admitted { .. } => self.counters.prompt_tokens += flight.prompt_tokens as u64,
            Outcome::Token { index, .. } => {
                self.counters.generation_tokens += 1;
                if index == 0 {
                    self.counters.count_first_token(output.at.saturating_sub(flight.submitted));
                }
            }
            _ => self.counters.count_end(flight.reason),
        }
        // A receiver that has gone will cancel, or has.
        let _ = flight.progress.send(progress);
        if progress == Progress::Finished {
            self.flights.remove(&request);
        }
    }
}
