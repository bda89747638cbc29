//! Who sends a request, as shares of memory and turns of threads are counted.

use std::net::{IpAddr, Ipv6Addr};
use wornpath_routing::Name;

/// Requests with one key, or from one address where there are no tenants. All batches are one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Sender {
    /// A tenant, whatever its addresses.
    Tenant(Name),
    /// A client without a tenant.
    Address(IpAddr),
    /// The requests of batches.
    Batches,
}

impl Sender {
    /// A client that is known by its address only. One customer usually has a /64 of IPv6
    /// addresses, so those count as one.
    pub(crate) fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
            }
            address => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_sender() {
        let same = |one: &str, other: &str| {
            Sender::at(one.parse().unwrap()) == Sender::at(other.parse().unwrap())
        };
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff::2"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
    }
}
