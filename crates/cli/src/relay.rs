//! `wornpath relay`: publishes engines' cache events to a broker, so that many routers share one
//! stream.

use crate::http::TlsArguments;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use wornpath_events::{
    BrokerStream, Epoch, PodName, RelayEvent, RelayTask, SinkError, TransportKind, ZeroMq,
    ZmqAddress, without_login,
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
    #[arg(long, value_name = "BROKER", value_parser = broker)]
    to: RelayBroker,
    #[command(flatten)]
    tls: TlsArguments,
}

#[derive(Clone)]
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

fn broker(text: &str) -> Result<RelayBroker, String> {
    const EXPECTED: &str =
        "expected nats://host:port/STREAM, redis://host:port/PREFIX or kafka://host:port/TOPIC";
    let (scheme, rest) = text.split_once("://").ok_or(EXPECTED)?;
    let kind = TransportKind::of_scheme(scheme).ok_or(EXPECTED)?;
    let (server, stream) = rest.split_once('/').ok_or(EXPECTED)?;
    if server.is_empty() || stream.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    let url = format!("{scheme}://{server}");
    let address = BrokerStream { url, stream: stream.to_owned(), tls: None };
    Ok(RelayBroker { kind, address })
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
    let RelayBroker { kind, address: mut broker } = arguments.to.clone();
    if !broker.url.starts_with(&format!("{}://", kind.name)) {
        broker.tls = Some(arguments.tls.read_broker(&without_login(&broker.url))?);
    }
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
            let relay = kind.relay(&broker, task).map_err(|error| {
                anyhow!("broker {}/{}: {error}", without_login(&broker.url), broker.stream)
            })?;
            pods.spawn(async move {
                relay.await;
            });
            writeln!(out, "relaying {pod} from {address} to {}", without_login(&broker.url))?;
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
