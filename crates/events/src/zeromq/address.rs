//! Addresses of engines' publishers in configuration.

use std::fmt;
use std::str::FromStr;

/// `zmq://host:port`, optionally with `?replay=port` or `?replay=host:port` and `?topic=prefix`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZmqAddress {
    /// Host and port of the PUB socket.
    pub publisher: String,
    /// Host and port of the ROUTER socket that replays.
    pub replay: Option<String>,
    /// The topic prefix to subscribe to; empty for all.
    pub topic: String,
}

/// An invalid address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("event source `{address}`: {problem}; write zmq://host:port?replay=port&topic=prefix")]
pub struct ZmqAddressError {
    /// The address as written.
    pub address: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ZmqAddress {
    /// The address of data-parallel rank `rank`: both ports counted up by it.
    ///
    /// # Errors
    /// The port would be beyond 65535.
    pub fn of_rank(&self, rank: u16) -> Result<Self, ZmqAddressError> {
        let shifted = |address: &String| {
            let (host, port) = host_and_port(address).map_err(|problem| self.error(problem))?;
            let port = port.checked_add(rank).ok_or_else(|| {
                self.error(format!("the port of rank {rank} would be beyond 65535"))
            })?;
            Ok(format!("{host}:{port}"))
        };
        Ok(Self {
            publisher: shifted(&self.publisher)?,
            replay: self.replay.as_ref().map(shifted).transpose()?,
            topic: self.topic.clone(),
        })
    }

    fn error(&self, problem: String) -> ZmqAddressError {
        ZmqAddressError { address: self.to_string(), problem }
    }
}

impl FromStr for ZmqAddress {
    type Err = ZmqAddressError;

    fn from_str(address: &str) -> Result<Self, ZmqAddressError> {
        parse(address).map_err(|problem| ZmqAddressError { address: address.to_owned(), problem })
    }
}

impl fmt::Display for ZmqAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zmq://{}", self.publisher)?;
        let mut separator = '?';
        if let Some(replay) = &self.replay {
            write!(f, "{separator}replay={replay}")?;
            separator = '&';
        }
        if !self.topic.is_empty() {
            write!(f, "{separator}topic={}", self.topic)?;
        }
        Ok(())
    }
}

fn parse(address: &str) -> Result<ZmqAddress, String> {
    let rest = address.strip_prefix("zmq://").or_else(|| address.strip_prefix("tcp://"));
    let rest = rest.ok_or("it must begin with zmq:// or tcp://")?;
    let (publisher, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, _) = host_and_port(publisher)?;
    let mut parsed =
        ZmqAddress { publisher: publisher.to_owned(), replay: None, topic: String::new() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("topic", topic)) => topic.clone_into(&mut parsed.topic),
            Some(("replay", port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
                parsed.replay = Some(format!("{host}:{port}"));
            }
            Some(("replay", full)) => {
                host_and_port(full)?;
                parsed.replay = Some(full.to_owned());
            }
            _ => return Err(format!("unknown parameter `{pair}`; use replay=… or topic=…")),
        }
    }
    Ok(parsed)
}

fn host_and_port(address: &str) -> Result<(&str, u16), String> {
    let (host, port) = address.rsplit_once(':').ok_or(format!("`{address}` has no port"))?;
    if host.is_empty() || host == "*" {
        return Err(format!("`{address}` has no host to connect to"));
    }
    match port.parse() {
        Ok(port) if port > 0 => Ok((host, port)),
        _ => Err(format!("invalid port `{port}`; use 1 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_round_trips_and_each_rank_has_its_own_ports() {
        let address: ZmqAddress = "tcp://[::1]:5557?replay=5600&topic=kv@".parse().unwrap();
        assert_eq!(address.to_string(), "zmq://[::1]:5557?replay=[::1]:5600&topic=kv@");
        let rank = address.of_rank(3).unwrap();
        assert_eq!(rank.to_string(), "zmq://[::1]:5560?replay=[::1]:5603&topic=kv@");
        assert_eq!("zmq://pod:1".parse::<ZmqAddress>().unwrap().to_string(), "zmq://pod:1");
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        let refusal = |address: &str| address.parse::<ZmqAddress>().unwrap_err().problem;
        assert_eq!(refusal("http://pod:1"), "it must begin with zmq:// or tcp://");
        assert_eq!(refusal("zmq://pod"), "`pod` has no port");
        assert_eq!(refusal("zmq://*:5557"), "`*:5557` has no host to connect to");
        assert_eq!(refusal("zmq://pod:70000"), "invalid port `70000`; use 1 to 65535");
        assert_eq!(
            refusal("zmq://pod:1?reply=2"),
            "unknown parameter `reply=2`; use replay=… or topic=…"
        );
        assert_eq!(refusal("zmq://pod:1?replay=x"), "`x` has no port");
        let last: ZmqAddress = "zmq://pod:65535".parse().unwrap();
        assert!(
            last.of_rank(1).unwrap_err().to_string().contains("port of rank 1 would be beyond")
        );
    }
}
