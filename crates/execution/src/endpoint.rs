//! An engine's address: its circuit breaker, its name resolution and its pool of idle connections.
//!
//! Health belongs to the endpoint and not to the pod: data-parallel ranks share a process. A
//! connection belongs to the thread that opened it, whose event loop it is registered with, so
//! every worker has its own pool.

use crate::breaker::{BreakerRules, CallOutcome, CircuitBreaker};
use crate::connection::{Connection, Socket};
use crate::egress_policy::{EgressDenied, EgressPolicy};
use crate::poison::RequestFingerprint;
use crate::usage_support::UsageSupport;
use arc_swap::ArcSwapOption;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use rustls::pki_types::ServerName;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use wornpath_index::Moment;
use wornpath_routing::{BreakerState, PodState};

/// A thread that serves clients, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerNumber(pub usize);

impl WorkerNumber {
    /// Of calls that no worker makes, such as probes: they keep no connection.
    pub const NONE: Self = Self(usize::MAX);
}

/// The most idle connections of one worker to one endpoint, and their idle timeout.
const MAX_IDLE: usize = 256;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Idle connections of all workers to all endpoints, and the most of them: file descriptors are
/// limited for the whole process.
static IDLE_CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
static MAX_IDLE_CONNECTIONS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Limits the idle connections of this process to all endpoints together.
pub fn limit_idle_connections(most: usize) {
    MAX_IDLE_CONNECTIONS.store(most, Relaxed);
}

/// The resolution of an endpoint's last activity.
const ACTIVITY_STEP_MS: u64 = 50;

/// The timeout of a DNS query whose former answer is cached.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the cached answer of a DNS query is used while the name servers fail.
const CACHED_FOR: Duration = Duration::from_secs(600);

/// The answer of a DNS query.
#[derive(Clone, Debug)]
struct ResolvedName {
    at: Instant,
    addresses: Vec<SocketAddr>,
}

#[derive(Debug)]
struct IdleConnection {
    since: Instant,
    connection: Connection,
    _counted: CountedIdle,
}

/// One of the idle connections of this process, until it is dropped.
#[derive(Debug)]
struct CountedIdle;

impl CountedIdle {
    /// None if there are as many as allowed.
    fn new() -> Option<Self> {
        let counted = Self;
        let others = IDLE_CONNECTIONS.fetch_add(1, Relaxed);
        (others < MAX_IDLE_CONNECTIONS.load(Relaxed)).then_some(counted)
    }
}

impl Drop for CountedIdle {
    fn drop(&mut self) {
        IDLE_CONNECTIONS.fetch_sub(1, Relaxed);
    }
}

/// The idle connections of one worker, oldest first.
type IdlePool = Vec<IdleConnection>;

/// A URL that cannot be an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL at all.
    #[error("`{0}` is not a URL; write it like http://10.0.0.5:8000")]
    NotAUrl(String),
    /// Another scheme than `http` and `https`.
    #[error("`{0}` must begin with http:// or https://")]
    NotHttp(String),
    /// TLS without a trusted CA.
    #[error(
        "`{0}` requires TLS; set the CA of the pods' certificates: `pod_tls: {{ca: pods.pem}}`, or `{{ca: system}}`"
    )]
    NoCertificates(String),
    /// The egress policy denies its address.
    #[error(transparent)]
    Forbidden(#[from] EgressDenied),
}

/// One engine's address.
#[derive(Debug)]
pub struct Endpoint {
    url: String,
    host: String,
    port: u16,
    /// Set if the host is an IP address.
    address: Option<SocketAddr>,
    /// The path prefix of all requests, without the last slash.
    prefix: String,
    authority: HeaderValue,
    /// The `authorization` header that the engine requires, if any; marked as sensitive, so never
    /// printed.
    key: ArcSwapOption<HeaderValue>,
    /// The host that its certificate must name; none without TLS.
    server_name: Option<ServerName<'static>>,
    egress_policy: RwLock<Arc<EgressPolicy>>,
    /// Counts the changes of the policy: connections of an older epoch are not reused.
    policy_epoch: AtomicU64,
    breaker: Mutex<CircuitBreaker>,
    /// Whether the breaker has state to clear: if not, a success costs one load.
    is_troubled: AtomicBool,
    /// Whether the engine can be asked for the token counts of a stream.
    pub usage: UsageSupport,
    created: Instant,
    /// The last activity, in milliseconds since `created`, plus one; zero if there was none.
    last_activity_ms: AtomicU64,
    /// Of the pods behind it.
    pod_state: Mutex<Vec<Arc<PodState>>>,
    resolved: Mutex<Option<ResolvedName>>,
    /// One pool per worker.
    idle: Box<[Mutex<IdlePool>]>,
}

