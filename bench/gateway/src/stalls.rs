//! Delays of streams while the gateway tokenizes long prompts of others.
//!
//! The gateway has all CPUs but one, engines and clients have that one: a token is late only
//! because of the gateway, its scheduling, or a stalled machine. The last is measured with an idle
//! gateway for the same time.

use anyhow::{Context, anyhow};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use wornpath_blocks::{SpecialTokens, Tokenizer};

use crate::clock::nanos;
use crate::contestant::{Contestant, Engines, Kind, Paths};
use crate::cpu_pinning::{pin_process, set_realtime, this_thread};
use crate::http_client::{Client, TokenTimes};
use crate::prompts::{Delivery, Prompts, Shared};
use crate::stats::quantile;

/// Minimum of tokens of a long prompt.
const LONG_TOKENS: usize = 100_000;
/// Text from which the bytes per token are estimated.
const SAMPLE_BYTES: usize = 128 << 10;
/// The length of each observation.
const OBSERVED: Duration = Duration::from_secs(3);
/// Maximum delay of a token that is not late, in microseconds.
const MAX_DELAY: f64 = 1000.0;
/// Streams through the gateway, and as many past it.
const STREAMS: usize = 4;
/// Long prompts in flight in the third situation.
const CONCURRENT: usize = 4;

/// The delays of all rounds.
pub(crate) struct Stalls {
    /// Tokens of a long prompt.
    pub(crate) long_tokens: usize,
    /// Whether engines and clients ran with real-time priority.
    pub(crate) is_realtime: bool,
    pub(crate) rounds: Vec<Round>,
}

/// Three situations, one after another.
pub(crate) struct Round {
    /// The gateway is idle otherwise.
    pub(crate) idle: Observation,
    /// The gateway tokenizes long prompts, one after another.
    pub(crate) sequential: Observation,
    /// The gateway tokenizes several long prompts at a time.
    pub(crate) concurrent: Observation,
}

/// Delays of streams through the gateway, and past it as a control.
pub(crate) struct Observation {
    pub(crate) through: Delays,
    pub(crate) past: Delays,
    /// Long prompts sent meanwhile.
    pub(crate) prompts: u64,
}

/// Microseconds between the engine's send and the client's receipt of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) worst: f64,
    /// Tokens over the maximum delay.
    pub(crate) late: usize,
    pub(crate) tokens: usize,
}

/// Measures the delays of streams while long prompts are tokenized, several times.
pub(crate) async fn measure_stalls(
    engines: &Engines,
    paths: &Paths,
    tokenizer: &Tokenizer,
    times: usize,
) -> anyhow::Result<Stalls> {
    let processors = std::thread::available_parallelism()?.get();
    anyhow::ensure!(
        processors > 1,
        "delays by tokenizing need two CPUs or more; this machine has one"
    );
    // Child processes inherit the affinity.
    pin_process(std::process::id(), 1..processors)?;
    let gateway = Contestant::start(Kind::Tokenizer, paths, &engines.pods).await?;
    pin_process(std::process::id(), 0..1)?;
    pin_process(engines.id(), 0..1)?;
    let is_realtime = set_realtime(engines.id());
    let tokens_of = |text: &str| -> anyhow::Result<usize> {
        let mut ids = Vec::new();
        tokenizer.encode(text, SpecialTokens::InText, &mut ids)?;
        Ok(ids.len())
    };
    let prompts = |bytes| Prompts::new(bytes, Shared::Nothing, Delivery::Whole);
    let sample = prompts(SAMPLE_BYTES);
    let sample = sample.new_text(0);
    let bytes = LONG_TOKENS * sample.len() / tokens_of(sample)?;
    let long = prompts(bytes + bytes / 50);
    // Both halves consist of the same words.
    let long_tokens = 2 * tokens_of(long.new_text(0))?;
    anyhow::ensure!(long_tokens >= LONG_TOKENS, "a long prompt has only {long_tokens} tokens");
    let load = LongPromptLoad {
        gateway: gateway.addresses[0],
        long: Rc::new(long),
        next: Rc::new(Cell::new(1 << 42)),
    };
    let pod = engines.pods[0];
    let mut rounds = Vec::new();
    for number in 0..times {
        let idle = observe(&load, pod, 0).await?;
        let sequential = observe(&load, pod, 1).await?;
        let concurrent = observe(&load, pod, CONCURRENT).await?;
        rounds.push(Round { idle, sequential, concurrent });
        eprintln!("delays by tokenizing: round {} of {times}", number + 1);
    }
    Ok(Stalls { long_tokens, is_realtime, rounds })
}

