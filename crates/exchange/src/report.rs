//! What a router says of a pod or of a tenant: its own part, which only it knows.

use core::fmt;
use wornpath_routing::RouterLoad;

/// A router, by a random number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RouterId(pub u64);

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One run of a router.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The router.
    pub router: RouterId,
    /// When it started, in milliseconds since 1970. What a router said before its last start does
    /// not count.
    pub started: u64,
}

/// What a router says of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodReport {
    /// The load that it put on the pod.
    pub load: RouterLoad,
    /// Prompt tokens that the pod has computed for it.
    pub computed_tokens: u64,
    /// Twice the pairs that these attended to.
    pub computed_pairs: u64,
}

/// What a router says of a tenant's use of its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TenantReport {
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests that were admitted since its start.
    pub requests: u64,
    /// Tokens that were taken since its start, without those that were given back.
    pub tokens: i64,
    /// Requests left this minute, as far as it knows; none without a limit.
    pub requests_left: Option<i64>,
    /// Tokens left this minute, as far as it knows; none without a limit.
    pub tokens_left: Option<i64>,
}

impl TenantReport {
    /// Whether something was used or freed. What is left changes all the time.
    pub(crate) fn is_same_use(&self, other: &Self) -> bool {
        let of = |report: &Self| (report.in_flight, report.requests, report.tokens);
        of(self) == of(other)
    }
}
