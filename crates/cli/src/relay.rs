//! `wornpath relay`: publishes engines' cache events to a broker, so that many routers share one
//! stream.

use crate::http::TlsArguments;
use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use wornpath_config::SecretFile;
use wornpath_events::{
    BrokerLogin, BrokerStream, Epoch, PodName, RelayEvent, RelayTask, SinkError, TransportKind,
    UrlUser, ZeroMq, ZmqAddress, has_password,
};

/// Publish the cache events of engines to a broker, so that many routers share one stream
///
/// Batches keep the sequence numbers of their engine; each restart of an engine starts a new epoch.
/// After an outage of the broker, the relay publishes what the broker missed, and everything that
/// it keeps if the broker was wiped.
#[derive(Args)]
pub(crate) struct RelayArguments {
    /// Pod and the publisher of its engine: NAME=zmq://host:port?replay=port; may be repeated
    #[arg(long, value_name = "POD=SOURCE", required = true, value_parser = source)]
    from: Vec<(PodName, ZmqAddress)>,
    /// Broker: nats://host:port/STREAM, redis://host:port/PREFIX or kafka://host:port/TOPIC; over
    /// TLS tls://, rediss:// or kafka+ssl://, with --ca
    #[arg(long, value_name = "BROKER")]
    to: String,
    /// File with the broker's password; its user is in the URL: redis://user@host:port/PREFIX
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Environment variable with the broker's password, instead of --password-file
    #[arg(long, value_name = "NAME", conflicts_with = "password_file")]
    password_env: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
}

struct RelayBroker {
    kind: &'static TransportKind,
    address: BrokerStream,
}

fn source(text: &str) -> Result<(PodName, ZmqAddress), String> {
    let (pod, address) = text.split_once("=zmq://").ok_or("expected NAME=zmq://host:port")?;
    if pod.is_empty() {
        return Err("pod name missing; expected NAME=zmq://host:port".to_owned());
    }
    let address = format!("zmq://{address}").parse();
    Ok((pod.into(), address.map_err(|error: wornpath_events::ZmqAddressError| error.to_string())?))
}

impl RelayArguments {
    /// The broker of `--to`. No error shows the value, which may contain a password.
    fn broker(&self) -> anyhow::Result<RelayBroker> {
        const EXPECTED: &str = "--to: expected nats://host:port/STREAM, redis://host:port/PREFIX \
                                or kafka://host:port/TOPIC";
        ensure!(
            !has_password(&self.to),
            "--to contains a password, which other users of this machine see in `ps`; remove it \
             (keep `user@`), and give --password-file or --password-env"
        );
        let (scheme, rest) = self.to.split_once("://").context(EXPECTED)?;
        let kind = TransportKind::of_scheme(scheme).context(EXPECTED)?;
        let (server, stream) = rest.split_once('/').context(EXPECTED)?;
        ensure!(!server.is_empty() && !stream.is_empty(), EXPECTED);
        let UrlUser { url, user } = UrlUser::split(&format!("{scheme}://{server}"));
        let password = self.password()?;
        ensure!(
            user.is_none() || password.is_some(),
            "--to names a user or a token, but there is no password; give --password-file or \
             --password-env (a token belongs there, without `…@` in --to)"
        );
        ensure!(
            kind.has_login || password.is_none(),
            "--to: {} takes no password here; use a client certificate: --certificate and --key",
            kind.title
        );
        let tls = (scheme != kind.name).then(|| self.tls.read_broker()).transpose()?;
        let login = password.map(|password| BrokerLogin { user, password });
        let address = BrokerStream { url, stream: stream.to_owned(), login, tls };
        Ok(RelayBroker { kind, address })
    }

