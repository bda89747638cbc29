//! Plays sessions through the gateway, and shows how far it is.

use super::client::{DemoAnswer, DemoDelivery, chat, chat_body};
use super::fleet::{ENGINE, SPEED};
use super::workload::DemoSession;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use wornpath_sim::StepCost;

/// What became of one request.
pub(super) type DemoUsage = anyhow::Result<DemoAnswer>;

/// How users behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Users {
    count: usize,
    delivery: DemoDelivery,
    /// How much faster than people they are between two turns.
    haste: f64,
}

impl Users {
    /// Enough to keep the engines busy, as hasty as those are.
    pub(super) const fn many(delivery: DemoDelivery) -> Self {
        Self { count: 20, delivery, haste: SPEED }
    }

    /// About ten requests a second: something to look at, and room for whoever tries something.
    pub(super) const fn few() -> Self {
        Self { count: 12, delivery: DemoDelivery::Stream, haste: 1.0 }
    }
}

/// Users that are at work; dropping this sends them home.
pub(super) struct DemoLoad {
    told: UnboundedReceiver<DemoUsage>,
    _users: JoinSet<()>,
}

impl DemoLoad {
    /// Each user takes the next session when the one before has ended.
    pub(super) fn start(
        gateway: SocketAddr,
        sessions: impl IntoIterator<Item = DemoSession, IntoIter: Send + 'static>,
        users: Users,
    ) -> Self {
        let (tell, told) = unbounded_channel();
        let sessions = Arc::new(Mutex::new(sessions.into_iter()));
        let mut tasks = JoinSet::new();
        for _ in 0..users.count {
            let (sessions, tell) = (Arc::clone(&sessions), tell.clone());
            tasks.spawn(async move {
                let next = || sessions.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(session) = next() {
                    converse(gateway, session, users, &tell).await;
                }
            });
        }
        Self { told, _users: tasks }
    }

    /// What the next request came to; none after the last one.
    pub(super) async fn next(&mut self) -> Option<DemoUsage> {
        self.told.recv().await
    }
}

async fn converse(
    gateway: SocketAddr,
    session: DemoSession,
    users: Users,
    tell: &UnboundedSender<DemoUsage>,
) {
    let mut messages = session.opening;
    for (turn, pause) in session.turns.iter().zip(&session.pauses) {
        tokio::time::sleep(Duration::from_secs_f64(pause / users.haste)).await;
        messages.push(json!({"role": "user", "content": turn}));
        let answered = chat(gateway, chat_body(ENGINE, &messages), users.delivery).await;
        let said = answered.as_ref().map_or_else(|_| String::new(), |answer| answer.text.clone());
        messages.push(json!({"role": "assistant", "content": said}));
        if tell.send(answered).is_err() {
            return;
        }
    }
}

/// What a run came to.
#[derive(Debug, Default)]
pub(super) struct DemoTally {
    pub(super) first_tokens: Vec<Duration>,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    /// Milliseconds of prefill that caches spared the engines.
    pub(super) spared_ms: f64,
    /// Why each failed request failed.
    pub(super) failures: Vec<String>,
    /// Who answered how often.
    pub(super) pods: Vec<(String, usize)>,
}

impl DemoTally {
    pub(super) fn add(&mut self, told: DemoUsage, cost: &StepCost) {
        let answer = match told {
            Ok(answer) => answer,
            Err(error) => return self.failures.push(format!("{error:#}")),
        };
        self.first_tokens.push(answer.first_token);
        self.prompt_tokens += answer.prompt_tokens;
        self.cached_tokens += answer.cached_tokens;
        self.spared_ms += super::table::spared_ms(cost, answer.prompt_tokens, answer.cached_tokens);
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

    /// The time to the first token that this share of requests stayed within, in the engines' time.
    pub(super) fn first_token_at(&self, share: f64) -> Duration {
        let mut sorted = self.first_tokens.clone();
        sorted.sort();
        let at = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(at.saturating_sub(1)).copied().unwrap_or_default().mul_f64(SPEED)
    }
}

/// One line that changes on a terminal; a line per quarter anywhere else.
pub(super) struct DemoProgress {
    what: String,
    all: usize,
    is_terminal: bool,
    shown: usize,
}

impl DemoProgress {
    pub(super) fn new(what: &str, all: usize) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { what: what.to_owned(), all, is_terminal, shown: 0 }
    }

    pub(super) fn show(&mut self, tally: &DemoTally, out: &mut dyn Write) -> std::io::Result<()> {
        let (done, all) = (tally.count(), self.all);
        let line = format!(
            "  {:<12} {done:>4} of {all} requests, {:>3.0}% of prompt tokens from caches",
            self.what,
            tally.hit_rate() * 100.0
        );
        if self.is_terminal {
            write!(out, "\r{line}")?;
            if done == all {
                writeln!(out)?;
            }
            return out.flush();
        }
        let quarter = done * 4 / all.max(1);
        if quarter > self.shown {
            self.shown = quarter;
            writeln!(out, "{line}")?;
            out.flush()?;
        }
        Ok(())
    }
}
