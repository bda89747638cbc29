//! Which addresses may be called, and how a pod is told from a stranger.
//!
//! Pods come from files, names and operators, and whoever can write one of those could point the router at
//! anything it can reach. So an address is judged where it is connected to, after names were resolved: what
//! a name or an odd way of writing stands for is known only then. Redirects are never followed.

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an address of a name is tried before the next.
const BEFORE_THE_NEXT: Duration = Duration::from_millis(500);

/// Addresses that begin alike, such as `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

/// Text that is no range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// Not an address.
    #[error("`{0}` is no address; write a range like 10.0.0.0/8 or fd00::/8")]
    NotAnAddress(String),
    /// Not a number of bits that an address has.
    #[error("`/{bits}` is no length of a prefix; give 0 to {most}")]
    Bits {
        /// What was given.
        bits: String,
        /// The most there can be.
        most: u8,
    },
    /// More was written than counts.
    #[error("{given}/{bits} has bits after the prefix, which do not count; write {meant}/{bits}")]
    Surplus {
        /// As it was written.
        given: IpAddr,
        /// The prefix's length.
        bits: u8,
        /// What it comes to.
        meant: IpAddr,
    },
}

impl AddressRange {
    /// Whether the address is in it. An IPv4 address in IPv6's clothes is the IPv4 address.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        prefix(address.to_canonical(), self.bits) == Some(self.first)
    }
}

/// The address with everything after the prefix set to zero, if it has so many bits.
fn prefix(address: IpAddr, bits: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Some(IpAddr::V4((u32::from(address) & mask).into()))
        }
        IpAddr::V6(address) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Some(IpAddr::V6((u128::from(address) & mask).into()))
        }
        _ => None,
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
        let first = prefix(given, bits).ok_or_else(|| wrong(&bits.to_string()))?;
        if first != given {
            return Err(RangeError::Surplus { given, bits, meant: first });
        }
        Ok(Self { first, bits })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

/// An address that must not be called.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{address} is {why}")]
pub struct EgressDenied {
    /// Which.
    pub address: IpAddr,
    why: String,
}

/// What may be called, and what a pod must show.
#[derive(Clone, Default)]
pub struct EgressPolicy {
    /// Where pods may be; anywhere that a pod can be, if there is no list.
    pub allowed: Option<Vec<AddressRange>>,
    /// For pods at `https://`.
    pub tls: Option<PodTls>,
}

/// How pods are recognised, and how they recognise us.
#[derive(Clone)]
pub struct PodTls {
    /// Whose signature counts, and our own certificate.
    pub config: Arc<ClientConfig>,
    /// The name in pods' certificates, if it is not their host.
    pub server_name: Option<ServerName<'static>>,
}

impl EgressPolicy {
    /// Whether an address may be called.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, address: IpAddr) -> Result<(), EgressDenied> {
        let address = address.to_canonical();
        let forbidden = |why: String| Err(EgressDenied { address, why });
        if let Some(allowed) = &self.allowed {
            if allowed.iter().any(|range| range.holds(address)) {
                return Ok(());
            }
            let ranges: Vec<_> = allowed.iter().map(ToString::to_string).collect();
            return forbidden(format!("in none of `pod_addresses`: {}", ranges.join(", ")));
        }
        match never_a_pod(address) {
            Some(what) => {
                forbidden(format!("{what}; list it in `pod_addresses` if a pod is there"))
            }
            None => Ok(()),
        }
    }

    /// Whether pods are recognised by the very same certificates. Those that were read again may be others.
    pub(crate) fn has_tls_of(&self, other: &Self) -> bool {
        match (&self.tls, &other.tls) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(&one.config, &other.config),
            _ => false,
        }
    }

    /// Connects to the first address that may be called and answers.
    pub(crate) async fn connect(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> std::io::Result<TcpStream> {
        let (mut failed, mut admitted) = (None, Vec::new());
        for address in addresses {
            match self.admit(address.ip()) {
                Ok(()) => admitted.push(address),
                Err(forbidden) => {
                    let kind = std::io::ErrorKind::PermissionDenied;
                    failed = Some(std::io::Error::new(kind, forbidden));
                }
            }
        }
        let mut addresses = admitted.into_iter().peekable();
        while let Some(address) = addresses.next() {
            let connecting = TcpStream::connect(address);
            // The last one may take as long as there is.
            let connected = match addresses.peek() {
                None => connecting.await,
                Some(_) => timeout(BEFORE_THE_NEXT, connecting).await.unwrap_or_else(|_| {
                    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not answer"))
                }),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| std::io::Error::other("the name has no address")))
    }
}

/// Addresses that no pod has, but others that give away secrets: a cloud's metadata is link-local.
fn never_a_pod(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if address.is_unspecified() => Some("no address of anybody"),
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
        write!(f, "Reach({:?}, {tls} certificates)", self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(ranges: &[&str]) -> EgressPolicy {
        let allowed = ranges.iter().map(|range| range.parse().unwrap()).collect();
        EgressPolicy { allowed: Some(allowed), tls: None }
    }

    #[test]
    fn a_range_is_its_prefix_and_nothing_else() {
        let admits =
            |ranges: &[&str], address: &str| reach(ranges).admit(address.parse().unwrap()).is_ok();
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
    fn without_a_list_only_what_is_never_a_pod_is_refused() {
        let reach = EgressPolicy::default();
        for good in ["127.0.0.1", "10.0.0.5", "::1", "192.168.0.9", "fd00::1", "8.8.8.8"] {
            assert_eq!(reach.admit(good.parse().unwrap()), Ok(()));
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
            assert!(reach.admit(bad.parse().unwrap()).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_that_are_none_say_what_would_be_one() {
        for (text, told) in [
            ("10.0.0.0/33", "give 0 to 32"),
            ("fd00::/129", "give 0 to 128"),
            ("10.0.0.0/-1", "`/-1` is no length"),
            ("10.1.0.0/8", "write 10.0.0.0/8"),
            ("2130706433", "is no address"),
            ("engine", "is no address"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
