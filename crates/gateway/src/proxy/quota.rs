//! How many requests of a tenant may be under way or wait at a time.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use wornpath_routing::Name;

/// The turns that tenants have taken. Asked only for tenants with a quota, of which there are as many as
/// are configured; a count outlives a configuration that is read again.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<HashMap<Name, Arc<AtomicU32>>>);

/// One request of a tenant; dropping it lets another come.
#[derive(Debug)]
pub(crate) struct QuotaPermit(Arc<AtomicU32>);

impl Quotas {
    /// A turn, if the tenant has fewer than `quota`.
    pub(crate) fn turn(&self, tenant: &Name, quota: u32) -> Option<QuotaPermit> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = tenants.entry(tenant.clone()).or_default();
        let more = |count: u32| (count < quota).then_some(count + 1);
        taken.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(QuotaPermit(Arc::clone(taken)))
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_so_many_turns_and_no_other_tenants() {
        let quotas = Quotas::default();
        let (a, b) = (Name::from("a"), Name::from("b"));
        let turns = [quotas.turn(&a, 2).unwrap(), quotas.turn(&a, 2).unwrap()];
        assert!(quotas.turn(&a, 2).is_none() && quotas.turn(&b, 1).is_some());
        assert!(quotas.turn(&a, 3).is_some(), "a quota that was raised counts at once");
        drop(turns);
        assert!(quotas.turn(&a, 2).is_some());
    }
}
