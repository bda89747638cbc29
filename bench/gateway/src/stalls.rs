//! What streams suffer while long prompts of others are tokenized.
//!
//! The gateway has processors of its own, all but one, and engines and clients have that one: a token is late only by
//! what the gateway does, by its own scheduling, and by a machine that stands still. What the latter adds is told by
//! an idle gateway, watched as long.

use anyhow::{Context, anyhow};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use wornpath_blocks::{Framing, Tokenizer};

use crate::clock::nanos;
use crate::contestant::{Contestant, Engines, Kind, Places};
use crate::exchange::Client;
use crate::instruments::{is_urgent, keep, this_thread};
use crate::prompts::{Delivery, Prompts, Shared};
use crate::stats::quantile;

/// The least tokens of a long prompt.
const LONG_TOKENS: usize = 100_000;
/// Text by which it is told how long such a prompt is.
const SAMPLE_BYTES: usize = 128 << 10;
/// How long it is watched each time.
const TIME: Duration = Duration::from_secs(3);
/// What a token may take, in microseconds.
const MOST_DELAY: f64 = 1000.0;
/// Streams that are watched, through the gateway and past it.
const STREAMS: usize = 4;
/// Long prompts at a time in a crowd.
const CROWD: usize = 4;

/// How late streams were.
pub(crate) struct Stalls {
    /// How many tokens a long prompt has.
    pub(crate) long_tokens: usize,
    /// Whether engines and clients ran before all else.
    pub(crate) are_urgent: bool,
    pub(crate) rounds: Vec<Round>,
}

/// Streams in three situations, one after another.
pub(crate) struct Round {
    /// While nothing else happens.
    pub(crate) quiet: Watched,
    /// While the gateway tokenizes long prompts, one after another.
    pub(crate) meanwhile: Watched,
    /// While it has several of them at a time.
    pub(crate) crowd: Watched,
}

/// Streams through the gateway, and past it, which tells how well the instruments work.
pub(crate) struct Watched {
    pub(crate) through: Lateness,
    pub(crate) past: Lateness,
    /// Long prompts meanwhile.
    pub(crate) prompts: u64,
}

/// Microseconds from an engine's sending a token to the client's having it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lateness {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) worst: f64,
    /// How many took longer than may be.
    pub(crate) late: usize,
    pub(crate) tokens: usize,
}

/// When a token was sent, and when its client had it, in nanoseconds.
type Flight = (u64, u64);

/// Watches streams while long prompts are tokenized, several times.
pub(crate) async fn stalls(
    engines: &Engines,
    places: &Places,
    tokenizer: &Tokenizer,
    times: usize,
) -> anyhow::Result<Stalls> {
    let processors = std::thread::available_parallelism()?.get();
    anyhow::ensure!(processors > 1, "delays by tokenizing are told with two processors or more");
    // What it starts has the same processors.
    keep(std::process::id(), 1..processors)?;
    let gateway = Contestant::start(Kind::Tokenizer, places, &engines.pods).await?;
    keep(std::process::id(), 0..1)?;
    keep(engines.id(), 0..1)?;
    let are_urgent = is_urgent(engines.id());
    let tokens_of = |text: &str| -> anyhow::Result<usize> {
        let mut ids = Vec::new();
        tokenizer.encode(text, Framing::Bare, &mut ids)?;
        Ok(ids.len())
    };
    let prompts = |bytes| Prompts::new(bytes, Shared::Nothing, Delivery::Whole);
    let sample = prompts(SAMPLE_BYTES);
    let sample = sample.new_text(0);
    let bytes = LONG_TOKENS * sample.len() / tokens_of(sample)?;
    let long = prompts(bytes + bytes / 50);
    // Both halves are made of the same words.
    let long_tokens = 2 * tokens_of(long.new_text(0))?;
    anyhow::ensure!(long_tokens >= LONG_TOKENS, "a long prompt has only {long_tokens} tokens");
    let flood = Flood {
        gateway: gateway.addresses[0],
        long: Rc::new(long),
        next: Rc::new(Cell::new(1 << 42)),
    };
    let pod = engines.pods[0];
    let mut rounds = Vec::new();
    for number in 0..times {
        let quiet = watch(&flood, pod, 0).await?;
        let meanwhile = watch(&flood, pod, 1).await?;
        let crowd = watch(&flood, pod, CROWD).await?;
        rounds.push(Round { quiet, meanwhile, crowd });
        eprintln!("delays by tokenizing: round {} of {times}", number + 1);
    }
    Ok(Stalls { long_tokens, are_urgent, rounds })
}

