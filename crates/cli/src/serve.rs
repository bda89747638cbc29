//! `wornpath serve`: the gateway in front of a fleet of engines.

use anyhow::{Context, bail, ensure};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wornpath_admin::{Setup, StartError, start_with};
use wornpath_batch::{BatchesError, serve_batches};
use wornpath_config::{
    BatchRules, BatchStoreSettings, BlockSize, CacheSharing, DebugHeaders, EventSource,
    ModelSettings, PodSettings, Settings,
};
use wornpath_config::{Config, Tokenizers};
use wornpath_gateway::{ServeError, serve};
use wornpath_routing::Role;

use crate::address;
use crate::check::BAD_CONFIGURATION;
use crate::numbers;

pub(crate) mod logging;
mod policy;
mod tenants;

/// What `--help` says after the options.
const MORE: &str = "\
Examples:
  wornpath serve --pod http://127.0.0.1:8001 --pod http://127.0.0.1:8002
  wornpath serve --pod http://a:8000 --pod http://b:8000 --policy round-robin --port 9000
  wornpath serve --pod http://a:8000,events=zmq://a:5557?replay=5558 --tokenizer ./Qwen3-8B --model Qwen/Qwen3-8B
  wornpath serve --prefill http://a:8000 --decode http://b:8000 --policy prefill-decode --tokenizer ./Qwen3-8B --model Qwen/Qwen3-8B

Without --tokenizer, prompts are compared by their text and only what this router itself has sent is
known to be cached; with it, the engines' own cache events count.";

/// Serve OpenAI's and Anthropic's interfaces in front of a fleet of engines
#[derive(Args, Clone)]
#[command(after_long_help = MORE)]
pub(crate) struct ServeArguments {
    /// Configuration; an option given here overrides what the file says
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of an engine, in addition to those of the file; may be given again. `,events=zmq://host:port?replay=port`
    /// says where it publishes
    #[arg(long = "pod", visible_alias = "worker-urls", value_name = "URL", num_args = 1..)]
    pods: Vec<String>,
    /// Address of an engine that computes prompts for others
    #[arg(long, value_name = "URL", num_args = 1..)]
    prefill: Vec<String>,
    /// Address of an engine that takes computed prompts over and generates
    #[arg(long, value_name = "URL", num_args = 1..)]
    decode: Vec<String>,
    /// How requests are routed: the name of a shipped profile or of one in the file, or the path of a .yaml file;
    /// `cache-aware` if not given. It overrides the profile of every route in the file
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Address to listen at; 127.0.0.1 if not given
    #[arg(long)]
    host: Option<IpAddr>,
    /// Port to listen at, 0 for any free one; 8080 if not given
    #[arg(long)]
    port: Option<u16>,
    /// Address and port for operators
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
    /// A key that clients must show; `NAME=KEY` also names its tenant, and overrides the key of a tenant of that name in
    /// the file; may be given again. A key that ends in `=` can be given without a name if it is long, as base64 is
    #[arg(long, value_name = "KEY", env = "WORNPATH_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// A file with the key that the pods of --pod, --prefill and --decode want; sent to them in the place of a client's
    #[arg(long, value_name = "FILE")]
    pod_key_file: Option<PathBuf>,
    /// Keep tenants from using each other's cached prompts
    #[arg(long)]
    isolate_tenants: bool,
    /// Folder of the model's tokenizer.json and tokenizer_config.json; `bytes` takes every byte for a token
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<String>,
    /// Name of the model that --tokenizer belongs to, as engines list it; a model of that name in the file gets its
    /// tokenizer and block size from here
    #[arg(long, value_name = "NAME", requires = "tokenizer")]
    model: Option<String>,
    /// Tokens in a block of the engines' caches; by the file if not given, else as the engines report at /metrics, and 16 if
    /// they do not
    #[arg(long, value_parser = numbers::block_size, requires = "tokenizer")]
    block_size: Option<NonZeroUsize>,
    /// Threads that answer clients; as many as there are cores if not given
    #[arg(long)]
    workers: Option<NonZeroUsize>,
    /// Seconds until an engine must have sent the first byte of its answer, streamed or not
    #[arg(long, value_name = "SECONDS")]
    first_byte_timeout: Option<f64>,
    /// Seconds that may pass between two pieces of an answer
    #[arg(long, value_name = "SECONDS")]
    between_bytes_timeout: Option<f64>,
    /// The most bytes of a request's body
    #[arg(long, value_name = "BYTES")]
    max_body: Option<usize>,
    /// Seconds between saying that it is not ready and taking no more connections
    #[arg(long, value_name = "SECONDS")]
    lame_duck: Option<f64>,
    /// Seconds that requests get to finish when the process is told to end
    #[arg(long, value_name = "SECONDS")]
    grace: Option<f64>,
    /// Tell clients which pod answered, and why, in x-wornpath-pod and x-wornpath-reason
    #[arg(long)]
    reveal_pods: bool,
    /// Serve OpenAI's Files and Batches interface, and keep files and batches in this folder, or in a database that
    /// several gateways share, at postgres://user:password@host:5432/name
    #[arg(long, value_name = "FOLDER", env = "WORNPATH_BATCHES", hide_env_values = true)]
    batches: Option<String>,
    /// What is logged: error, warn, info or debug
    #[arg(long, default_value = "info")]
    log_level: tracing::Level,
}

