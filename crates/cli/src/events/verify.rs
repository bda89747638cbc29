//! `wornpath events verify`: do an engine's events match its cache?
//!
//! Subscribes as a router does, sends prompts with recurring prefixes, and compares the cached
//! tokens that the events predict with those that the engine reports in `usage`. Prompts are lists
//! of token ids, so no tokenizer is involved. No other client should use the engine meanwhile.
//!
//! With `--explain`, also prompts with a salt and for an adapter are sent, every difference is
//! explained by the events between prediction and answer, and the tokens of a text and a chat are
//! compared with those of the engine's own tokenizer.

use super::explain::{EventJournal, WrongBecause, WrongPrediction};
use crate::http::{Endpoint, HttpClient, TlsArguments};
use crate::model_files::ModelFiles;
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_blocks::{BlockHasher, HashKey, Scope};
use wornpath_events::{
    BlockIdScheme, Clock, EventPods, FeedRules, FeedState, PodName, ServedModel, ZeroMq,
    ZmqAddress, consume, run_timers,
};
use wornpath_gateway::fleet::discovery::block_size;
use wornpath_gateway::fleet::engine_facts::ModelOrigin;
use wornpath_gateway::fleet::tokenizer_check::ProbePrompt;
use wornpath_gateway::fleet::tokenizer_finder::{FindTokenizer, FoundTokenizer, NotFound};
use wornpath_gateway::observe::timestamp::Timestamp;
use wornpath_index::{Depths, Index, IndexLimits, IndexReader, PodId};
use wornpath_routing::Rng;

/// The feed counts as settled after this time without a new event.
const SETTLE_TIME: Duration = Duration::from_millis(80);
/// How long the feed may take to settle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(super) struct VerifyArguments {
    /// Address of the engine, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    engine: String,
    /// Publisher of the engine: zmq://host:port?replay=port; default: as listed at its
    /// /kv_event_sources
    #[arg(long, value_name = "SOURCE")]
    from: Option<ZmqAddress>,
    /// Model; default: the first that the engine lists
    #[arg(long)]
    model: Option<String>,
    /// Tokens per cache block; default: as in the engine's /metrics
    #[arg(long)]
    block_size: Option<NonZeroUsize>,
    /// Number of prompts to send
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    prompts: u64,
    /// Seed of the prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Say why predictions are wrong, and compare tokens with the engine's tokenizer
    #[arg(long)]
    explain: bool,
    /// Folder of the model's tokenizer, for --explain; default: found as `serve` finds it
    #[arg(long, value_name = "FOLDER", requires = "explain")]
    tokenizer: Option<String>,
}

/// What the engine keys the blocks of a prompt by, beside its tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PromptKey<'a> {
    salt: Option<&'static str>,
    adapter: Option<&'a str>,
}

impl PromptKey<'_> {
    const PLAIN: Self = PromptKey { salt: None, adapter: None };

    fn name(self) -> String {
        match (self.salt, self.adapter) {
            (Some(_), _) => "with a salt".to_owned(),
            (None, Some(adapter)) => format!("for the adapter `{adapter}`"),
            (None, None) => "without salt and adapter".to_owned(),
        }
    }
}

struct VerifiedEngine {
    client: HttpClient,
    address: String,
}

impl VerifiedEngine {
    fn new(url: &str) -> anyhow::Result<Self> {
        ensure!(
            url.starts_with("http://"),
            "--engine is `{url}`; write http://host:port, TLS is not supported here"
        );
        let endpoint = Endpoint::new("the engine", "--engine", url, &TlsArguments::default())?;
        // A slow engine may take minutes for its first prompt.
        let client = HttpClient::new(endpoint, None)?.with_response_timeout(None);
        let address = client.address().to_owned();
        Ok(Self { client, address })
    }

    async fn source(&self) -> anyhow::Result<ZmqAddress> {
        let listed = self.client.get_text("/kv_event_sources").await;
        let listed = listed.context("the engine does not list its publishers; give --from")?;
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        let mut sources = ZmqAddress::listed(listed.as_bytes(), host)?;
        sources.remove(&0).context("the engine publishes no events; enable its cache events")
    }

    async fn model(&self) -> anyhow::Result<String> {
        let models = self.client.get("/v1/models").await?;
        let name = models["data"][0]["id"].as_str().map(str::to_owned);
        name.context("the engine lists no model at /v1/models; give --model")
    }

    /// The first adapter that it lists.
    async fn adapter(&self) -> anyhow::Result<Option<String>> {
        let models = self.client.get("/v1/models").await?;
        let cards = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let adapter = cards.iter().find(|card| card["parent"].is_string());
        Ok(adapter.and_then(|card| card["id"].as_str()).map(str::to_owned))
    }