impl Endpoint {
    /// The endpoint at `url`, with a pool for each of so many workers.
    ///
    /// # Errors
    /// If `url` is no HTTP URL.
    pub fn new(url: &str, rules: BreakerRules, workers: usize) -> Result<Self, EndpointError> {
        let not = || EndpointError::NotAUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| not())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err(EndpointError::NotHttp(url.to_owned())),
            None => return Err(not()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(not)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let authority = uri.authority().ok_or_else(not)?;
        // Engines get no user name and password of a URL.
        let authority = authority.as_str().rsplit('@').next().unwrap_or_default();
        let server_name = ServerName::try_from(host.clone()).map_err(|_| not());
        Ok(Self {
            server_name: is_tls.then_some(server_name).transpose()?,
            egress_policy: RwLock::default(),
            policy_epoch: AtomicU64::new(0),
            url: url.trim_end_matches('/').to_owned(),
            address: host.parse::<IpAddr>().ok().map(|host| SocketAddr::new(host, port)),
            host,
            port,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: HeaderValue::from_str(authority).map_err(|_| not())?,
            key: ArcSwapOption::empty(),
            breaker: Mutex::new(CircuitBreaker::new(rules)),
            is_troubled: AtomicBool::new(false),
            usage: UsageSupport::default(),
            created: Instant::now(),
            last_activity_ms: AtomicU64::new(0),
            pod_state: Mutex::default(),
            resolved: Mutex::default(),
            idle: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
        })
    }

    /// The endpoint under an egress policy.
    ///
    /// # Errors
    /// If the policy denies it.
    pub fn with_egress_policy(self, policy: &Arc<EgressPolicy>) -> Result<Self, EndpointError> {
        self.check_egress(policy)?;
        self.set_egress_policy(policy);
        Ok(self)
    }

    /// Whether the policy allows the endpoint, as far as that is known before its name is resolved.
    ///
    /// # Errors
    /// If the policy denies its address, or has no TLS configuration for an `https://` URL.
    pub fn check_egress(&self, policy: &EgressPolicy) -> Result<(), EndpointError> {
        if let Some(address) = self.address {
            policy.admit(address.ip())?;
        }
        if self.server_name.is_some() && policy.tls.is_none() {
            return Err(EndpointError::NoCertificates(self.url.clone()));
        }
        Ok(())
    }

    /// Whether the endpoint's policy allows another address, such as that of its event source.
    ///
    /// # Errors
    /// If the policy denies it.
    pub fn admits(&self, address: IpAddr) -> Result<(), EgressDenied> {
        self.egress_policy().admit(address)
    }

    /// Replaces the egress policy. Idle connections are closed if the new one differs.
    pub fn set_egress_policy(&self, policy: &Arc<EgressPolicy>) {
        let before = std::mem::replace(
            &mut *self.egress_policy.write().unwrap_or_else(PoisonError::into_inner),
            Arc::clone(policy),
        );
        let is_same_tls = self.server_name.is_none() || before.has_same_tls(policy);
        if is_same_tls && before.allowed == policy.allowed {
            return;
        }
        self.policy_epoch.fetch_add(1, Relaxed);
        // Connections in use are of the former epoch, so they will not return to the pool.
        self.idle.iter().for_each(|idle| lock(idle).clear());
    }

    /// Replaces the `authorization` header for the engine; none passes on that of the client.
    pub fn set_key(&self, key: Option<HeaderValue>) {
        let sensitive = key.map(|mut key| {
            key.set_sensitive(true);
            Arc::new(key)
        });
        self.key.store(sensitive);
    }

    /// Replaces the credentials of the client by the engine's key, if it has one.
    pub fn authorize(&self, headers: &mut HeaderMap) {
        if let Some(key) = &*self.key.load() {
            headers.remove("x-api-key");
            headers.insert(AUTHORIZATION, HeaderValue::clone(key));
        }
    }