/// Serves until the process is told to end.
pub(crate) fn run(arguments: &ServeArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let logging = Box::new(logging::LogLevel::start(arguments.log_level));
    allow_many_connections();
    let path = arguments.config.clone();
    let mut tokenizers = Tokenizers::new(path.as_deref().unwrap_or(Path::new("")));
    let refused = |error: &dyn std::fmt::Display| {
        tracing::error!("{error:#}");
        Ok(ExitCode::from(BAD_CONFIGURATION))
    };
    let config = match path.as_deref().map_or_else(|| Ok(Config::bare()), Config::read) {
        Ok(config) => config,
        Err(problems) => return refused(&problems),
    };
    let settings = match config.settings(&mut tokenizers) {
        Ok(from_file) => settings(arguments, from_file),
        Err(error) => return refused(&error),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return refused(&error),
    };
    refuse_huge_pages();
    let scheme = |tls: bool| if tls { "https" } else { "http" };
    let tls = (scheme(settings.tls.client.is_some()), scheme(settings.tls.admin.is_some()));
    let (admin, batch) = (Cell::new(None), settings.batch.clone());
    let around = |gateway: &_| {
        let again = arguments.clone();
        let on_top = move |from_file| {
            self::settings(&again, from_file).map_err(|error| format!("{error:#}"))
        };
        let setup = Setup { path, config, tokenizers, logging };
        admin.set(start_with(gateway, setup, Box::new(on_top))?.admin);
        if let Some(rules) = batch {
            serve_batches(gateway, rules)?;
        }
        Ok(())
    };
    let mut written = Ok(());
    let served = serve(settings, around, |serving| {
        written = tell(out, (serving.client, tls.0), admin.get().map(|admin| (admin, tls.1)));
    });
    written?;
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if is_of_configuration(&error) => refused(&error),
        Err(error) => Err(error.into()),
    }
}

/// Whether starting again would end alike. What is only not there yet, or still in use, may be otherwise by then.
fn is_of_configuration(error: &ServeError) -> bool {
    match error {
        ServeError::Settings(_) => true,
        ServeError::Listen { .. } | ServeError::System(_) => false,
        ServeError::Around(error) => match (error.downcast_ref(), error.downcast_ref()) {
            (Some(error), _) => StartError::is_of_configuration(error),
            (None, Some(error)) => !matches!(error, BatchesError::Store(_)),
            (None, None) => true,
        },
    }
}

