//! Load of the demo: users that send the turns of their sessions through the gateway.

use super::client::{DemoAnswer, DemoClient, DemoDelivery, chat_body};
use super::fleet::{ENGINE, SPEED};
use super::workload::DemoSession;
use crate::progress::{STEPS, bar};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use wornpath_sim::replay::Percentiles;
use wornpath_sim::{StepCost, StepLoad};

/// The outcome of one request.
pub(super) type DemoOutcome = anyhow::Result<DemoAnswer>;

/// How users behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Users {
    count: usize,
    delivery: DemoDelivery,
    /// Factor by which they think faster than people between two turns.
    speed: f64,
}

impl Users {
    /// Enough to keep the engines busy, sped up as those are.
    pub(super) const fn many(delivery: DemoDelivery) -> Self {
        Self { count: 20, delivery, speed: SPEED }
    }

    /// About ten requests a second, which leaves capacity for requests of the user.
    pub(super) const fn few() -> Self {
        Self { count: 12, delivery: DemoDelivery::Stream, speed: 1.0 }
    }
}

/// Running users; dropping this stops them.
pub(super) struct DemoLoad {
    outcomes: UnboundedReceiver<DemoOutcome>,
    _users: JoinSet<()>,
}

impl DemoLoad {
    /// Each user takes the next session when the one before has ended.
    pub(super) fn start(
        client: &DemoClient,
        sessions: impl IntoIterator<Item = DemoSession, IntoIter: Send + 'static>,
        users: Users,
    ) -> Self {
        let (sender, outcomes) = unbounded_channel();
        let sessions = Arc::new(Mutex::new(sessions.into_iter()));
        let mut tasks = JoinSet::new();
        for _ in 0..users.count {
            let client = client.clone();
            let sessions = Arc::clone(&sessions);
            let sender = sender.clone();
            tasks.spawn(async move {
                let next = || sessions.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(session) = next() {
                    converse(&client, session, users, &sender).await;
                }
            });
        }
        Self { outcomes, _users: tasks }
    }

    /// The outcome of the next request that ends; none after the last one.
    pub(super) async fn next(&mut self) -> Option<DemoOutcome> {
        self.outcomes.recv().await
    }
}

async fn converse(
    client: &DemoClient,
    session: DemoSession,
    users: Users,
    sender: &UnboundedSender<DemoOutcome>,
) {
    let mut messages = session.opening;
    for (turn, pause) in session.turns.iter().zip(&session.pauses) {
        tokio::time::sleep(Duration::from_secs_f64(pause / users.speed)).await;
        messages.push(json!({"role": "user", "content": turn}));
        let outcome = client.chat(chat_body(ENGINE, &messages), users.delivery).await;
        let text = outcome.as_ref().map_or_else(|_| String::new(), |answer| answer.text.clone());
        messages.push(json!({"role": "assistant", "content": text}));
        if sender.send(outcome).is_err() {
            return;
        }
    }
}

/// Totals of a run.
#[derive(Debug, Default)]
pub(super) struct DemoTally {
    pub(super) first_tokens: Vec<Duration>,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    /// Milliseconds of prefill that cached tokens saved the engines.
    pub(super) saved_ms: f64,
    /// The error of each failed request.
    pub(super) failures: Vec<String>,
    /// Requests that each pod answered.
    pub(super) pods: Vec<(String, usize)>,
}

impl DemoTally {
    pub(super) fn add(&mut self, outcome: DemoOutcome, cost: &StepCost) {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) => return self.failures.push(format!("{error:#}")),
        };
        self.first_tokens.push(answer.first_token);
        self.prompt_tokens += answer.prompt_tokens;
        self.cached_tokens += answer.cached_tokens;
        self.saved_ms += saved_ms(cost, answer.prompt_tokens, answer.cached_tokens);
        match self.pods.iter_mut().find(|(pod, _)| *pod == answer.pod) {
            Some((_, count)) => *count += 1,
            None => self.pods.push((answer.pod, 1)),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.first_tokens.len() + self.failures.len()
    }

    /// The share of all prompt tokens that were cached.
    pub(super) fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// The time to first token, in the engines' time.
    pub(super) fn ttft(&self) -> Percentiles {
        Percentiles::of(self.first_tokens.iter().map(|time| time.mul_f64(SPEED)).collect())
    }
}

/// Progress of a run: a bar on a terminal, a line per quarter elsewhere.
pub(super) struct DemoProgress {
    title: String,
    all: usize,
    bar: ProgressBar,
    shown: usize,
}

impl DemoProgress {
    pub(super) fn new(title: &str, all: usize) -> Self {
        let bar = bar(all as u64, STEPS).with_prefix(format!("  {title:<12} "));
        // Where the output goes, the bar goes: its last state is part of the report.
        bar.set_draw_target(ProgressDrawTarget::stdout());
        Self { title: title.to_owned(), all, bar, shown: 0 }
    }

    pub(super) fn show(&mut self, tally: &DemoTally, out: &mut dyn Write) -> std::io::Result<()> {
        let done = tally.count();
        let all = self.all;
        self.bar.set_position(done as u64);
        let quarter = done * 4 / all.max(1);
        let is_shown = if self.bar.is_hidden() { quarter > self.shown } else { done == all };
        self.shown = quarter;
        if is_shown {
            self.bar.finish_and_clear();
            writeln!(
                out,
                "  {:<12} {done:>4} of {all} requests, {:>3.0}% of prompt tokens from caches",
                self.title,
                tally.hit_rate() * 100.0
            )?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Milliseconds that an engine saves by not computing the first `cached` tokens of a prompt, if the
/// prompt is computed alone in one step.
fn saved_ms(cost: &StepCost, prompt: usize, cached: usize) -> f64 {
    let from = |past: usize| {
        let mut load = StepLoad::default();
        load.add_chunk(past, prompt - past);
        cost.milliseconds(&load)
    };
    from(0) - from(cached.min(prompt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_token_saves_its_own_time_and_that_of_its_attention() {
        let cost =
            StepCost { base: 5.0, per_prefill_token: 0.1, per_pair: 0.001, ..StepCost::default() };
        assert!(saved_ms(&cost, 100, 0).abs() < 1e-9);
        let saved = saved_ms(&cost, 100, 60);
        assert!((saved - (6.0 + 0.001 * 60.0 * 60.0 / 2.0)).abs() < 1e-9, "{saved}");
    }
}