    /// Another port of the same host, called without TLS.
    pub(crate) fn on_port(&self, port: u16) -> Result<Self, EndpointError> {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let rules = BreakerRules::default();
        Self::new(&format!("http://{host}:{port}"), rules, 1)?
            .with_egress_policy(&self.egress_policy())
    }

    fn egress_policy(&self) -> Arc<EgressPolicy> {
        Arc::clone(&self.egress_policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The URL of the configuration, without the last slash.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The host name or IP address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The IP address and port; none if the URL has a host name.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The value of the `host` header.
    #[must_use]
    pub const fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// The path prefix of all requests.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Adds the state of a pod behind the endpoint; the breaker keeps its part of it up to date.
    pub fn add_pod_state(&self, pod_state: &Arc<PodState>) {
        let breaker = lock(&self.breaker).clone();
        breaker.rests_until().iter().for_each(|until| pod_state.set_rest(*until));
        pod_state.set_breaker(breaker.state());
        lock(&self.pod_state).push(Arc::clone(pod_state));
    }

    /// A call begins. Returns whether it is a trial, whose end [`Self::trial_ended`] must report.
    pub fn begin_call(&self) -> bool {
        self.is_troubled.load(Relaxed) && self.change(CircuitBreaker::begin_call)
    }

    /// A trial has ended.
    pub fn trial_ended(&self) {
        self.change(CircuitBreaker::trial_ended);
    }

    /// A client gave up a call that had no response yet.
    pub(crate) fn abandoned(&self, request: Option<RequestFingerprint>, now: Moment) {
        self.change(|breaker| breaker.abandoned(request, now));
    }

    /// A chunk of a response to some client came.
    pub(crate) fn record_activity(&self, now: Instant) {
        let now = self.millis(now) + 1;
        // Rarely written: all threads read this cache line for every request.
        if now > self.last_activity_ms.load(Relaxed).saturating_add(ACTIVITY_STEP_MS) {
            self.last_activity_ms.store(now, Relaxed);
        }
    }

    /// Whether any client got a chunk of a response since then, give or take 50 ms.
    pub(crate) fn was_active_since(&self, then: Instant) -> bool {
        self.last_activity_ms.load(Relaxed) > self.millis(then)
    }

    /// Whether any client got a chunk of a response within this time.
    #[must_use]
    pub fn was_active_within(&self, time: Duration) -> bool {
        Instant::now().checked_sub(time).is_some_and(|then| self.was_active_since(then))
    }

    fn millis(&self, then: Instant) -> u64 {
        u64::try_from(then.duration_since(self.created).as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// Reports the outcome of a call to the breaker. `request` may be to blame for a failure.
    pub fn record_outcome(
        &self,
        outcome: CallOutcome,
        request: Option<RequestFingerprint>,
        now: Moment,
    ) {
        if matches!(outcome, CallOutcome::Good | CallOutcome::Busy(_)) {
            self.record_activity(Instant::now());
        }
        if outcome == CallOutcome::Good && !self.is_troubled.load(Relaxed) {
            return;
        }
        self.change(|breaker| breaker.record_outcome(outcome, request, now));
    }

    /// Another pod has answered the request of a call that ended so.
    pub(crate) fn confirm_outcome(
        &self,
        outcome: CallOutcome,
        request: Option<RequestFingerprint>,
        now: Moment,
    ) {
        self.change(|breaker| breaker.confirm_outcome(outcome, request, now));
    }

    /// Advances the breaker's time. Returns whether a probe is due.
    pub fn tick(&self, now: Moment) -> bool {
        self.is_troubled.load(Relaxed) && self.change(|breaker| breaker.tick(now))
    }

    /// Reports the outcome of a probe to the breaker.
    pub fn probed(&self, outcome: CallOutcome, now: Moment) {
        if self.is_troubled.load(Relaxed) {
            self.change(|breaker| breaker.probed(outcome, now));
        }
    }

    /// The state of the breaker, and how often it opened.
    #[must_use]
    pub fn breaker(&self) -> (BreakerState, u64) {
        let breaker = lock(&self.breaker);
        (breaker.state(), breaker.opened())
    }

    fn change<T>(&self, change: impl FnOnce(&mut CircuitBreaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        let rest_before = breaker.rests_until();
        let result = change(&mut breaker);
        let state = breaker.state();
        self.is_troubled.store(breaker.is_troubled(), Relaxed);
        if state != before || breaker.rests_until() != rest_before {
            for pod_state in lock(&self.pod_state).iter() {
                breaker.rests_until().iter().for_each(|until| pod_state.set_rest(*until));
                pod_state.set_breaker(state);
            }
            if state == BreakerState::Open {
                // The process behind these connections is gone.
                self.idle.iter().for_each(|idle| lock(idle).clear());
            }
        }
        result
    }

    pub(crate) async fn connect(&self) -> std::io::Result<Socket> {
        let stream = self.connect_tcp().await?;
        stream.set_nodelay(true)?;
        let Some(own_name) = &self.server_name else { return Ok(Socket::Plain(stream)) };
        let policy = self.egress_policy();
        let no_ca = || std::io::Error::other("no CA for the pod's certificate; set `pod_tls`");
        let tls = policy.tls.as_ref().ok_or_else(no_ca)?;
        let name = tls.server_name.as_ref().unwrap_or(own_name).clone();
        let stream = TlsConnector::from(Arc::clone(&tls.config)).connect(name, stream).await?;
        Ok(Socket::Tls(Box::new(stream)))
    }

    /// A connection without TLS.
    pub(crate) async fn connect_tcp(&self) -> std::io::Result<TcpStream> {
        let policy = self.egress_policy();
        match self.address {
            Some(address) => policy.connect([address]).await,
            None => policy.connect(self.resolve().await?).await,
        }
    }

    /// The addresses of its name. While the name servers fail, the cached ones: that says nothing
    /// about the pod.
    async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let cached = self.cached_addresses();
        let query = tokio::net::lookup_host((self.host.as_str(), self.port));
        let found: std::io::Result<Vec<_>> = match &cached {
            None => query.await.map(Iterator::collect),
            // The system's own timeout is longer than that of a connection.
            Some(_) => match timeout(REFRESH_TIMEOUT, query).await {
                Ok(found) => found.map(Iterator::collect),
                Err(late) => Err(late.into()),
            },
        };
        match (found, cached) {
            (Ok(found), _) => {
                let resolved = ResolvedName { at: Instant::now(), addresses: found.clone() };
                *lock(&self.resolved) = Some(resolved);
                Ok(found)
            }
            (Err(_), Some(cached)) => Ok(cached),
            (Err(error), None) => Err(error),
        }
    }

    /// The cached addresses of its name, unless they are so old that another host may have them by
    /// now.
    fn cached_addresses(&self) -> Option<Vec<SocketAddr>> {
        let resolved = lock(&self.resolved).clone()?;
        (resolved.at.elapsed() < CACHED_FOR).then_some(resolved.addresses)
    }

    /// Takes the connection that was idle for the shortest time. One past the idle timeout may have
    /// been dropped by a firewall on the way.
    pub(crate) fn take_idle(&self, worker: WorkerNumber) -> Option<Connection> {
        let mut idle = lock(self.idle.get(worker.0)?);
        let IdleConnection { since, connection, .. } = idle.pop()?;
        if since.elapsed() > IDLE_TIMEOUT {
            idle.clear();
            return None;
        }
        Some(connection)
    }

    /// Closes connections past the idle timeout, and those that the engine has closed.
    pub fn close_unused(&self) {
        for idle in &self.idle {
            lock(idle).retain_mut(|idle| {
                idle.since.elapsed() <= IDLE_TIMEOUT && idle.connection.is_ready()
            });
        }
    }

    /// The policy epoch of a connection that is opened now.
    pub(crate) fn policy_epoch(&self) -> u64 {
        self.policy_epoch.load(Relaxed)
    }

    /// Returns a connection to the worker's pool, unless it is of a former policy or the pool is
    /// full.
    pub(crate) fn put_idle(&self, worker: WorkerNumber, connection: Connection) {
        let Some(idle) = self.idle.get(worker.0) else { return };
        let mut idle = lock(idle);
        let now = Instant::now();
        if connection.policy_epoch != self.policy_epoch() {
            return;
        }
        let is_expired = |idle: &IdleConnection| now.duration_since(idle.since) > IDLE_TIMEOUT;
        let old = idle.partition_point(is_expired);
        idle.drain(..old);
        if idle.len() < MAX_IDLE
            && let Some(counted) = CountedIdle::new()
        {
            idle.push(IdleConnection { since: now, connection, _counted: counted });
        }
    }
}

/// Locked values are replaced as a whole, so a thread that panicked left none half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, EndpointError> {
        Endpoint::new(url, BreakerRules::default(), 1)
    }

    #[test]
    fn urls_are_parsed_or_refused() {
        let plain = endpoint("http://10.0.0.5:8000/").unwrap();
        assert_eq!((plain.host(), plain.port, plain.prefix()), ("10.0.0.5", 8000, ""));
        assert_eq!(plain.address, Some("10.0.0.5:8000".parse().unwrap()));
        let named = endpoint("http://user:secret@engine/models/a/").unwrap();
        assert_eq!((named.host(), named.port, named.prefix()), ("engine", 80, "/models/a"));
        assert_eq!(named.authority(), "engine");
        assert_eq!(endpoint("http://[::1]:9").unwrap().address, Some("[::1]:9".parse().unwrap()));
        for wrong in ["", "engine:8000", "/path", "http://", "ftp://engine"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_name_that_no_longer_resolves_has_its_cached_addresses() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let named = endpoint("http://pod.invalid:80").unwrap();
        let addresses = vec![listener.local_addr().unwrap()];
        *lock(&named.resolved) =
            Some(ResolvedName { at: Instant::now(), addresses: addresses.clone() });
        assert_eq!(named.resolve().await.unwrap(), addresses);
        assert!(named.connect().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn cached_addresses_expire() {
        let named = endpoint("http://pod.invalid:80").unwrap();
        *lock(&named.resolved) = Some(ResolvedName { at: Instant::now(), addresses: Vec::new() });
        tokio::time::advance(CACHED_FOR / 2).await;
        assert!(named.cached_addresses().is_some());
        tokio::time::advance(CACHED_FOR / 2).await;
        assert!(named.cached_addresses().is_none());
    }

    #[test]
    fn a_denied_address_is_refused_before_the_first_call() {
        let policy = Arc::new(EgressPolicy::default());
        let refused =
            |url: &str| endpoint(url).unwrap().with_egress_policy(&policy).unwrap_err().to_string();
        assert!(refused("http://169.254.169.254/latest").contains("link-local"));
        assert!(refused("http://[::ffff:169.254.169.254]").contains("link-local"));
        assert!(refused("https://engine:8443").contains("pod_tls"));
        assert!(endpoint("http://10.0.0.5").unwrap().with_egress_policy(&policy).is_ok());
    }

    #[test]
    fn a_key_replaces_the_credentials_of_the_client_and_is_never_printed() {
        let endpoint = endpoint("http://10.0.0.5:8000").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer client"));
        headers.insert("x-api-key", HeaderValue::from_static("client"));
        let before = headers.clone();
        endpoint.authorize(&mut headers);
        assert_eq!(headers, before, "the endpoint has no key");
        endpoint.set_key(Some(HeaderValue::from_static("Bearer canary")));
        endpoint.authorize(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[AUTHORIZATION], "Bearer canary");
        assert!(!format!("{endpoint:?} {headers:?}").contains("canary"));
    }

    #[test]
    fn every_pod_behind_an_endpoint_has_the_state_of_its_breaker() {
        let endpoint = endpoint("http://10.0.0.5:8000").unwrap();
        let ranks = [Arc::<PodState>::default(), Arc::default()];
        endpoint.add_pod_state(&ranks[0]);
        endpoint.record_outcome(CallOutcome::Gone, None, Moment::ZERO);
        endpoint.add_pod_state(&ranks[1]);
        assert_eq!(ranks.each_ref().map(|rank| rank.breaker()), [BreakerState::Open; 2]);
        assert!(endpoint.tick(Moment::from_millis(100)));
        endpoint.probed(CallOutcome::Good, Moment::from_millis(100));
        endpoint.record_outcome(CallOutcome::Good, None, Moment::from_millis(101));
        assert_eq!(ranks.each_ref().map(|rank| rank.breaker()), [BreakerState::Closed; 2]);
        assert_eq!(endpoint.breaker(), (BreakerState::Closed, 1));
    }
}
