//! `wornpath serve`: runs the gateway in front of a fleet of engines.

use anyhow::{Context, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use wornpath_admin::{Setup, StartError, start_with};
use wornpath_batch::{BatchesError, serve_batches};
use wornpath_config::{
    BatchRules, BatchStoreSettings, BlockSize, CacheSharing, DatabaseSettings, DebugHeaders,
    Destinations, EppSettings, EventSource, LogFormat, ModelSettings, PodConfig, SecretFile,
    Settings, TokenizerSource,
};
use wornpath_config::{Config, Tokenizers};
use wornpath_events::has_password;
use wornpath_gateway::{Gateway, ServeError, serve};
use wornpath_routing::Role;

use crate::address;
use crate::check::BAD_CONFIGURATION;
use crate::model_files::ModelFiles;

/// Data-parallel ranks of an engine.
const MAX_RANKS: u32 = 1024;

mod arguments;
mod given;
mod listening;
mod logging;
mod policy;
mod tenants;

pub(crate) use arguments::{EppArguments, ServeArguments};
pub(crate) use logging::Log;

/// Whether this program was built to be tried, by the profile `release`: built soon, and slow.
fn is_built_for_trying() -> bool {
    !cfg!(debug_assertions) && env!("WORNPATH_OPT_LEVEL") != "3"
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(arguments: &ServeArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let logging = Box::new(Log::start(arguments.log_level));
    if let Some(format) = &arguments.log_format {
        logging.set_format(LogFormat::named(format));
    }
    raise_file_limit();
    let path = arguments.config.clone();
    let mut tokenizers = Tokenizers::new(path.as_deref().unwrap_or(Path::new("")));
    let last_error = logging.last_error();
    let refused = |error: anyhow::Error| {
        last_error.report(&error);
        Ok(ExitCode::from(BAD_CONFIGURATION))
    };
    let config = match path.as_deref().map_or_else(|| Ok(Config::bare()), Config::read) {
        Ok(config) => config,
        Err(problems) => return refused(problems.into()),
    };
    let settings = match config.settings(&mut tokenizers) {
        Ok(from_file) => settings(arguments, from_file),
        Err(error) => return refused(error.into()),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return refused(error),
    };
    logging.set_format(settings.log_format);
    warn_about_secrets(arguments, &config);
    for used in config.deprecated() {
        tracing::warn!("configuration: {used}");
    }
    if is_built_for_trying() {
        tracing::warn!(
            "program built for trying it out; for production build with `--profile dist`"
        );
    }
    disable_huge_pages();
    let scheme = |is_tls: bool| if is_tls { "https" } else { "http" };
    let client_scheme = scheme(settings.tls.client.is_some());
    let admin_scheme = scheme(settings.tls.admin.is_some());
    let admin = Cell::new(None);
    let batch = settings.batch.clone();
    let given = given::options(arguments);
    let set_up = |gateway: &Arc<Gateway>| {
        let arguments = arguments.clone();
        // A reload applies the command line to the new file again.
        let override_file = move |from_file| {
            self::settings(&arguments, from_file).map_err(|error| format!("{error:#}"))
        };
        gateway.pods().find_tokenizers_by(Arc::new(ModelFiles::of_environment()));
        let setup = Setup { path, config, tokenizers, logging, options: given };
        admin.set(start_with(gateway, setup, Box::new(override_file))?.admin);
        if let Some(rules) = batch {
            serve_batches(gateway, rules)?;
        }
        Ok(())
    };
    let mut written = Ok(());
    let served = serve(settings, set_up, |serving| {
        let client = format!("{client_scheme}://{}", serving.client);
        let admin = admin.get().map(|admin| format!("{admin_scheme}://{admin}"));
        let grpc = |address| format!("grpc://{address}");
        let named = [
            ("listening", Some(client)),
            ("admin", admin),
            ("epp", serving.epp.map(grpc)),
            ("epp health", serving.epp_health.map(grpc)),
        ];
        written = print_addresses(out, named);
    });
    written?;
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if is_of_configuration(&error) => refused(error.into()),
        Err(error) => {
            last_error.report(&listening::explained(error));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Warns about secrets that other users of this machine can see.
fn warn_about_secrets(arguments: &ServeArguments, config: &Config) {
    let option = |key| move |path: &PathBuf| SecretFile { key, path: path.clone() };
    let pod_key = arguments.pod_key_file.iter().map(option("--pod-key-file"));
    let client_keys = arguments.api_key_file.iter().map(option("--api-key-file"));
    let of_options = pod_key.chain(client_keys).filter_map(|file| file.exposed());
    for exposed in config.exposed_secrets().into_iter().chain(of_options) {
        tracing::warn!("{exposed}");
    }
    let variable = std::env::var("WORNPATH_API_KEY").ok();
    if tenants::is_on_command_line(&arguments.api_key, variable.as_deref()) {
        tracing::warn!(
            "--api-key has the key itself, which `ps` shows to every user of this machine; give \
             --api-key-file FILE or WORNPATH_API_KEY"
        );
    }
}

/// Whether a restart would fail again with the same configuration. An address in use or a store that is down may be available
/// by then.
fn is_of_configuration(error: &ServeError) -> bool {
    match error {
        ServeError::Settings(_) => true,
        ServeError::Listen { .. } | ServeError::System(_) => false,
        ServeError::Setup(error) => match (error.downcast_ref(), error.downcast_ref()) {
            (Some(error), _) => StartError::is_of_configuration(error),
            (None, Some(error)) => !matches!(error, BatchesError::Store(_)),
            (None, None) => true,
        },
    }
}

/// Raises the limit on open files to what the system allows: every connection is an open file, and
/// the default limit is too low for a server.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(limit = ?limit.current, %error, "cannot raise the limit on open files");
    }
}

/// Disables huge pages for later allocations: zeroing one blocks a worker for up to milliseconds.
/// Memory that was allocated before, such as a tokenizer's tables, keeps them.
fn disable_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable huge pages");
    }
}

