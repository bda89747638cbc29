//! `wornpath events verify`: is what an engine publishes of its cache what it has cached?
//!
//! Listens as a router does, sends prompts whose beginnings recur, and compares for each what the events let expect with
//! what the engine says in `usage`. Prompts are lists of token ids, so no tokenizer stands between the two. Nobody else
//! should use the engine meanwhile.

use anyhow::{Context, bail, ensure};
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use wornpath_blocks::{BlockHasher, HashKey, Scope};
use wornpath_events::{
    BlockIdScheme, EventClock, EventPods, FeedRules, FeedState, PodName, ServedModel, ZeroMq,
    ZmqAddress, consume, run_timers,
};
use wornpath_gateway::discovery::block_size;
use wornpath_index::{Depths, Index, IndexLimits, IndexReader, PodId};
use wornpath_routing::Rng;

/// Events that follow an answer come within this.
const QUIET: Duration = Duration::from_millis(80);
/// How long an engine may take to publish, or to be found.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(super) struct VerifyArguments {
    /// The engine, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    engine: String,
    /// Where it publishes: zmq://host:port?replay=port; if not given, the engine is asked at /kv_event_sources
    #[arg(long, value_name = "SOURCE")]
    from: Option<ZmqAddress>,
    /// The model; the first that the engine lists if not given
    #[arg(long)]
    model: Option<String>,
    /// Tokens in a block of its cache; by its own /metrics if not given
    #[arg(long)]
    block_size: Option<NonZeroUsize>,
    /// How many prompts to send
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    prompts: u64,
    /// Other prompts for another number
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// An engine over HTTP.
struct VerifiedEngine {
    authority: String,
}