/// Every connection is an open file, and the usual limit on those is for programs of another kind: as many as the
/// system allows are taken.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}

/// Filling a huge page with zeros takes up to milliseconds, in which the thread that needed memory answers nobody.
/// What was loaded before keeps its own: a tokenizer's tables are looked up all over, and there are many of them.
fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!("huge pages stay: {error}");
    }
}

/// Says where it listens.
fn tell(
    out: &mut impl Write,
    (client, scheme): (SocketAddr, &str),
    admin: Option<(SocketAddr, &str)>,
) -> std::io::Result<()> {
    writeln!(out, "listening: {scheme}://{client}")?;
    if let Some((admin, scheme)) = admin {
        writeln!(out, "admin: {scheme}://{admin}")?;
    }
    out.flush()
}

/// What the file says, and on top of it what the command line says.
fn settings(arguments: &ServeArguments, from_file: Settings) -> anyhow::Result<Settings> {
    let mut settings = from_file;
    if arguments.config.is_none() || arguments.host.is_some() || arguments.port.is_some() {
        let host = arguments.host.unwrap_or(settings.client.ip());
        settings.client = SocketAddr::new(host, arguments.port.unwrap_or(settings.client.port()));
    }
    if arguments.isolate_tenants {
        settings.sharing = CacheSharing::Isolated;
        tracing::warn!(
            "--isolate-tenants: tenants are kept apart by `cache_salt`, which vLLM and SGLang know; an engine that does not \
             know it shares its cache between them"
        );
    }
    if arguments.reveal_pods {
        settings.reveal = DebugHeaders::Pod;
    }
    settings.admin = arguments.admin.or(settings.admin);
    tenants::set(&arguments.api_key, &mut settings.tenants)?;
    ensure!(
        !arguments.isolate_tenants || !settings.tenants.is_empty(),
        "--isolate-tenants: there are no tenants; give --api-key NAME=KEY, or list `tenants` in the file"
    );
    add_pods(arguments, &mut settings.pods)?;
    set_model(arguments, &mut settings.models)?;
    policy::set(arguments, &mut settings)?;
    settings.batch = batch(arguments, settings.batch);
    limits(arguments, &mut settings)?;
    Ok(settings)
}

/// The pods of the command line, after those of the file.
fn add_pods(arguments: &ServeArguments, pods: &mut Vec<PodSettings>) -> anyhow::Result<()> {
    let listed = pods.len();
    for (urls, option, role) in [
        (&arguments.pods, "--pod", Role::SERVE),
        (&arguments.prefill, "--prefill", Role::PREFILL),
        (&arguments.decode, "--decode", Role::DECODE),
    ] {
        for url in urls {
            let key_file = arguments.pod_key_file.clone();
            let new = PodSettings { key_file, ..pod(option, url, role)? };
            if let Some(known) = pods[..listed].iter().find(|pod| pod.url == new.url) {
                let (url, name) = (&new.url, &known.facts.name);
                bail!("{option} {url}: the file lists it already, as `{name}`; remove one of both");
            }
            pods.push(new);
        }
    }
    ensure!(
        !pods.is_empty() || arguments.config.is_some(),
        "no engine is named; give at least one --pod URL"
    );
    ensure!(
        pods.len() > listed || arguments.pod_key_file.is_none(),
        "--pod-key-file is for the pods of --pod, --prefill and --decode, and there are none; give pods of the file their \
         `key_file` there"
    );
    Ok(())
}