fn print_addresses<const N: usize>(
    out: &mut impl Write,
    named: [(&str, Option<String>); N],
) -> std::io::Result<()> {
    for (name, address) in named {
        if let Some(address) = address {
            writeln!(out, "{name}: {address}")?;
        }
    }
    out.flush()
}

/// The endpoint picker of the file, with the addresses of the command line.
fn epp(arguments: &ServeArguments, from_file: Option<EppSettings>) -> Option<EppSettings> {
    let default = arguments.epp_default;
    let address = arguments.epp.or(default.map(|(address, _)| address));
    let mut epp = match from_file {
        Some(epp) => epp,
        None => {
            let health = default.map(|(_, health)| health);
            EppSettings { health, ..EppSettings::at(address?) }
        }
    };
    epp.address = arguments.epp.unwrap_or(epp.address);
    epp.health = arguments.epp_health.or(epp.health);
    if arguments.one_destination {
        epp.destinations = Destinations::One;
    }
    Some(epp)
}

/// The settings of the file, overridden by the command line.
fn settings(arguments: &ServeArguments, from_file: Settings) -> anyhow::Result<Settings> {
    let mut settings = from_file;
    if arguments.config.is_none() || arguments.host.is_some() || arguments.port.is_some() {
        let host = arguments.host.unwrap_or(settings.client.ip());
        settings.client = SocketAddr::new(host, arguments.port.unwrap_or(settings.client.port()));
    }
    if arguments.isolate_tenants {
        settings.sharing = CacheSharing::Isolated;
        tracing::warn!(
            "--isolate-tenants isolates by `cache_salt`, which vLLM and SGLang support; an engine without it shares its cache \
             between tenants"
        );
    }
    if arguments.reveal_pods {
        settings.reveal = DebugHeaders::Pod;
    }
    if let Some(format) = &arguments.log_format {
        settings.log_format = LogFormat::named(format);
    }
    settings.admin = arguments.admin.or(settings.admin);
    settings.epp = epp(arguments, settings.epp);
    ensure!(
        settings.epp.is_some() || (arguments.epp_health.is_none() && !arguments.one_destination),
        "--epp-health and --one-destination need the endpoint picker; give --epp ADDRESS:PORT"
    );
    let keys = tenants::given_keys(&arguments.api_key, &arguments.api_key_file)?;
    tenants::set(&keys, &mut settings.tenants)?;
    ensure!(
        !arguments.isolate_tenants || !settings.tenants.is_empty(),
        "--isolate-tenants needs tenants; give --api-key-file, or list `tenants` in the file"
    );
    add_pods(arguments, &mut settings.pods)?;
    set_model(arguments, &mut settings.models)?;
    policy::set(arguments, &mut settings)?;
    settings.batch = batch(arguments, settings.batch)?;
    limits(arguments, &mut settings)?;
    Ok(settings)
}

/// Adds the pods of the command line after those of the file.
fn add_pods(arguments: &ServeArguments, pods: &mut Vec<PodConfig>) -> anyhow::Result<()> {
    let listed = pods.len();
    for (urls, option, role) in [
        (&arguments.pods, "--pod", Role::SERVE),
        (&arguments.prefill, "--prefill", Role::PREFILL),
        (&arguments.decode, "--decode", Role::DECODE),
    ] {
        for url in urls {
            let key_file = arguments.pod_key_file.clone();
            let new = PodConfig { key_file, ..pod(option, url, role)? };
            if let Some(known) = pods[..listed].iter().find(|pod| pod.url() == new.url()) {
                let url = new.url();
                let name = &known.facts.name;
                bail!("{option} {url}: the file already lists it as `{name}`; remove one of them");
            }
            pods.extend(new.per_rank());
        }
    }
    ensure!(
        !pods.is_empty() || arguments.config.is_some(),
        "no engines; give at least one --pod URL"
    );
    ensure!(
        pods.len() > listed || arguments.pod_key_file.is_none(),
        "--pod-key-file applies to --pod, --prefill and --decode, and none is given; set `key_file` of pods in the file"
    );
    Ok(())
}