impl VerifiedEngine {
    async fn call(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Bytes> {
        let at = &self.authority;
        let stream = TcpStream::connect(at).await.with_context(|| format!("cannot reach {at}"))?;
        let (mut sender, driver) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Dropped with this call, and the connection with it.
        let mut connection = JoinSet::new();
        connection.spawn(async move {
            let _ = driver.await;
        });
        let method = if body.is_some() { "POST" } else { "GET" };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", at)
            .header("content-type", "application/json")
            .body(Full::new(body.map_or(Bytes::new(), |body| body.to_string().into())))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{at}{path}: {status} {}", String::from_utf8_lossy(&bytes));
        Ok(bytes)
    }

    async fn source(&self) -> anyhow::Result<ZmqAddress> {
        let listed = self.call("/kv_event_sources", None).await;
        let listed = listed.context("the engine does not say where it publishes; give --from")?;
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        let mut sources = ZmqAddress::listed(&listed, host)?;
        sources.remove(&0).context("the engine publishes nothing; start it with cache events")
    }

    async fn model(&self) -> anyhow::Result<String> {
        let models: Value = serde_json::from_slice(&self.call("/v1/models", None).await?)?;
        let name = models["data"][0]["id"].as_str().map(str::to_owned);
        name.context("the engine lists no model at /v1/models; give --model")
    }

    async fn block_size(&self) -> anyhow::Result<NonZeroUsize> {
        let page = self.call("/metrics", None).await?;
        let size = block_size(&String::from_utf8_lossy(&page));
        size.context("/metrics does not tell the size of blocks; give --block-size")
    }
}

/// What events let expect.
struct VerifyListener {
    pods: Arc<EventPods>,
    pod: PodId,
    clock: EventClock,
    reader: IndexReader,
    model: String,
    block_size: NonZeroUsize,
    _tasks: JoinSet<()>,
}

impl VerifyListener {
    fn start(from: ZmqAddress, model: String, block_size: NonZeroUsize) -> anyhow::Result<Self> {
        let name: PodName = "engine".into();
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 0), FeedRules::default()));
        let id_scheme = BlockIdScheme::default();
        let serving =
            ServedModel { key: HashKey::DEFAULT, model: model.clone(), block_size, id_scheme };
        let pod = pods.add(&name, serving)?;
        let (clock, mut tasks) = (EventClock::start(), JoinSet::new());
        let fed = Arc::clone(&pods);
        tasks.spawn(async move {
            let transport = ZeroMq::new(name, from);
            tokio::join!(consume(transport, &fed, clock), run_timers(&fed, clock)).0;
        });
        let reader = pods.index().reader();
        Ok(Self { pods, pod, clock, reader, model, block_size, _tasks: tasks })
    }

    /// Waits until all is applied and nothing more has come for a moment.
    async fn quiet(&self) -> anyhow::Result<()> {
        let (end, mut seen, mut since) = (self.clock.now() + PATIENCE, None, self.clock.now());
        loop {
            let status = self.pods.status(self.clock.now()).remove(0).status;
            let now = self.clock.now();
            let figures = Some((status.last_sequence, status.lag, status.state));
            if figures != seen {
                (seen, since) = (figures, now);
            }
            let settled =
                matches!(status.state, FeedState::Live | FeedState::Partial) && status.lag == 0;
            if settled && now - since > QUIET {
                return Ok(());
            }
            ensure!(now < end, "the engine's events do not come to rest: {:?}", status.state);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How many tokens of a prompt the engine should have cached.
    fn expected(&mut self, tokens: &[u32]) -> u64 {
        let hasher = BlockHasher::new(&HashKey::DEFAULT, self.block_size);
        let mut chain = Vec::new();
        let root = HashKey::DEFAULT.root(&Scope::model(&self.model));
        hasher.hash_tokens(tokens, root, &mut chain);
        let (mut answer, mut depths) = (Depths::default(), vec![0; self.pod.slot().position() + 1]);
        self.reader.lookup(&chain, &mut answer);
        answer.depths_into(&mut depths);
        // Engines compute the last token of a prompt in any case, and with it its whole block.
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
    let authority = url.strip_prefix("http://").with_context(|| {
        format!("--engine is {url}; write http://host:port, engines are asked without TLS")
    })?;
    let engine = VerifiedEngine { authority: authority.to_owned() };
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
    let mut listener = VerifyListener::start(from, model.clone(), block_size)?;
    let mut rng = Rng::new(arguments.seed);
    let (mut equal, mut hits) = (0, 0);
    for number in 0..arguments.prompts {
        let tokens = prompt(number, block_size.get(), &mut rng);
        listener.quiet().await?;
        let expected = listener.expected(&tokens);
        let body = json!({"model": model, "prompt": tokens, "max_tokens": 1 + number % 20});
        let answer: Value =
            serde_json::from_slice(&engine.call("/v1/completions", Some(&body)).await?)?;
        let Some(cached) = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
        else {
            bail!(
                "the engine does not tell how much was cached; start vLLM with --enable-prompt-tokens-details"
            );
        };
        (equal, hits) = (equal + u64::from(cached == expected), hits + u64::from(cached > 0));
        if cached != expected {
            let length = tokens.len();
            writeln!(
                out,
                "prompt {number}: of {length} tokens {expected} expected, {cached} cached"
            )?;
        }
    }
    let asked = arguments.prompts;
    writeln!(out, "{asked} prompts, {hits} with a hit: {equal} as its events let expect")?;
    ensure!(equal == asked, "{} of {asked} prompts differ", asked - equal);
    Ok(())
}

/// One of five beginnings, as far as chance will have it, and an end of its own. Lengths are often whole blocks.
fn prompt(number: u64, block_size: usize, rng: &mut Rng) -> Vec<u32> {
    let family = rng.below(5) as u64;
    let shared = rng.below(12) * block_size + [0, 0, 1, block_size / 2][rng.below(4)];
    let own = rng.below(3 * block_size) + 1;
    let token = |of: u64, at: usize| 100 + ((of * 7919 + at as u64 * 31) % 800) as u32;
    let ends = (0..own).map(|at| token(1000 + number, at));
    (0..shared).map(|at| token(family, at)).chain(ends).collect()
}
