//! What the tokenizer costs: by itself, and to the streams of others.

use anyhow::Context;
use std::cell::{Cell, RefCell};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use serde_json::json;
use tokio::task::LocalSet;
use wornpath_blocks::chat::{ChatTemplate, Conversation, TokenizerConfig};
use wornpath_blocks::{Framing, Tokenizer};

use crate::clock::thread_cpu;
use crate::exchange::Client;
use crate::prompts::{Delivery, Prompts, Shared};
use crate::stats::{median, quantile};
use crate::stolen::{self, Patience, Ticks};

/// Texts that a cost is the median of.
const TEXTS: u64 = 501;
/// The least tokens of a long prompt.
const LONG_TOKENS: usize = 100_000;
/// Text by which it is told how long such a prompt is.
const SAMPLE_BYTES: usize = 128 << 10;
/// Long prompts, one after another.
const LONG_PROMPTS: u64 = 100;
/// How often all of that is watched.
const ROUNDS: usize = 7;
/// What a token may be late by because of them, in microseconds.
pub(crate) const MOST_DELAY: f64 = 1000.0;
/// Streams that are watched meanwhile, through the gateway and past it.
const STREAMS: usize = 4;

/// A model's way from messages to tokens.
pub(crate) struct Model {
    pub(crate) tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Model {
    /// Reads a model's tokenizer and chat template.
    pub(crate) fn load(folder: &Path) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let [file, config] = ["tokenizer.json", "tokenizer_config.json"];
        let tokenizer = Tokenizer::from_json(file, &read(file)?)?;
        let config = TokenizerConfig::from_json(config, &read(config)?)?;
        Ok(Self { tokenizer, template: ChatTemplate::from_config(&config)? })
    }

    /// What the new half of such a prompt costs, as a message of its own.
    pub(crate) fn cost_of_new(&self, prompts: &Prompts) -> anyhow::Result<NewText> {
        let (mut ids, mut rendering, mut tokenizing) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..TEXTS {
            ids.clear();
            let messages = [json!({"role": "user", "content": prompts.new_text(number)})];
            let started = thread_cpu();
            let rendered = self.template.render(&Conversation::new(&messages))?;
            let between = thread_cpu();
            self.tokenizer.encode(&rendered.text, Framing::Bare, &mut ids)?;
            rendering.push((between - started) as f64 / 1e3);
            tokenizing.push((thread_cpu() - between) as f64 / 1e3);
        }
        Ok(NewText { rendering: median(&rendering), tokenizing: median(&tokenizing) })
    }
}

/// What it takes to turn a message into tokens, in microseconds of CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewText {
    pub(crate) rendering: f64,
    pub(crate) tokenizing: f64,
}

/// Microseconds from an engine's sending a token to the client's having it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lateness {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) worst: f64,
    pub(crate) tokens: usize,
}

/// How late streams were while long prompts were tokenized.
pub(crate) struct Stalls {
    /// How many tokens a long prompt has.
    pub(crate) long_tokens: usize,
    pub(crate) rounds: Vec<Round>,
    /// How many rounds were made again.
    pub(crate) again: usize,
}

/// Streams through the gateway and past it at the same time.
pub(crate) struct Round {
    /// While nothing else happens.
    pub(crate) quiet: Pair,
    /// While the gateway tokenizes long prompts.
    pub(crate) meanwhile: Pair,
}

/// Streams through the gateway, and those past it, which tell what the machine itself adds.
pub(crate) struct Pair {
    pub(crate) through: Lateness,
    pub(crate) past: Lateness,
}

impl Round {
    /// What one token in a hundred was late by past the gateway, and so by nothing of ours.
    fn machine(&self) -> f64 {
        self.quiet.past.p99.max(self.meanwhile.past.p99)
    }
}

/// Watches streams while long prompts are tokenized, one after another, several times. A round in which the machine itself is
/// later than a gateway may be is made again while there is patience.
pub(crate) async fn stalls(
    gateway: SocketAddr,
    pod: SocketAddr,
    tokenizer: &Tokenizer,
    patience: &mut Patience,
) -> anyhow::Result<Stalls> {
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
    let (mut rounds, mut again, mut number) = (Vec::new(), 0, 1 << 42);
    while rounds.len() < ROUNDS {
        let (start, before) = (Instant::now(), Ticks::now());
        let quiet = watch(gateway, pod, None).await?;
        let meanwhile = watch(gateway, pod, Some((&long, number))).await?;
        number += LONG_PROMPTS;
        let round = Round { quiet, meanwhile };
        let is_told = before.share_since() <= stolen::MOST && round.machine() <= MOST_DELAY;
        if is_told || !patience.allows(start) {
            rounds.push(round);
        } else {
            again += 1;
            tokio::time::sleep(stolen::PAUSE).await;
        }
    }
    Ok(Stalls { long_tokens, rounds, again })
}

async fn watch(
    gateway: SocketAddr,
    pod: SocketAddr,
    long: Option<(&Prompts, u64)>,
) -> anyhow::Result<Pair> {
    let late = [Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new()))];
    let (local, is_over) = (LocalSet::new(), Rc::new(Cell::new(false)));
    for number in 0..2 * STREAMS {
        let address = if number % 2 == 0 { gateway } else { pod };
        let (late, is_over) = (Rc::clone(&late[number % 2]), Rc::clone(&is_over));
        local.spawn_local(async move {
            let prompts = Prompts::new(1024, Shared::FirstHalf, Delivery::Stream);
            let (mut client, mut request) = (Client::connect(address).await?, Vec::new());
            let mut turn = 1 << 41 | (number as u64) << 32;
            while !is_over.get() {
                prompts.write(turn, &mut request);
                turn += 1;
                client.watch(&request, |nanos| late.borrow_mut().push(nanos as f64 / 1e3)).await?;
            }
            anyhow::Ok(())
        });
    }
    let asked = local
        .run_until(async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            late.iter().for_each(|late| late.borrow_mut().clear());
            match long {
                None => tokio::time::sleep(std::time::Duration::from_secs(3)).await,
                Some((long, first)) => {
                    let mut client = Client::connect(gateway).await?;
                    let mut request = Vec::new();
                    for number in first..first + LONG_PROMPTS {
                        long.write(number, &mut request);
                        client.ask(&request).await?;
                    }
                }
            }
            is_over.set(true);
            anyhow::Ok(())
        })
        .await;
    asked?;
    local.await;
    let lateness = |late: &Rc<RefCell<Vec<f64>>>| {
        let mut late = late.borrow_mut();
        Lateness {
            p50: quantile(&mut late, 0.5),
            p99: quantile(&mut late, 0.99),
            p999: quantile(&mut late, 0.999),
            worst: quantile(&mut late, 1.0),
            tokens: late.len(),
        }
    };
    Ok(Pair { through: lateness(&late[0]), past: lateness(&late[1]) })
}
