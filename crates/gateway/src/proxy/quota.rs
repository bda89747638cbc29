//! What a tenant may have in flight, and its requests and tokens a minute.
//!
//! A rate is a bucket that holds what one minute may take and refills all the time. A request takes
//! its place in the bucket of requests when its head is read, and its tokens once its body is: those
//! of the prompt by its length, and those that it may generate. When it ends, it has taken the tokens
//! that the engine counted instead, or none if no engine answered it. The tokens of one request may
//! be more than are left; until the bucket has refilled, the next requests get 429.
//!
//! What other routers say of a tenant (`exchange`) counts as if it were here: their requests in
//! flight, and what they take from the buckets. Limit: requests that arrive at several routers within
//! the delay of the exchange are admitted by each of them as if they were alone.

use crate::observe::summary::Usage;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wornpath_config::TenantSettings;
use wornpath_exchange::{TenantChange, TenantReport};
use wornpath_index::Moment;
use wornpath_routing::{Name, Rejection};

const MINUTE: f64 = 60.0;
/// Of a prompt that is not tokenized yet.
const BYTES_PER_TOKEN: u64 = 4;

/// What refills all the time, up to what a minute may take.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Below zero after a request that took more than was left.
    level: f64,
    refilled: Moment,
}

impl Bucket {
    fn full(per_minute: u64, now: Moment) -> Self {
        Self { level: per_minute as f64, refilled: now }
    }

    /// How long until it has at least one.
    fn wait_for_one(&mut self, per_minute: u64, now: Moment) -> Option<Duration> {
        let rate = per_minute as f64 / MINUTE;
        let refill = now.checked_since(self.refilled).unwrap_or_default().as_secs_f64() * rate;
        self.level = (self.level + refill).min(per_minute as f64);
        self.refilled = self.refilled.max(now);
        let missing = 1.0 - self.level;
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / rate))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    /// Taken from the buckets here since the start.
    requests_taken: u64,
    tokens_taken: i64,
}

#[derive(Debug, Default)]
struct TenantUse {
    in_flight: AtomicU32,
    /// At other routers.
    elsewhere: AtomicU32,
    rates: Mutex<Rates>,
}

impl TenantUse {
    fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one request of the rates.
    fn take_request(&self, tenant: &TenantSettings, now: Moment) -> Result<(), Rejection> {
        let mut rates = self.rates();
        let Rates { requests, tokens, requests_taken, .. } = &mut *rates;
        for (bucket, limit, unit) in [
            (&mut *requests, tenant.requests_per_minute, "requests"),
            (tokens, tenant.tokens_per_minute, "tokens"),
        ] {
            let Some(limit) = limit else { continue };
            let bucket = bucket.get_or_insert_with(|| Bucket::full(limit, now));
            if let Some(wait) = bucket.wait_for_one(limit, now) {
                return Err(exceeded(limit, unit, wait));
            }
        }
        if let Some(requests) = requests {
            requests.level -= 1.0;
            *requests_taken += 1;
        }
        Ok(())
    }

    /// What is used here, for other routers.
    fn report(&self, tenant: &TenantSettings, now: Moment) -> TenantReport {
        let mut rates = self.rates();
        let left = |bucket: &mut Option<Bucket>, limit: Option<u64>| {
            let (bucket, limit) = bucket.as_mut().zip(limit)?;
            bucket.wait_for_one(limit, now);
            Some(bucket.level.floor() as i64)
        };
        TenantReport {
            in_flight: self.in_flight.load(Relaxed),
            requests: rates.requests_taken,
            tokens: rates.tokens_taken,
            requests_left: left(&mut rates.requests, tenant.requests_per_minute),
            tokens_left: left(&mut rates.tokens, tenant.tokens_per_minute),
        }
    }

    /// Counts what other routers have taken as if it had been taken here.
    fn hear(&self, tenant: &TenantSettings, change: &TenantChange, now: Moment) {
        self.elsewhere.store(change.in_flight, Relaxed);
        let mut rates = self.rates();
        let Rates { requests, tokens, .. } = &mut *rates;
        for (bucket, limit, taken, left) in [
            (requests, tenant.requests_per_minute, change.requests as f64, change.requests_left),
            (tokens, tenant.tokens_per_minute, change.tokens as f64, change.tokens_left),
        ] {
            let Some(limit) = limit else { continue };
            let bucket = bucket.get_or_insert_with(|| Bucket::full(limit, now));
            bucket.wait_for_one(limit, now);
            let least = left.map_or(f64::INFINITY, |left| left as f64);
            bucket.level = (bucket.level - taken).min(limit as f64).min(least);
        }
    }
}

