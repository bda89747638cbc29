//! Where an engine publishes, as newer vLLM lists it at `GET /kv_event_sources`: by rank, its own settings.

use super::address::ZmqAddress;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A list of publishers that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EventSourcesError {
    /// It is no list of publishers.
    #[error("/kv_event_sources: {0}; expected settings of publishers by rank")]
    Json(String),
    /// An address in it is none.
    #[error("/kv_event_sources, rank {rank}: {problem}")]
    Address {
        /// Whose.
        rank: u32,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
struct EventPublisher {
    #[serde(default)]
    publisher: Option<String>,
    endpoint: String,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

impl ZmqAddress {
    /// Reads a list of publishers. Those that listen everywhere are at `host`, and those that are not ZeroMQ are
    /// passed over.
    ///
    /// # Errors
    /// It is no such list.
    pub fn listed(json: &[u8], host: &str) -> Result<BTreeMap<u32, Self>, EventSourcesError> {
        let listed: BTreeMap<u32, EventPublisher> = serde_json::from_slice(json)
            .map_err(|error| EventSourcesError::Json(error.to_string()))?;
        let is_zmq =
            |one: &EventPublisher| one.publisher.as_deref().is_none_or(|kind| kind == "zmq");
        let zmq = listed.into_iter().filter(|(_, publisher)| is_zmq(publisher));
        zmq.map(|(rank, publisher)| {
            let wrong = |problem| EventSourcesError::Address { rank, problem };
            let replay = publisher.replay_endpoint.as_deref();
            let replay = replay.map(|at| reachable(at, host)).transpose().map_err(wrong)?;
            let address = Self {
                publisher: reachable(&publisher.endpoint, host).map_err(wrong)?,
                replay,
                topic: publisher.topic,
            };
            Ok((rank, address))
        })
        .collect()
    }
}

/// Host and port to connect to.
fn reachable(endpoint: &str, host: &str) -> Result<String, String> {
    let place = endpoint.strip_prefix("tcp://").ok_or(format!("`{endpoint}` is not tcp://…"))?;
    let (bound, port) = place.rsplit_once(':').ok_or(format!("`{endpoint}` has no port"))?;
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(format!("`{endpoint}` has no port from 1 to 65535"));
    }
    let everywhere = matches!(bound, "*" | "0.0.0.0" | "[::]");
    Ok(format!("{}:{port}", if everywhere { host } else { bound }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.32 answers.
    const ANSWER: &[u8] = br#"{"0": {"enable_kv_cache_events": true, "publisher": "zmq",
        "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5600", "buffer_steps": 10000,
        "hwm": 100000, "max_queue_size": 100000, "topic": "kv"},
        "1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://10.0.0.7:5558",
        "replay_endpoint": null, "topic": ""},
        "2": {"publisher": "null", "endpoint": "tcp://*:1"}}"#;

    #[test]
    fn every_rank_is_found_where_it_can_be_reached() {
        let listed = ZmqAddress::listed(ANSWER, "pod").unwrap();
        let shown: Vec<_> = listed.iter().map(|(rank, at)| (*rank, at.to_string())).collect();
        assert_eq!(shown[0], (0, "zmq://pod:5557?replay=pod:5600&topic=kv".to_owned()));
        assert_eq!(shown[1], (1, "zmq://10.0.0.7:5558".to_owned()));
        assert_eq!(shown.len(), 2, "who does not publish over ZeroMQ is passed over");
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        let refusal = |json: &[u8]| ZmqAddress::listed(json, "pod").unwrap_err().to_string();
        assert!(refusal(b"[]").contains("expected settings of publishers by rank"));
        assert!(
            refusal(br#"{"0": {"endpoint": "ipc:///x"}}"#).contains("`ipc:///x` is not tcp://")
        );
        assert!(
            refusal(br#"{"3": {"endpoint": "tcp://*:0"}}"#)
                .starts_with("/kv_event_sources, rank 3")
        );
    }
}