async fn watch(flood: &Flood, pod: SocketAddr, at_once: usize) -> anyhow::Result<Watched> {
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (is_over, gateway) = (Arc::clone(&is_over), flood.gateway);
        std::thread::spawn(move || {
            is_urgent(this_thread());
            streams([gateway, pod], &is_over)
        })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (start, first) = (nanos(), flood.next.get());
    match at_once {
        0 => tokio::time::sleep(TIME).await,
        _ => flood.send(at_once).await?,
    }
    let end = nanos();
    is_over.store(true, Ordering::Relaxed);
    let flights = watcher.join().map_err(|_| anyhow!("the watching thread ended"))??;
    let [through, past] = flights.map(|flights| lateness(&flights, (start, end)));
    Ok(Watched { through, past, prompts: flood.next.get() - first })
}

/// Sends long prompts, none of them twice.
struct Flood {
    gateway: SocketAddr,
    long: Rc<Prompts>,
    next: Rc<Cell<u64>>,
}

impl Flood {
    async fn send(&self, at_once: usize) -> anyhow::Result<()> {
        let (local, until) = (LocalSet::new(), Instant::now() + TIME);
        let one = || {
            let (gateway, long, next) =
                (self.gateway, Rc::clone(&self.long), Rc::clone(&self.next));
            async move {
                let (mut client, mut request) = (Client::connect(gateway).await?, Vec::new());
                while Instant::now() < until {
                    long.write(next.replace(next.get() + 1), &mut request);
                    client.ask(&request).await?;
                }
                anyhow::Ok(())
            }
        };
        let tasks: Vec<_> = (0..at_once).map(|_| local.spawn_local(one())).collect();
        local.await;
        for task in tasks {
            task.await?.context("a long prompt")?;
        }
        Ok(())
    }
}

/// Streams to each of two addresses until told to end.
fn streams(to: [SocketAddr; 2], is_over: &AtomicBool) -> anyhow::Result<[Vec<Flight>; 2]> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let flights = [Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new()))];
    let prompts = Rc::new(Prompts::new(1024, Shared::FirstHalf, Delivery::Stream));
    let one = |number: usize| {
        let (address, flights) = (to[number % 2], Rc::clone(&flights[number % 2]));
        let prompts = Rc::clone(&prompts);
        async move {
            let (mut client, mut request) = (Client::connect(address).await?, Vec::new());
            for turn in 0_u64.. {
                prompts.write(nanos() ^ (number as u64) << 56 ^ turn << 48, &mut request);
                client.watch(&request, |flight| flights.borrow_mut().push(flight)).await?;
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
    Ok(flights.map(|flights| flights.take()))
}

fn lateness(flights: &[Flight], (start, end): Flight) -> Lateness {
    let counted = flights.iter().filter(|(sent, _)| (start..end).contains(sent));
    let mut late: Vec<f64> =
        counted.map(|(sent, had)| had.saturating_sub(*sent) as f64 / 1e3).collect();
    Lateness {
        p50: quantile(&mut late, 0.5),
        p99: quantile(&mut late, 0.99),
        p999: quantile(&mut late, 0.999),
        worst: quantile(&mut late, 1.0),
        late: late.iter().filter(|late| **late > MOST_DELAY).count(),
        tokens: late.len(),
    }
}
