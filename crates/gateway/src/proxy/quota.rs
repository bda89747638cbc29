//! Quotas: how many requests a tenant may have in flight or in the queue.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use wornpath_routing::Name;

/// Requests in flight by tenant. Only tenants with a quota are counted, so there are as many as are
/// configured; a count outlives a reload.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<HashMap<Name, Arc<AtomicU32>>>);

/// One request of a tenant; dropping it frees its place in the quota.
#[derive(Debug)]
pub(crate) struct QuotaPermit(Arc<AtomicU32>);

impl Quotas {
    /// A permit, if the tenant has fewer than `quota`.
    pub(crate) fn acquire(&self, tenant: &Name, quota: u32) -> Option<QuotaPermit> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = tenants.entry(tenant.clone()).or_default();
        let next = |count: u32| (count < quota).then_some(count + 1);
        count.fetch_update(Relaxed, Relaxed, next).ok()?;
        Some(QuotaPermit(Arc::clone(count)))
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
    fn a_tenant_has_as_many_permits_as_its_quota_and_takes_none_of_another() {
        let quotas = Quotas::default();
        let a = Name::from("a");
        let b = Name::from("b");
        let permits = [quotas.acquire(&a, 2).unwrap(), quotas.acquire(&a, 2).unwrap()];
        assert!(quotas.acquire(&a, 2).is_none() && quotas.acquire(&b, 1).is_some());
        assert!(quotas.acquire(&a, 3).is_some(), "a raised quota takes effect at once");
        drop(permits);
        assert!(quotas.acquire(&a, 2).is_some());
    }
}