    /// The tokenizer that a router would find for its model, and where.
    async fn tokenizer(&self) -> Result<FoundTokenizer, NotFound> {
        let said = async |path: &str| self.client.get(path).await.unwrap_or_default();
        let models = said("/v1/models").await;
        let cards = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let server = said("/get_server_info").await;
        let origin = ModelOrigin::said(cards, &server, &said("/tokenizer_info").await);
        let files = ModelFiles::of_environment();
        match files.local(&origin)? {
            Some(found) => Ok(found),
            None => files.remote(&origin).await,
        }
    }

    /// The cached tokens that it reports for a prompt.
    async fn cached_tokens(
        &self,
        model: &str,
        tokens: &[u32],
        key: PromptKey<'_>,
        number: u64,
    ) -> anyhow::Result<u64> {
        let model = key.adapter.unwrap_or(model);
        let mut body = json!({"model": model, "prompt": tokens, "max_tokens": 1 + number % 20});
        if let Some(salt) = key.salt {
            body["cache_salt"] = salt.into();
        }
        let answer: Value = self.client.post("/v1/completions", &body).await?;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().context(
            "the engine does not report cached tokens; start vLLM with --enable-prompt-tokens-details",
        )
    }

    async fn block_size(&self) -> anyhow::Result<NonZeroUsize> {
        let size = block_size(&self.client.get_text("/metrics").await?);
        size.context("/metrics has no block size; give --block-size")
    }
}

/// Predicts cached tokens from the engine's events.
struct EventPredictor {
    pods: Arc<EventPods>,
    pod: PodId,
    clock: Clock,
    reader: IndexReader,
    model: String,
    block_size: NonZeroUsize,
    _tasks: JoinSet<()>,
}

