//! A tenant: its keys, its share and its limits.

use wornpath_routing::Name;
use wornpath_routing::queue::Priority;

use crate::engine_priority::PriorityRange;
use crate::secret::KeyDigest;

/// A tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct TenantSettings {
    /// Its name in routes and logs.
    pub name: Name,
    /// The digest of its API key.
    pub key: KeyDigest,
    /// Its other API keys.
    pub further_keys: Vec<ExpiringKey>,
    /// Priority of its requests.
    pub priority: Priority,
    /// Fair-queueing weight.
    pub weight: u32,
    /// Maximum requests in flight or queued at a time.
    pub quota: Option<u32>,
    /// Requests a minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens of prompts and answers a minute.
    pub tokens_per_minute: Option<u64>,
    /// The engine priorities it may use; without a range its requests have none of their own.
    pub engine_priority: Option<PriorityRange>,
}

impl TenantSettings {
    /// Its key with this digest. All are compared, each in constant time.
    #[must_use]
    pub fn key_of(&self, digest: &KeyDigest) -> Option<ExpiringKey> {
        let first = ExpiringKey { digest: self.key, until: None };
        let mut found = None;
        for key in std::iter::once(&first).chain(&self.further_keys) {
            if key.digest.is_same(digest) {
                found = Some(*key);
            }
        }
        found
    }
}

/// An API key that may be valid only until a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpiringKey {
    /// Its digest.
    pub digest: KeyDigest,
    /// The Unix time, in seconds, from which it is refused.
    pub until: Option<u64>,
}