    fn password(&self) -> anyhow::Result<Option<String>> {
        let text = match (&self.password_file, &self.password_env) {
            (Some(file), _) => {
                let secret = SecretFile { key: "--password-file", path: file.clone() };
                if let Some(exposed) = secret.exposed() {
                    eprintln!("warning: {exposed}");
                }
                std::fs::read_to_string(file)
                    .with_context(|| format!("--password-file: cannot read {}", file.display()))?
            }
            (None, Some(name)) => std::env::var(name)
                .with_context(|| format!("--password-env: `{name}` is not set"))?,
            (None, None) => return Ok(None),
        };
        let password = text.trim_end_matches(['\r', '\n']);
        ensure!(!password.is_empty(), "the broker's password is empty; give it, or no option");
        Ok(Some(password.to_owned()))
    }
}

/// Refuses two sources for one pod: each would look like a restart of the engine to the other.
fn refuse_duplicates(sources: &[(PodName, ZmqAddress)]) -> anyhow::Result<()> {
    for (at, (pod, address)) in sources.iter().enumerate() {
        if let Some((_, first)) = sources[..at].iter().find(|(other, _)| other == pod) {
            bail!(
                "pod `{pod}` has two sources, {first} and {address}; give each source its own pod name"
            );
        }
    }
    Ok(())
}

pub(crate) fn run(arguments: &RelayArguments, out: &mut impl Write) -> anyhow::Result<()> {
    refuse_duplicates(&arguments.from)?;
    let RelayBroker { kind, address: broker } = arguments.broker()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let epoch = starting_epoch();
    runtime.block_on(async {
        let mut pods = JoinSet::new();
        for (pod, address) in &arguments.from {
            let transport = ZeroMq::new(pod.clone(), address.clone()).with_raw_payloads();
            let task =
                RelayTask { from: transport, pod: pod.clone(), epoch, report: reporter(pod) };
            let relay = kind
                .relay(&broker, task)
                .map_err(|error| anyhow!("broker {}/{}: {error}", broker.url, broker.stream))?;
            pods.spawn(async move {
                relay.await;
            });
            writeln!(out, "relaying {pod} from {address} to {}", broker.url)?;
        }
        out.flush()?;
        match pods.join_next().await {
            Some(Err(failure)) => bail!("relay panicked: {failure}"),
            _ => Ok(()),
        }
    })
}

/// Milliseconds since 1970: an epoch must be later than those of every earlier relay.
#[allow(
    clippy::disallowed_methods,
    reason = "only the wall clock orders the epochs of several processes"
)]
fn starting_epoch() -> Epoch {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Epoch(since.as_millis() as u64)
}

/// Prints what happens to the relay of a pod.
fn reporter(pod: &PodName) -> Box<dyn FnMut(RelayEvent<'_>) + Send> {
    let name = PodName::clone(pod);
    let mut is_too_large_reported = false;
    Box::new(move |event| match event {
        RelayEvent::EngineConnected => eprintln!("{name}: engine connected"),
        RelayEvent::EngineUnreachable(why) => {
            eprintln!("{name}: engine unreachable: {why}; retrying");
        }
        RelayEvent::Broker(error @ SinkError::Unreachable(_)) => {
            eprintln!("{name}: {error}; retrying");
        }
        // Reported once: routers count the others.
        RelayEvent::Broker(SinkError::TooLarge { .. })
            if std::mem::replace(&mut is_too_large_reported, true) => {}
        RelayEvent::Broker(error) => eprintln!("{name}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_name_or_with_two_sources_is_refused() {
        let refusal = source("=zmq://127.0.0.1:1").unwrap_err();
        assert!(refusal.contains("pod name missing"), "{refusal}");
        let sources = |names: [&str; 2]| {
            names.map(|name| source(&format!("{name}=zmq://127.0.0.1:1")).unwrap())
        };
        refuse_duplicates(&sources(["a", "b"])).unwrap();
        let refusal = refuse_duplicates(&sources(["a", "a"])).unwrap_err().to_string();
        assert!(refusal.starts_with("pod `a` has two sources, zmq://127.0.0.1:1"), "{refusal}");
    }
}