impl EventPredictor {
    fn start(from: ZmqAddress, model: String, block_size: NonZeroUsize) -> anyhow::Result<Self> {
        let name: PodName = "engine".into();
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 0), FeedRules::default()));
        let id_scheme = BlockIdScheme::default();
        let serving =
            ServedModel { key: HashKey::DEFAULT, model: model.clone(), block_size, id_scheme };
        let pod = pods.add(&name, serving)?;
        let clock = Clock::start();
        let mut tasks = JoinSet::new();
        let consumers = Arc::clone(&pods);
        tasks.spawn(async move {
            let transport = ZeroMq::new(name, from);
            tokio::join!(consume(transport, &consumers, clock), run_timers(&consumers, clock)).0;
        });
        let reader = pods.index().reader();
        Ok(Self { pods, pod, clock, reader, model, block_size, _tasks: tasks })
    }

    /// Waits until all events are applied and no new ones have arrived for a moment.
    async fn settle(&self) -> anyhow::Result<()> {
        let mut since = self.clock.now();
        let end = since + SETTLE_TIMEOUT;
        let mut seen = None;
        loop {
            let status = self.pods.status(self.clock.now()).remove(0).status;
            let now = self.clock.now();
            let figures = Some((status.last_sequence, status.lag, status.state));
            if figures != seen {
                seen = figures;
                since = now;
            }
            let settled =
                matches!(status.state, FeedState::Live | FeedState::Partial) && status.lag == 0;
            if settled && now - since > SETTLE_TIME {
                return Ok(());
            }
            ensure!(
                now < end,
                "timeout: the engine's events did not settle within {} s; the feed is {:?}",
                SETTLE_TIMEOUT.as_secs(),
                status.state
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The last batch that was applied.
    fn last_sequence(&self) -> Option<u64> {
        self.pods.status(self.clock.now()).first()?.status.last_sequence
    }

    /// Tokens of a prompt that the engine should have cached, by its events.
    fn predict(&mut self, tokens: &[u32], key: PromptKey<'_>) -> u64 {
        let hasher = BlockHasher::new(&HashKey::DEFAULT, self.block_size);
        let mut chain = Vec::new();
        let scope = Scope { model: &self.model, lora: key.adapter, salt: key.salt };
        let root = HashKey::DEFAULT.root(&scope);
        hasher.hash_tokens(tokens, root, &mut chain);
        let mut answer = Depths::default();
        let mut depths = vec![0; self.pod.slot().position() + 1];
        self.reader.lookup(&chain, &mut answer);
        answer.depths_into(&mut depths);
        // Engines always compute the last token of a prompt, and with it its whole block.
        let most = tokens.len().saturating_sub(1) / self.block_size;
        let depth = (depths[self.pod.slot().position()] as usize).min(most);
        (depth * self.block_size.get()) as u64
    }
}

pub(super) async fn verify(
    arguments: &VerifyArguments,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let url = arguments.engine.trim_end_matches('/');
    let engine = VerifiedEngine::new(url)?;
    let from = match &arguments.from {
        Some(from) => from.clone(),
        None => engine.source().await?,
    };
    let model = match &arguments.model {
        Some(model) => model.clone(),
        None => engine.model().await?,
    };
    let block_size = match arguments.block_size {
        Some(size) => size,
        None => engine.block_size().await?,
    };
    writeln!(out, "{url} serves {model} with blocks of {block_size} tokens, events from {from}")?;
    let adapter = if arguments.explain { engine.adapter().await? } else { None };
    let keys = match (arguments.explain, &adapter) {
        (false, _) => vec![PromptKey::PLAIN],
        (true, adapter) => {
            let salted = PromptKey { salt: Some("explain"), adapter: None };
            let adapted = adapter.as_deref().map(|it| PromptKey { salt: None, adapter: Some(it) });
            [PromptKey::PLAIN, PromptKey::PLAIN, salted].into_iter().chain(adapted).collect()
        }
    };
    let journal = arguments.explain.then(|| EventJournal::start(from.clone(), block_size));
    let mut predictor = EventPredictor::start(from, model.clone(), block_size)?;
    let mut rng = Rng::new(arguments.seed);
    let mut equal = 0;
    let mut hits = 0;
    for number in 0..arguments.prompts {
        let tokens = prompt(number, block_size.get(), &mut rng);
        let key = keys[number as usize % keys.len()];
        predictor.settle().await?;
        if let Some(journal) = &journal {
            journal.take(predictor.last_sequence()).await;
        }
        let expected = predictor.predict(&tokens, key);
        let otherwise: Vec<_> = keys
            .iter()
            .filter(|other| **other != key)
            .map(|other| (other.name(), predictor.predict(&tokens, *other)))
            .collect();
        let cached = engine.cached_tokens(&model, &tokens, key, number).await?;
        equal += u64::from(cached == expected);
        hits += u64::from(cached > 0);
        if cached == expected {
            continue;
        }
        let length = tokens.len();
        writeln!(
            out,
            "prompt {number}: {length} tokens, {expected} cached by its events, {cached} by the engine"
        )?;
        if let Some(journal) = &journal {
            predictor.settle().await?;
            let events = journal.take(predictor.last_sequence()).await;
            let block_size = block_size.get() as u64;
            let chain = journal.chain(&tokens);
            let wrong = WrongPrediction { block_size, expected, cached, chain, otherwise };
            writeln!(out, "  {}", WrongBecause::of(&wrong, &events))?;
        }
    }
    let sent = arguments.prompts;
    writeln!(out, "{sent} prompts, {hits} with a hit: {equal} as predicted by the events")?;
    if arguments.explain {
        explain_tokens(arguments, &engine, &model, out).await?;
    }
    ensure!(equal == sent, "{} of {sent} prompts differ", sent - equal);
    Ok(())
}

/// Compares the tokens of a text and a chat with those of the engine's tokenizer.
async fn explain_tokens(
    arguments: &VerifyArguments,
    engine: &VerifiedEngine,
    model: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (tokenizer, source) = match &arguments.tokenizer {
        Some(folder) => (crate::fleet::tokenizer(Path::new("."), folder)?, folder.clone()),
        None => match engine.tokenizer().await {
            Ok(FoundTokenizer { tokenizer, source }) => (tokenizer, source),
            Err(NotFound::Final(why) | NotFound::Now(why)) => {
                bail!("no tokenizer to compare: {why}; give --tokenizer FOLDER")
            }
        },
    };
    let mut differing = 0;
    for probe in ProbePrompt::ALL {
        let name = match probe {
            ProbePrompt::Text => "text",
            ProbePrompt::Chat => "chat",
        };
        match engine.client.post("/tokenize", &probe.body(model)).await {
            Err(error) => writeln!(out, "{name}: not compared: /tokenize: {error:#}")?,
            Ok(answer) => match probe.compare(tokenizer.as_ref(), &answer, Timestamp::now()) {
                None => writeln!(out, "{name}: tokens of {source} are those of the engine")?,
                Some(mismatch) => {
                    differing += 1;
                    writeln!(out, "{name}: {mismatch}")?;
                }
            },
        }
    }
    ensure!(differing == 0, "the tokens of {source} are not those of the engine");
    Ok(())
}

/// A random part of one of five prefixes, and a suffix of its own. Lengths are often whole blocks.
fn prompt(number: u64, block_size: usize, rng: &mut Rng) -> Vec<u32> {
    let family = rng.below(5) as u64;
    let shared = rng.below(12) * block_size + [0, 0, 1, block_size / 2][rng.below(4)];
    let own = rng.below(3 * block_size) + 1;
    let token = |of: u64, at: usize| 100 + ((of * 7919 + at as u64 * 31) % 800) as u32;
    let suffix = (0..own).map(|at| token(1000 + number, at));
    (0..shared).map(|at| token(family, at)).chain(suffix).collect()
}