/// The model of the command line, in the place of the file's of that name.
fn set_model(arguments: &ServeArguments, models: &mut Vec<ModelSettings>) -> anyhow::Result<()> {
    let Some(tokenizer) = &arguments.tokenizer else { return Ok(()) };
    let Some(name) = &arguments.model else {
        bail!("--tokenizer needs --model, the model's name as engines list it at /v1/models");
    };
    let tokenizer = Some(crate::fleet::tokenizer(Path::new("."), tokenizer)?);
    match models.iter_mut().find(|model| model.name == *name) {
        Some(model) => {
            model.tokenizer = tokenizer;
            if let Some(tokens) = arguments.block_size {
                model.block_size = BlockSize::Configured(tokens);
            }
        }
        None => models.push(ModelSettings {
            name: name.clone(),
            block_size: arguments.block_size.into(),
            tokenizer,
            aliases: Vec::new(),
        }),
    }
    Ok(())
}

/// The rules of the file, and where the command line wants batches to be kept.
fn batch(arguments: &ServeArguments, from_file: Option<BatchRules>) -> Option<BatchRules> {
    let Some(written) = &arguments.batches else {
        let mut rules = from_file?;
        if let (BatchStoreSettings::Folder(folder), Some(config)) =
            (&mut rules.kept, &arguments.config)
        {
            // Paths in a configuration start beside it.
            *folder = config.parent().unwrap_or(Path::new("")).join(&*folder);
        }
        return Some(rules);
    };
    let kept = BatchStoreSettings::at(written);
    Some(match from_file {
        Some(rules) => BatchRules { kept, ..rules },
        None => BatchRules::kept(kept),
    })
}

fn limits(arguments: &ServeArguments, settings: &mut Settings) -> anyhow::Result<()> {
    let set = |given: Option<f64>, option: &str, setting: &mut Duration| -> anyhow::Result<()> {
        if let Some(given) = given {
            *setting = seconds(given, option)?;
        }
        Ok(())
    };
    for (given, option) in [
        (arguments.first_byte_timeout, "--first-byte-timeout"),
        (arguments.between_bytes_timeout, "--between-bytes-timeout"),
    ] {
        ensure!(
            given != Some(0.0),
            "{option} is 0, which lets no request through; give more seconds"
        );
    }
    ensure!(
        arguments.max_body != Some(0),
        "--max-body is 0, which lets no request through; give more bytes"
    );
    set(arguments.first_byte_timeout, "--first-byte-timeout", &mut settings.timeouts.first_byte)?;
    set(arguments.first_byte_timeout, "--first-byte-timeout", &mut settings.unstreamed)?;
    let between = &mut settings.timeouts.between_bytes;
    set(arguments.between_bytes_timeout, "--between-bytes-timeout", between)?;
    set(arguments.lame_duck, "--lame-duck", &mut settings.drain.lame_duck)?;
    set(arguments.grace, "--grace", &mut settings.drain.grace)?;
    if let Some(bytes) = arguments.max_body {
        settings.limits.body_bytes = bytes;
    }
    if let Some(workers) = arguments.workers {
        settings.workers = workers;
    }
    Ok(())
}

/// `http://host:port`, or `http://host:port,events=zmq://host:port?replay=port`.
fn pod(option: &str, written: &str, role: &str) -> anyhow::Result<PodSettings> {
    let whole = written.split(",events=").next().unwrap_or(written);
    // Before anything of it is shown: a password may hold a comma.
    if whole.contains('@') {
        address::check(option, whole)?;
    }
    let (url, events) = match written.split_once(',') {
        None => (written, None),
        Some((url, rest)) => {
            let address = rest.strip_prefix("events=").with_context(|| {
                format!("`{rest}` after the pod {url} is neither events=zmq://host:port?replay=port nor events=auto")
            })?;
            let source = match address {
                "auto" => EventSource::Asked,
                address => EventSource::ZeroMq(address.parse()?),
            };
            (url, Some(source))
        }
    };
    address::check(option, url)?;
    let mut pod = PodSettings { events, ..PodSettings::at(url) };
    pod.facts.roles = vec![Role::named(role)];
    Ok(pod)
}

fn seconds(given: f64, option: &str) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(given)
        .with_context(|| format!("{option} is {given}; give seconds of zero or more"))
}

#[cfg(test)]
mod tests;
