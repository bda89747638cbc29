//! Egress policy: which addresses the router may call, and which certificates it trusts there.
//!
//! Pods come from files, DNS and operators, and an attacker who can write one of those could point
//! the router at anything it can reach. So an address is checked where the router connects, after
//! names were resolved: only then is it known what a name or an odd notation stands for. Redirects
//! are never followed.

use ipnet::IpNet;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The connect timeout of each address of a name but the last.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(500);

/// A CIDR range of addresses, such as `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange(IpNet);

/// Text that is no CIDR range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// Not an address.
    #[error("`{0}` is not an IP address; write a range like 10.0.0.0/8 or fd00::/8")]
    NotAnAddress(String),
    /// Not a prefix length of that address family.
    #[error("prefix length `/{bits}` is invalid; it must be 0 to {most}")]
    Bits {
        /// The length as it was written.
        bits: String,
        /// The bits of an address of that family.
        most: u8,
    },
    /// Host bits are set.
    #[error("{given}/{bits} has host bits set; write {meant}/{bits}")]
    Surplus {
        /// The address as it was written.
        given: IpAddr,
        /// The prefix length.
        bits: u8,
        /// The address without host bits.
        meant: IpAddr,
    },
}

impl AddressRange {
    /// Whether the address is in the range. An IPv4-mapped IPv6 address counts as the IPv4 address.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let not = |_| RangeError::NotAnAddress(text.to_owned());
        let given = address.parse::<IpAddr>().map_err(not)?;
        let most = if given.is_ipv4() { 32 } else { 128 };
        let wrong = |bits: &str| RangeError::Bits { bits: bits.to_owned(), most };
        let bits = match bits {
            None => most,
            Some(bits) => bits.parse().map_err(|_| wrong(bits))?,
        };
        let range = IpNet::new(given, bits).map_err(|_| wrong(&bits.to_string()))?;
        if range.network() != given {
            return Err(RangeError::Surplus { given, bits, meant: range.network() });
        }
        Ok(Self(range))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address that the policy denies.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{address} is {reason}")]
pub struct EgressDenied {
    /// The denied address.
    pub address: IpAddr,
    reason: String,
}

/// The addresses that may be called, and the certificates that pods must show there.
#[derive(Clone, Default)]
pub struct EgressPolicy {
    /// The allow-list; without one, every address but those that no pod has.
    pub allowed: Option<Vec<AddressRange>>,
    /// For pods at `https://`.
    pub tls: Option<PodTls>,
}

/// How the router and its pods authenticate each other.
#[derive(Clone)]
pub struct PodTls {
    /// The trusted CAs, and the router's client certificate.
    pub config: Arc<ClientConfig>,
    /// The name in pods' certificates, if it is not their host.
    pub server_name: Option<ServerName<'static>>,
}

impl EgressPolicy {
    /// Whether an address may be called.
    ///
    /// # Errors
    /// If the allow-list or the built-in deny-list excludes it.
    pub fn admit(&self, address: IpAddr) -> Result<(), EgressDenied> {
        let address = address.to_canonical();
        let denied = |reason: String| Err(EgressDenied { address, reason });
        if let Some(allowed) = &self.allowed {
            if allowed.iter().any(|range| range.holds(address)) {
                return Ok(());
            }
            let ranges: Vec<_> = allowed.iter().map(ToString::to_string).collect();
            return denied(format!("in none of `pod_addresses`: {}", ranges.join(", ")));
        }
        match never_a_pod(address) {
            Some(what) => denied(format!("{what}; list it in `pod_addresses` if a pod is there")),
            None => Ok(()),
        }
    }

    /// Whether both policies have the very same TLS configuration. One that was loaded again may
    /// differ.
    pub(crate) fn has_same_tls(&self, other: &Self) -> bool {
        match (&self.tls, &other.tls) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(&one.config, &other.config),
            _ => false,
        }
    }

    /// Connects to the first allowed address that accepts.
    pub(crate) async fn connect(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> std::io::Result<TcpStream> {
        let mut failed = None;
        let mut admitted = Vec::new();
        for address in addresses {
            match self.admit(address.ip()) {
                Ok(()) => admitted.push(address),
                Err(denied) => {
                    let kind = std::io::ErrorKind::PermissionDenied;
                    failed = Some(std::io::Error::new(kind, denied));
                }
            }
        }
        let mut addresses = admitted.into_iter().peekable();
        while let Some(address) = addresses.next() {
            let connecting = TcpStream::connect(address);
            // The last address has the whole connect timeout.
            let connected = match addresses.peek() {
                None => connecting.await,
                Some(_) => timeout(NEXT_ADDRESS_AFTER, connecting).await.unwrap_or_else(|_| {
                    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "connect timeout"))
                }),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| std::io::Error::other("name resolves to no address")))
    }
}

/// Addresses that no pod has; some expose secrets, such as the link-local metadata service of a
/// cloud.
fn never_a_pod(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_multicast() => Some("a multicast address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("the broadcast address"),
        IpAddr::V4(address) if address.is_link_local() => Some("a link-local address"),
        IpAddr::V6(address) if address.is_unicast_link_local() => Some("a link-local address"),
        _ => None,
    }
}

impl fmt::Debug for EgressPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.is_some() { "with" } else { "without" };
        write!(f, "EgressPolicy({:?}, {tls} TLS)", self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(ranges: &[&str]) -> EgressPolicy {
        let allowed = ranges.iter().map(|range| range.parse().unwrap()).collect();
        EgressPolicy { allowed: Some(allowed), tls: None }
    }

    #[test]
    fn a_range_holds_the_addresses_with_its_prefix_and_no_others() {
        let admits =
            |ranges: &[&str], address: &str| policy(ranges).admit(address.parse().unwrap()).is_ok();
        for (ranges, good, bad) in [
            (&["10.0.0.0/8"][..], "10.255.0.1", "11.0.0.0"),
            (&["10.1.2.3"], "10.1.2.3", "10.1.2.4"),
            (&["10.1.2.2/31"], "10.1.2.3", "10.1.2.4"),
            (&["fd00::/8"], "fd12::1", "fe80::1"),
            (&["127.0.0.0/8", "::1"], "::1", "::2"),
            (&["10.0.0.0/8"], "::ffff:10.0.0.1", "::ffff:127.0.0.1"),
            (&["0.0.0.0/0"], "192.168.1.1", "::1"),
            (&["169.254.0.0/16"], "169.254.1.1", "169.253.1.1"),
        ] {
            assert!(admits(ranges, good), "{ranges:?} {good}");
            assert!(!admits(ranges, bad), "{ranges:?} {bad}");
        }
    }

    #[test]
    fn without_an_allow_list_only_addresses_that_no_pod_has_are_denied() {
        let policy = EgressPolicy::default();
        for good in ["127.0.0.1", "10.0.0.5", "::1", "192.168.0.9", "fd00::1", "8.8.8.8"] {
            assert_eq!(policy.admit(good.parse().unwrap()), Ok(()));
        }
        for bad in [
            "0.0.0.0",
            "::",
            "::ffff:0.0.0.0",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(policy.admit(bad.parse().unwrap()).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_invalid_range_is_refused_with_the_cure() {
        for (text, expected) in [
            ("10.0.0.0/33", "must be 0 to 32"),
            ("fd00::/129", "must be 0 to 128"),
            ("10.0.0.0/-1", "`/-1` is invalid"),
            ("10.1.0.0/8", "write 10.0.0.0/8"),
            ("2130706433", "is not an IP address"),
            ("engine", "is not an IP address"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
