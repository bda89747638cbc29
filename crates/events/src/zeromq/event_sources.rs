//! `GET /kv_event_sources` of newer vLLM: the settings of its publishers, by rank.

use super::address::ZmqAddress;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a list of publishers cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EventSourcesError {
    /// It is not the expected JSON.
    #[error("/kv_event_sources: {0}; expected publishers by rank")]
    Json(String),
    /// An endpoint in it is invalid.
    #[error("/kv_event_sources, rank {rank}: {problem}")]
    Address {
        /// The rank of the publisher.
        rank: u32,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
struct EventPublisher {
    #[serde(default)]
    data_parallel_rank: u32,
    #[serde(default)]
    publisher: Option<String>,
    endpoint: String,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

impl ZmqAddress {
    /// Parses a list of publishers. Wildcard endpoints are at `host`, and publishers other than
    /// ZeroMQ are skipped.
    ///
    /// # Errors
    /// The list cannot be used.
    pub fn listed(json: &[u8], host: &str) -> Result<BTreeMap<u32, Self>, EventSourcesError> {
        let listed = by_rank(json).map_err(|error| EventSourcesError::Json(error.to_string()))?;
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

/// The publishers: a map from ranks in vLLM 0.32, a list in later versions.
fn by_rank(json: &[u8]) -> serde_json::Result<BTreeMap<u32, EventPublisher>> {
    let value: Value = serde_json::from_slice(json)?;
    if !value.is_array() {
        return serde_json::from_value(value);
    }
    let list: Vec<EventPublisher> = serde_json::from_value(value)?;
    Ok(list.into_iter().map(|one| (one.data_parallel_rank, one)).collect())
}

/// The host and port to connect to.
fn reachable(endpoint: &str, host: &str) -> Result<String, String> {
    let address = endpoint.strip_prefix("tcp://").ok_or(format!("`{endpoint}` is not tcp://…"))?;
    let (bound, port) = address.rsplit_once(':').ok_or(format!("`{endpoint}` has no port"))?;
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(format!("`{endpoint}` has no port from 1 to 65535"));
    }
    let everywhere = matches!(bound, "*" | "0.0.0.0" | "[::]");
    Ok(format!("{}:{port}", if everywhere { host } else { bound }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response of vLLM 0.32.
    const ANSWER: &[u8] = br#"{"0": {"enable_kv_cache_events": true, "publisher": "zmq",
        "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5600", "buffer_steps": 10000,
        "hwm": 100000, "max_queue_size": 100000, "topic": "kv"},
        "1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://10.0.0.7:5558",
        "replay_endpoint": null, "topic": ""},
        "2": {"publisher": "null", "endpoint": "tcp://*:1"}}"#;

    #[test]
    fn every_rank_gets_an_address_that_can_be_dialed() {
        let listed = ZmqAddress::listed(ANSWER, "pod").unwrap();
        let shown: Vec<_> = listed.iter().map(|(rank, at)| (*rank, at.to_string())).collect();
        assert_eq!(shown[0], (0, "zmq://pod:5557?replay=pod:5600&topic=kv".to_owned()));
        assert_eq!(shown[1], (1, "zmq://10.0.0.7:5558".to_owned()));
        assert_eq!(shown.len(), 2, "a publisher other than ZeroMQ is skipped");
    }

    #[test]
    fn later_versions_list_publishers_without_a_map() {
        let list = br#"[{"data_parallel_rank": 1, "endpoint": "tcp://10.0.0.7:5558", "replay_endpoint": null, "topic": ""},
            {"data_parallel_rank": 0, "endpoint": "tcp://*:5557"}]"#;
        let listed = ZmqAddress::listed(list, "pod").unwrap();
        let shown: Vec<_> = listed.iter().map(|(rank, at)| (*rank, at.to_string())).collect();
        let expected = [(0, "zmq://pod:5557".to_owned()), (1, "zmq://10.0.0.7:5558".to_owned())];
        assert_eq!(shown, expected);
        assert!(ZmqAddress::listed(b"[]", "pod").unwrap().is_empty());
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_reason() {
        let refusal = |json: &[u8]| ZmqAddress::listed(json, "pod").unwrap_err().to_string();
        assert!(refusal(b"7").contains("expected publishers by rank"));
        assert!(
            refusal(br#"{"0": {"endpoint": "ipc:///x"}}"#).contains("`ipc:///x` is not tcp://")
        );
        assert!(
            refusal(br#"{"3": {"endpoint": "tcp://*:0"}}"#)
                .starts_with("/kv_event_sources, rank 3")
        );
    }
}