fn exceeded(limit: u64, unit: &str, wait: Duration) -> Rejection {
    let wait = Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    let seconds = wait.as_secs();
    let reason = format!(
        "tenant rate exceeded: {limit} {unit} a minute; the next request may come in {seconds} s"
    );
    Rejection { retry_after: Some(wait), ..Rejection::busy(&reason) }
}

/// Use by tenant. Only tenants with a limit are counted, so there are as many as are configured; a
/// count outlives a reload.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<HashMap<Name, Arc<TenantUse>>>);

impl Quotas {
    /// A permit, if the tenant is within its limits; none if it has none.
    pub(crate) fn acquire(
        &self,
        tenant: &TenantSettings,
        now: Moment,
    ) -> Result<Option<QuotaPermit>, Rejection> {
        let TenantSettings { quota, requests_per_minute, tokens_per_minute, .. } = tenant;
        if quota.is_none() && requests_per_minute.is_none() && tokens_per_minute.is_none() {
            return Ok(None);
        }
        let tenant_use = {
            let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(tenants.entry(tenant.name.clone()).or_default())
        };
        let quota = quota.unwrap_or(u32::MAX);
        let elsewhere = tenant_use.elsewhere.load(Relaxed);
        let next = |count: u32| (count.saturating_add(elsewhere) < quota).then_some(count + 1);
        if tenant_use.in_flight.fetch_update(Relaxed, Relaxed, next).is_err() {
            let reason = format!(
                "tenant quota exceeded: {quota} requests in flight (limit {quota}); retry later"
            );
            return Err(Rejection::busy(&reason));
        }
        let permit = QuotaPermit { tenant_use, reserved: 0 };
        permit.tenant_use.take_request(tenant, now)?;
        Ok(Some(permit))
    }
}

impl Quotas {
    /// What tenants with limits use here, for other routers.
    pub(crate) fn reports(
        &self,
        settings: &[TenantSettings],
        now: Moment,
    ) -> Vec<(Name, TenantReport)> {
        let tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let report = |tenant: &TenantSettings| {
            Some((tenant.name.clone(), tenants.get(&tenant.name)?.report(tenant, now)))
        };
        if tenants.is_empty() { Vec::new() } else { settings.iter().filter_map(report).collect() }
    }

    /// Counts what tenants use at other routers.
    pub(crate) fn hear(&self, settings: &[TenantSettings], changes: &[TenantChange], now: Moment) {
        for change in changes {
            let named = |tenant: &&TenantSettings| *tenant.name.as_str() == *change.tenant;
            let Some(tenant) = settings.iter().find(named) else { continue };
            let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let tenant_use = Arc::clone(tenants.entry(tenant.name.clone()).or_default());
            drop(tenants);
            tenant_use.hear(tenant, change, now);
        }
    }
}

/// One request of a tenant. Dropping it frees its place in the quota, and gives back its tokens
/// unless they are settled.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    tenant_use: Arc<TenantUse>,
    /// Tokens taken, and not settled yet.
    reserved: u64,
}

impl QuotaPermit {
    /// Takes the tokens that a request probably needs.
    pub(crate) fn reserve(&mut self, body_bytes: usize, output_tokens: Option<u32>) {
        let prompt = body_bytes as u64 / BYTES_PER_TOKEN;
        self.take(prompt.saturating_add(output_tokens.unwrap_or(0).into()));
    }

    /// An engine has answered: replaces the reserved tokens by those that it counted, if it did.
    pub(crate) fn settle(&mut self, usage: &Usage) {
        let counted = usage.prompt_tokens.map(|it| it + usage.output_tokens.unwrap_or(0));
        if let Some(counted) = counted {
            self.take(counted);
        }
        self.reserved = 0;
    }