async fn observe(
    load: &LongPromptLoad,
    pod: SocketAddr,
    in_flight: usize,
) -> anyhow::Result<Observation> {
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let is_over = Arc::clone(&is_over);
        let gateway = load.gateway;
        std::thread::spawn(move || {
            set_realtime(this_thread());
            streams([gateway, pod], &is_over)
        })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = nanos();
    let first = load.next.get();
    match in_flight {
        0 => tokio::time::sleep(OBSERVED).await,
        _ => load.send(in_flight).await?,
    }
    let end = nanos();
    is_over.store(true, Ordering::Relaxed);
    let tokens = watcher.join().map_err(|_| anyhow!("the observing thread panicked"))??;
    let [through, past] = tokens.map(|tokens| delays(&tokens, start..end));
    Ok(Observation { through, past, prompts: load.next.get() - first })
}

/// Sends long prompts, none of them twice.
struct LongPromptLoad {
    gateway: SocketAddr,
    long: Rc<Prompts>,
    next: Rc<Cell<u64>>,
}

impl LongPromptLoad {
    async fn send(&self, in_flight: usize) -> anyhow::Result<()> {
        let local = LocalSet::new();
        let until = Instant::now() + OBSERVED;
        let one = || {
            let gateway = self.gateway;
            let long = Rc::clone(&self.long);
            let next = Rc::clone(&self.next);
            async move {
                let mut client = Client::connect(gateway).await?;
                let mut request = Vec::new();
                while Instant::now() < until {
                    long.write(next.replace(next.get() + 1), &mut request);
                    client.request(&request).await?;
                }
                anyhow::Ok(())
            }
        };
        let tasks: Vec<_> = (0..in_flight).map(|_| local.spawn_local(one())).collect();
        local.await;
        for task in tasks {
            task.await?.context("a long prompt")?;
        }
        Ok(())
    }
}

/// Runs streams to each of two addresses until `is_over`.
fn streams(to: [SocketAddr; 2], is_over: &AtomicBool) -> anyhow::Result<[Vec<TokenTimes>; 2]> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tokens = [Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new()))];
    let prompts = Rc::new(Prompts::new(1024, Shared::FirstHalf, Delivery::Stream));
    let one = |number: usize| {
        let address = to[number % 2];
        let tokens = Rc::clone(&tokens[number % 2]);
        let prompts = Rc::clone(&prompts);
        async move {
            let mut client = Client::connect(address).await?;
            let mut request = Vec::new();
            for turn in 0_u64.. {
                prompts.write(nanos() ^ (number as u64) << 56 ^ turn << 48, &mut request);
                client.request_timed(&request, |times| tokens.borrow_mut().push(times)).await?;
            }
            anyhow::Ok(())
        }
    };
    LocalSet::new().block_on(&runtime, async {
        let tasks: Vec<_> =
            (0..2 * STREAMS).map(|number| tokio::task::spawn_local(one(number))).collect();
        while !is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for task in tasks {
            if task.is_finished() {
                task.await?.context("a stream ended")?;
            }
        }
        anyhow::Ok(())
    })?;
    Ok(tokens.map(|tokens| tokens.take()))
}

fn delays(tokens: &[TokenTimes], observed: Range<u64>) -> Delays {
    let counted = tokens.iter().filter(|times| observed.contains(&times.sent));
    let mut late: Vec<f64> =
        counted.map(|times| times.received.saturating_sub(times.sent) as f64 / 1e3).collect();
    Delays {
        p50: quantile(&mut late, 0.5),
        p99: quantile(&mut late, 0.99),
        p999: quantile(&mut late, 0.999),
        worst: quantile(&mut late, 1.0),
        late: late.iter().filter(|late| **late > MAX_DELAY).count(),
        tokens: late.len(),
    }
}
