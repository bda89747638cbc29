//! `wornpath engine`: simulated engines that serve on real ports.

use crate::address::unbound;
use crate::numbers;
use anyhow::{Context, ensure};
use clap::Args;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use wornpath_sim::serve::{
    Addresses, Control, EngineOptions, EnginePort, EngineServeError, Faults, ServedEngine,
};
use wornpath_sim::{EngineProfile, EngineSettings, TokenReports};

/// Shown by `--help` after the options.
const MORE: &str = "\
Paths of an engine:
  POST /v1/chat/completions, /v1/completions   streaming or not; usage with cached_tokens; vLLM's
                                               kv_transfer_params, cache_salt, ignore_eos, min_tokens;
                                               a tool is called when tool_choice requires one
  POST /v1/messages (Anthropic), /v1/responses (OpenAI)
  POST /v1/embeddings, /v1/rerank, /tokenize, /reset_prefix_cache
  GET  /v1/models, /health, /metrics (vLLM's names), /version, /kv_event_sources,
       /tokenizer_info
Cache events are published over ZeroMQ in vLLM's encoding, and can be replayed.

Faults, for --fault and for the control port (as JSON, with underscores):
  hang                    accept requests and never answer
  refuse=503              answer inference requests with this status
  slow=3                  run three times slower
  stall-after-tokens=5    stall the answer after five tokens, with the connection open
  cut-after-tokens=5      close the connection after five tokens
  drop-events-every=10    do not publish every tenth batch of events; replay has it
  duplicate-events        publish every batch twice
  reorder-events          publish batches in pairs, the later first
  lose-tail               stop publishing, though batches are still numbered; replay has them
  no-replay               do not answer replay requests
  no-discovery            say neither where events are published nor how prompts are tokenized
  cached-tokens=zero      report no cached tokens; `all` reports the whole prompt
  no-kv-transfer          let no decode engine load the KV cache that was computed for it
  crash-after-prefills=8  the same, and crash after eight prefills
  kv-load-failure=hang    wait for ever for a KV cache that cannot be loaded from a prefill engine;
                          `recompute` computes it, and `fail` fails as vLLM does by default, with 500
                          or an error in the stream

Control port, for all engines of the process, numbered from 0:
  GET  /engines                    addresses, state and faults
  PUT  /engines/0/faults           set faults: {\"slow\": 2, \"hang\": false}; omitted ones are off
  POST /engines/0/crash            close all ports and connections
  POST /engines/0/restart          restart: empty cache, events numbered from 0, same faults

Examples:
  wornpath engine
  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"Once upon a time\"}'
  wornpath engine --engines 4 --profile 32b-h100x2 --speed 10 --fault cut-after-tokens=20";

/// Serve simulated engines that speak OpenAI's and vLLM's APIs
///
/// Each engine simulates continuous batching and a prefix cache: it answers with plain words, with
/// the timing of a real engine of its profile, and can fail in all the ways real engines do. For
/// testing routers, clients and dashboards without a GPU.
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct EngineArguments {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// HTTP port of the first engine, the others follow; 0 for any free ports
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Port of the first engine's cache events, the others follow; 0 for any free ports
    #[arg(long, default_value_t = 0)]
    events_port: u16,
    /// Port of the first engine's replay of events, the others follow; 0 for any free ports
    #[arg(long, default_value_t = 0)]
    replay_port: u16,
    /// Control port, to set faults; 0 for any free port
    #[arg(long, default_value_t = 0)]
    control_port: u16,
    /// Number of engines
    #[arg(long, default_value_t = 1)]
    engines: u16,
    /// Built-in engine profile, or path of a JSON file
    #[arg(long, default_value = "8b-h200", long_help = profile_help())]
    profile: String,
    /// Factor by which to run faster than real time
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Name of the model; default: the profile's name
    #[arg(long)]
    model: Option<String>,
    /// Name of a LoRA adapter to serve beside the model; may be repeated
    #[arg(long = "adapter", value_name = "NAME")]
    adapters: Vec<String>,
    /// Directory with tokenizer.json and tokenizer_config.json; without it, bytes are tokens
    #[arg(long, value_name = "DIRECTORY")]
    tokenizer: Option<PathBuf>,
    /// Folder or repository of the model, as /v1/models names it; default: the folder of --tokenizer,
    /// else the model's name
    #[arg(long, value_name = "NAME")]
    root: Option<String>,
    /// Tokens per cache block
    #[arg(long, default_value = "16", value_parser = numbers::block_size)]
    block_size: NonZeroUsize,
    /// Tokens that the KV cache holds; default: as in the profile
    #[arg(long)]
    kv_tokens: Option<usize>,
    /// Tokens that a second cache tier in host memory holds
    #[arg(long, default_value_t = 0)]
    host_tokens: usize,
    /// Tokens that a third cache tier on disk holds
    #[arg(long, default_value_t = 0)]
    disk_tokens: usize,
    /// Length of an answer in tokens, if the request sets no limit
    #[arg(long, default_value_t = 128)]
    answer_tokens: usize,
    /// Hash algorithm of blocks, as vLLM's --prefix-caching-hash-algo
    #[arg(long, default_value = "sha256")]
    hash_algorithm: String,
    /// Seed of the hashes, as vLLM's PYTHONHASHSEED; default: vLLM's
    #[arg(long)]
    hash_seed: Option<String>,
    /// Topic of the cache events; default: kv@<address>@<model>
    #[arg(long)]
    topic: Option<String>,
    /// Fault to inject from the start; may be repeated; --help lists them below
    #[arg(long = "fault", value_name = "FAULT[=VALUE]")]
    faults: Vec<String>,
}

fn profile_help() -> String {
    let mut help = "Built-in engine profile, or path of a JSON file. Built-in profiles:".to_owned();
    for name in EngineProfile::built_in_names() {
        let source = EngineProfile::built_in(name).map(|profile| profile.source().to_owned());
        help.push_str(&format!("\n- {name}: {}", source.unwrap_or_default()));
    }
    help
}

pub(crate) fn run(arguments: &EngineArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let options = options(arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut engines = Vec::new();
        for number in 0..arguments.engines {
            let addresses = addresses(arguments, number)?;
            let engine = ServedEngine::start(options.clone(), addresses).await;
            engines.push(engine.map_err(explained)?);
        }
        let engines: Arc<[ServedEngine]> = engines.into();
        let control = SocketAddr::new(arguments.host, arguments.control_port);
        let control = Control::start(control, Arc::clone(&engines)).await.map_err(explained)?;
        for (number, engine) in engines.iter().enumerate() {
            let Addresses { http, events, replay } = engine.addresses();
            writeln!(
                out,
                "engine {number}: http://{http}  events tcp://{events}  replay tcp://{replay}"
            )?;
        }
        writeln!(out, "control: http://{}", control.address())?;
        out.flush()?;
        // The engines run in their own tasks; a signal ends the process.
        std::future::pending().await
    })
}

/// The error, with its cure if a port cannot be bound.
fn explained(error: EngineServeError) -> anyhow::Error {
    let EngineServeError::Bind { port, address, cause } = error else { return error.into() };
    let option = match port {
        EnginePort::Http => "--port",
        EnginePort::Events => "--events-port",
        EnginePort::Replay => "--replay-port",
        EnginePort::Control => "--control-port",
    };
    unbound(address, port, &cause, &format!("{option} (0 for any free one)"))
}

fn options(arguments: &EngineArguments) -> anyhow::Result<EngineOptions> {
    let speed = arguments.speed;
    ensure!((0.001..=1e6).contains(&speed), "--speed is {speed}; it must be from 0.001 to 1000000");
    ensure!(arguments.engines > 0, "--engines is 0; give at least 1");
    ensure!(arguments.answer_tokens > 0, "--answer-tokens is 0; give at least 1");
    let mut options = EngineOptions::new(profile(&arguments.profile)?);
    options.settings = EngineSettings {
        block_size: arguments.block_size,
        kv_tokens: arguments.kv_tokens,
        host_tokens: arguments.host_tokens,
        disk_tokens: arguments.disk_tokens,
        tokens: TokenReports::Each,
        ..EngineSettings::default()
    };
    options.speed = speed;
    options.adapters.clone_from(&arguments.adapters);
    options.tokenizer.clone_from(&arguments.tokenizer);
    let folder = arguments.tokenizer.as_ref().and_then(|folder| std::path::absolute(folder).ok());
    let folder = folder.map(|folder| folder.display().to_string());
    options.root = arguments.root.clone().or(folder);
    options.answer_tokens = arguments.answer_tokens;
    options.topic.clone_from(&arguments.topic);
    options.hash_algorithm = arguments.hash_algorithm.parse().context("--hash-algorithm")?;
    options.faults = Faults::from_arguments(&arguments.faults)?;
    if let Some(model) = &arguments.model {
        options.model.clone_from(model);
    }
    if let Some(seed) = &arguments.hash_seed {
        options.hash_seed.clone_from(seed);
    }
    Ok(options)
}

/// A built-in engine profile, or one from a file if the name ends in `.json`.
pub(crate) fn profile(name: &str) -> anyhow::Result<EngineProfile> {
    if !name.ends_with(".json") {
        return Ok(EngineProfile::built_in(name)?);
    }
    let json = std::fs::read(name).with_context(|| format!("cannot read engine profile {name}"))?;
    Ok(EngineProfile::from_json(name, &json)?)
}

fn addresses(arguments: &EngineArguments, number: u16) -> anyhow::Result<Addresses> {
    let nth = |first: u16, option: &str| {
        let port = if first == 0 { Some(0) } else { first.checked_add(number) };
        let port = port.with_context(|| {
            format!("{option} is {first}: no port left for engine {number}; give a lower one")
        })?;
        anyhow::Ok(SocketAddr::new(arguments.host, port))
    };
    Ok(Addresses {
        http: nth(arguments.port, "--port")?,
        events: nth(arguments.events_port, "--events-port")?,
        replay: nth(arguments.replay_port, "--replay-port")?,
    })
}