    /// Takes these in place of the reserved ones.
    fn take(&mut self, tokens: u64) {
        let mut rates = self.tenant_use.rates();
        let Rates { tokens: bucket, tokens_taken, .. } = &mut *rates;
        if let Some(bucket) = bucket {
            bucket.level += self.reserved as f64 - tokens as f64;
            *tokens_taken =
                tokens_taken.saturating_sub_unsigned(self.reserved).saturating_add_unsigned(tokens);
        }
        drop(rates);
        self.reserved = tokens;
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.take(0);
        self.tenant_use.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_config::KeyDigest;
    use wornpath_routing::queue::Priority;

    fn tenant(name: &str) -> TenantSettings {
        TenantSettings {
            name: name.into(),
            key: KeyDigest([0; 32]),
            further_keys: Vec::new(),
            priority: Priority::NORMAL,
            weight: 1,
            quota: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            engine_priority: None,
        }
    }

    fn usage(prompt: u64, output: u64) -> Usage {
        Usage { prompt_tokens: Some(prompt), output_tokens: Some(output), ..Usage::default() }
    }

    #[test]
    fn a_tenant_has_as_many_permits_as_its_quota_and_takes_none_of_another() {
        let quotas = Quotas::default();
        let now = Moment::from_secs(1);
        let limited = |name, quota| TenantSettings { quota: Some(quota), ..tenant(name) };
        let acquire = |name, quota| quotas.acquire(&limited(name, quota), now);
        let permits = [acquire("a", 2).unwrap(), acquire("a", 2).unwrap()];
        assert!(acquire("a", 2).is_err() && acquire("b", 1).is_ok());
        assert!(acquire("a", 3).is_ok(), "a raised quota takes effect at once");
        drop(permits);
        assert!(acquire("a", 2).is_ok());
        assert!(quotas.acquire(&tenant("c"), now).unwrap().is_none(), "nothing to count");
    }

    #[test]
    fn requests_come_at_their_rate_after_the_first_minutes_worth() {
        let quotas = Quotas::default();
        let limited = TenantSettings { requests_per_minute: Some(30), ..tenant("a") };
        let mut admitted = 0;
        let mut refused = 0;
        // Ten a second for three minutes.
        for tenth in 0..1800 {
            match quotas.acquire(&limited, Moment::from_millis(tenth * 100)) {
                Ok(permit) => admitted += u32::from(permit.is_some()),
                Err(rejection) => {
                    refused += 1;
                    let after = rejection.retry_after.unwrap();
                    assert!((1..=2).contains(&after.as_secs()), "{after:?}");
                    assert!(rejection.reason.contains("30 requests a minute"));
                }
            }
        }
        assert_eq!((admitted, refused), (30 + 89, 1800 - 119));
    }

    #[test]
    fn a_request_that_comes_back_when_it_is_told_to_is_admitted() {
        let quotas = Quotas::default();
        let limited = TenantSettings { tokens_per_minute: Some(600), ..tenant("a") };
        let mut permit = quotas.acquire(&limited, Moment::from_secs(0)).unwrap().unwrap();
        permit.reserve(400, Some(1000));
        drop(quotas.acquire(&limited, Moment::from_secs(0)).unwrap_err());
        permit.settle(&usage(900, 600));
        drop(permit);
        // 900 below zero.
        let refused = quotas.acquire(&limited, Moment::from_secs(0)).unwrap_err();
        let after = refused.retry_after.unwrap();
        assert_eq!(after.as_secs(), 91);
        assert!(quotas.acquire(&limited, Moment::from_secs(89)).is_err());
        assert!(quotas.acquire(&limited, Moment::at(after)).is_ok());
    }

    #[test]
    fn tokens_of_a_request_that_no_engine_answered_are_given_back() {
        let quotas = Quotas::default();
        let limited = TenantSettings { tokens_per_minute: Some(100), ..tenant("a") };
        let now = Moment::from_secs(1);
        for _ in 0..10 {
            let mut permit = quotas.acquire(&limited, now).unwrap().unwrap();
            permit.reserve(4000, None);
        }
        // An answer that is not counted costs what was reserved.
        let mut permit = quotas.acquire(&limited, now).unwrap().unwrap();
        permit.reserve(4000, None);
        permit.settle(&Usage::default());
        drop(permit);
        assert!(quotas.acquire(&limited, Moment::from_secs(500)).is_err());
        assert!(quotas.acquire(&limited, Moment::from_secs(543)).is_ok());
    }

    #[test]
    fn tokens_of_any_order_of_requests_add_up() {
        let quotas = Quotas::default();
        let limited = TenantSettings { tokens_per_minute: Some(60_000), ..tenant("a") };
        let mut rng = wornpath_routing::Rng::new(7);
        let mut spent = 0;
        let mut open: Vec<QuotaPermit> = Vec::new();
        // Ten minutes; what is in flight at once is far less than a minute's tokens.
        for milli in (0..600_000).step_by(20) {
            if let Ok(Some(mut permit)) = quotas.acquire(&limited, Moment::from_millis(milli)) {
                permit.reserve(rng.below(2000), Some(100));
                open.push(permit);
            }
            if open.len() > 8 {
                let mut permit = open.swap_remove(rng.below(8));
                let usage = usage(rng.below(600) as u64, rng.below(200) as u64);
                spent += usage.prompt_tokens.unwrap() + usage.output_tokens.unwrap();
                permit.settle(&usage);
            }
        }
        let allowed = 11 * 60_000;
        assert!((allowed - 10_000..allowed + 10_000).contains(&spent), "{spent} of {allowed}");
    }
}