/// Sets the model of the command line, which replaces one of that name in the file.
fn set_model(arguments: &ServeArguments, models: &mut Vec<ModelSettings>) -> anyhow::Result<()> {
    let Some(tokenizer) = &arguments.tokenizer else { return Ok(()) };
    let Some(name) = &arguments.model else {
        bail!("--tokenizer needs --model NAME, as engines list it at /v1/models");
    };
    let tokenizer = match tokenizer.as_str() {
        "none" => None,
        name => Some(crate::fleet::tokenizer(Path::new("."), name)?),
    };
    match models.iter_mut().find(|model| model.name == *name) {
        Some(model) => {
            model.tokenizer = tokenizer;
            model.tokenizer_source = TokenizerSource::Configured;
            if let Some(tokens) = arguments.block_size {
                model.block_size = BlockSize::Configured(tokens);
            }
        }
        None => models.push(ModelSettings {
            name: name.clone(),
            block_size: arguments.block_size.into(),
            tokenizer,
            tokenizer_source: TokenizerSource::Configured,
            aliases: Vec::new(),
            wait_for_pod: Duration::ZERO,
        }),
    }
    Ok(())
}

/// The batch rules of the file, with the store of the command line.
fn batch(
    arguments: &ServeArguments,
    from_file: Option<BatchRules>,
) -> anyhow::Result<Option<BatchRules>> {
    let Some(written) = &arguments.batches else {
        let Some(mut rules) = from_file else { return Ok(None) };
        if let (BatchStoreSettings::Folder(folder), Some(config)) =
            (&mut rules.kept, &arguments.config)
        {
            // Paths in a configuration are relative to it.
            *folder = config.parent().unwrap_or(Path::new("")).join(&*folder);
        }
        return Ok(Some(rules));
    };
    let mut kept = batch_store(written)?;
    Ok(Some(match from_file {
        Some(rules) => {
            // The address is replaced; the TLS settings of the file stay.
            if let (BatchStoreSettings::Postgres(given), BatchStoreSettings::Postgres(of_file)) =
                (&mut kept, &rules.kept)
            {
                given.tls.clone_from(&of_file.tls);
            }
            BatchRules { kept, ..rules }
        }
        None => BatchRules::kept(kept),
    }))
}

/// The store of `--batches`: a folder or a database.
fn batch_store(written: &str) -> anyhow::Result<BatchStoreSettings> {
    if !BatchStoreSettings::is_database(written) {
        return Ok(BatchStoreSettings::Folder(PathBuf::from(written)));
    }
    ensure!(
        !has_password(written),
        "--batches contains a password, which other users of this machine see in `ps`; remove it \
         (keep `user@`), and set PGPASSWORD, or use `batch` with `password_file` in a configuration"
    );
    let address = written.to_owned();
    let password = std::env::var("PGPASSWORD").ok();
    Ok(BatchStoreSettings::Postgres(DatabaseSettings { address, password, tls: None }))
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
            "{option} is 0, so that every request would time out; give more seconds"
        );
    }
    ensure!(
        arguments.max_body != Some(0),
        "--max-body is 0, so that every request would be too large; give more bytes"
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

/// `http://host:port`, which is asked for its events, or with options after it:
/// `,ranks=2,events=zmq://host:port?replay=port`.
fn pod(option: &str, written: &str, role: &str) -> anyhow::Result<PodConfig> {
    let whole = written.split(",events=").next().unwrap_or(written);
    // Before any part is shown in an error: a password may contain a comma.
    if whole.contains('@') {
        address::check(option, whole)?;
    }
    let (url, mut options) = written.split_once(',').unwrap_or((written, ""));
    let mut pod = PodConfig { asks_for_events: true, ..PodConfig::new(url) };
    if let Some(ranks) = options.strip_prefix("ranks=") {
        let (ranks, rest) = ranks.split_once(',').unwrap_or((ranks, ""));
        let number = ranks.parse().ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks));
        pod.ranks = number.with_context(|| {
            format!("{option} {url}: ranks is `{ranks}`; give a number from 1 to {MAX_RANKS}")
        })?;
        options = rest;
    }
    if !options.is_empty() {
        let address = options.strip_prefix("events=").with_context(|| {
            format!("{option} {url}: unknown suffix `{options}`; write ranks=N, then events=zmq://host:port?replay=port, events=auto or events=none")
        })?;
        pod.asks_for_events = false;
        pod.events = match address {
            "none" => Vec::new(),
            "auto" => vec![EventSource::ReportedByEngine],
            address => vec![EventSource::Zmq(address.parse()?)],
        };
    }
    address::check(option, url)?;
    pod.facts.roles = vec![Role::named(role)];
    Ok(pod)
}

fn seconds(given: f64, option: &str) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(given)
        .with_context(|| format!("{option} is {given}; give a number of seconds, zero or more"))
}

#[cfg(test)]
mod tests;
