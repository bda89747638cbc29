//! An address that pods are behind: its breaker, and its idle connections.
//!
//! Health is the endpoint's and not the pod's: data-parallel ranks share a process. A connection belongs
//! to the thread that opened it, whose event loop it is registered with; so every worker keeps its own.

use crate::breaker::{BreakerRules, CallOutcome, CircuitBreaker};
use crate::connection::Connection;
use crate::egress_policy::{EgressDenied, EgressPolicy};
use crate::in_flight::{Deadline, InFlight};
use crate::io::Socket;
use arc_swap::ArcSwapOption;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use rustls::pki_types::ServerName;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use wornpath_index::Moment;
use wornpath_routing::{BreakerState as Seen, Vitals};

/// Which of the threads that answer clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerNumber(pub usize);

impl WorkerNumber {
    /// Of calls that no worker makes, such as probes: they keep no connection.
    pub const NONE: Self = Self(usize::MAX);
}

/// Idle connections that a worker keeps for one endpoint, and for how long.
const MOST_IDLE: usize = 256;
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// How exactly it is known when an endpoint was last heard.
const HEARD_STEP_MS: u64 = 50;

/// How long name servers are asked for what is known, and how long that is believed while they do not answer.
const ASKED_FOR: Duration = Duration::from_millis(500);
const BELIEVED_FOR: Duration = Duration::from_secs(600);

/// Addresses, and when they were those of a name.
type Resolved = (Instant, Vec<SocketAddr>);

/// With the time since when, longest first.
type IdleConnections = Vec<(Instant, Connection)>;

/// An address that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL at all.
    #[error("`{0}` is not a URL; write it like http://10.0.0.5:8000")]
    NotAUrl(String),
    /// Neither http nor anything else we speak.
    #[error("`{0}` is neither an http:// nor an https:// address")]
    NotHttp(String),
    /// Whoever answers there could not be recognised.
    #[error(
        "`{0}` is called over TLS; say in `pod_tls` whose signature pods have: `pod_tls: {{ca: pods.pem}}`"
    )]
    NoCertificates(String),
    /// It must not be called.
    #[error(transparent)]
    Forbidden(#[from] EgressDenied),
}

/// One engine's address.
#[derive(Debug)]
pub struct Endpoint {
    url: String,
    host: String,
    port: u16,
    /// Known at once where the host is a number.
    address: Option<SocketAddr>,
    /// What stands before every path, without the last slash.
    prefix: String,
    authority: HeaderValue,
    /// What it wants to see as `authorization`, if it wants any; never shown, as it is marked as sensitive.
    key: ArcSwapOption<HeaderValue>,
    /// What its certificate must name, if it is called over TLS.
    server_name: Option<ServerName<'static>>,
    reach: RwLock<Arc<EgressPolicy>>,
    /// How often that was set.
    rules: AtomicU64,
    breaker: Mutex<CircuitBreaker>,
    /// Whether the breaker has anything to forget: if not, a good answer costs one load.
    is_troubled: AtomicBool,
    /// Since when it is known.
    known: Instant,
    /// When it was last heard, in milliseconds since then, and one more; zero if never.
    heard_ms: AtomicU64,
    vitals: Mutex<Vec<Arc<Vitals>>>,
    /// What its name stood for when it was last asked for.
    resolved: Mutex<Option<Resolved>>,
    /// For each worker.
    idle: Box<[Mutex<IdleConnections>]>,
}

impl Endpoint {
    /// The endpoint at `url`, called by so many workers.
    ///
    /// # Errors
    /// If the address is none.
    pub fn new(url: &str, rules: BreakerRules, workers: usize) -> Result<Self, EndpointError> {
        let not = || EndpointError::NotAUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| not())?;
        let is_secret = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err(EndpointError::NotHttp(url.to_owned())),
            None => return Err(not()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(not)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if is_secret { 443 } else { 80 });
        let authority = uri.authority().ok_or_else(not)?;
        // Whoever is named before an `@` is nobody whom an engine should be told of.
        let authority = authority.as_str().rsplit('@').next().unwrap_or_default();
        let server_name = ServerName::try_from(host.clone()).map_err(|_| not());
        Ok(Self {
            server_name: is_secret.then_some(server_name).transpose()?,
            reach: RwLock::default(),
            rules: AtomicU64::new(0),
            url: url.trim_end_matches('/').to_owned(),
            address: host.parse::<IpAddr>().ok().map(|host| SocketAddr::new(host, port)),
            host,
            port,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: HeaderValue::from_str(authority).map_err(|_| not())?,
            key: ArcSwapOption::empty(),
            breaker: Mutex::new(CircuitBreaker::new(rules)),
            is_troubled: AtomicBool::new(false),
            known: Instant::now(),
            heard_ms: AtomicU64::new(0),
            vitals: Mutex::default(),
            resolved: Mutex::default(),
            idle: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
        })
    }

    /// The same, called only as `egress_policy` allows.
    ///
    /// # Errors
    /// If it must not be called, or could not be recognised.
    pub fn within(self, reach: &Arc<EgressPolicy>) -> Result<Self, EndpointError> {
        self.may_be_called(reach)?;
        self.set_reach(reach);
        Ok(self)
    }

    /// Whether `egress_policy` allows to call it, as far as that is known without resolving its name.
    ///
    /// # Errors
    /// Why not.
    pub fn may_be_called(&self, reach: &EgressPolicy) -> Result<(), EndpointError> {
        if let Some(address) = self.address {
            reach.admit(address.ip())?;
        }
        if self.server_name.is_some() && reach.tls.is_none() {
            return Err(EndpointError::NoCertificates(self.url.clone()));
        }
        Ok(())
    }

    /// Whether somebody at `address` may be called on this endpoint's behalf.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, address: IpAddr) -> Result<(), EgressDenied> {
        self.reach().admit(address)
    }

    /// From now on it is called only as `egress_policy` allows.
    pub fn set_reach(&self, reach: &Arc<EgressPolicy>) {
        let before = std::mem::replace(
            &mut *self.reach.write().unwrap_or_else(PoisonError::into_inner),
            Arc::clone(reach),
        );
        let is_same_tls = self.server_name.is_none() || before.has_tls_of(reach);
        if is_same_tls && before.allowed == reach.allowed {
            return;
        }
        self.rules.fetch_add(1, Relaxed);
        // What stands was opened by other rules, and what is in use will not be kept.
        self.idle.iter().for_each(|idle| lock(idle).clear());
    }

    /// From now on it is shown this `authorization`, or none of ours.
    pub fn set_key(&self, key: Option<HeaderValue>) {
        let sensitive = key.map(|mut key| {
            key.set_sensitive(true);
            Arc::new(key)
        });
        self.key.store(sensitive);
    }

    /// Puts its key, if it has one, in the place of whatever a client showed.
    pub fn authorize(&self, headers: &mut HeaderMap) {
        if let Some(key) = &*self.key.load() {
            headers.remove("x-api-key");
            headers.insert(AUTHORIZATION, HeaderValue::clone(key));
        }
    }

    /// Another port of the same host, called without TLS.
    pub(crate) fn beside(&self, port: u16) -> Result<Self, EndpointError> {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let rules = BreakerRules::default();
        Self::new(&format!("http://{host}:{port}"), rules, 1)?.within(&self.reach())
    }

    fn reach(&self) -> Arc<EgressPolicy> {
        Arc::clone(&self.reach.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// As it was given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The host's name or number.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The value of the `host` header.
    #[must_use]
    pub const fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// What stands before every path.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// From now on these vitals show the breaker too.
    pub fn show(&self, vitals: &Arc<Vitals>) {
        let (seen, rests_until) = {
            let breaker = lock(&self.breaker);
            (breaker.seen(), breaker.rests_until())
        };
        rests_until.iter().for_each(|until| vitals.set_rest(*until));
        vitals.set_breaker(seen);
        lock(&self.vitals).push(Arc::clone(vitals));
    }

    /// A call begins.
    pub(crate) fn begins(&self, now: Moment, ends_by: Deadline) -> InFlight<'_> {
        let is_trial = self.is_troubled.load(Relaxed) && self.change(CircuitBreaker::begins);
        InFlight::new(self, now, is_trial, ends_by)
    }

    pub(crate) fn trial_ended(&self) {
        self.change(CircuitBreaker::trial_ended);
    }

    /// A call was left by its client, unanswered.
    pub(crate) fn left(&self, now: Moment) {
        self.change(|breaker| breaker.left(now));
    }

    /// A piece of somebody's answer came.
    pub(crate) fn heard(&self, now: Instant) {
        let now = self.millis(now) + 1;
        // Rarely written: all threads read this line for every request.
        if now > self.heard_ms.load(Relaxed).saturating_add(HEARD_STEP_MS) {
            self.heard_ms.store(now, Relaxed);
        }
    }

    /// Whether anybody got a piece of an answer since then, within a twentieth of a second.
    pub(crate) fn was_heard_since(&self, then: Instant) -> bool {
        self.heard_ms.load(Relaxed) > self.millis(then)
    }

    fn millis(&self, then: Instant) -> u64 {
        u64::try_from(then.duration_since(self.known).as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// A call said something about the endpoint.
    pub fn judge(&self, verdict: CallOutcome, now: Moment) {
        if matches!(verdict, CallOutcome::Good | CallOutcome::Busy(_)) {
            self.heard(Instant::now());
        }
        if verdict == CallOutcome::Good && !self.is_troubled.load(Relaxed) {
            return;
        }
        self.change(|breaker| breaker.judge(verdict, now));
    }

    /// Lets the time pass; whether a probe is due.
    pub fn tick(&self, now: Moment) -> bool {
        self.is_troubled.load(Relaxed) && self.change(|breaker| breaker.tick(now))
    }

    /// A probe was answered, or not.
    pub fn probed(&self, verdict: CallOutcome, now: Moment) {
        if self.is_troubled.load(Relaxed) {
            self.change(|breaker| breaker.probed(verdict, now));
        }
    }

    /// The breaker, and how often it opened.
    #[must_use]
    pub fn breaker(&self) -> (Seen, u64) {
        let breaker = lock(&self.breaker);
        (breaker.seen(), breaker.opened())
    }

    fn change<T>(&self, change: impl FnOnce(&mut CircuitBreaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.seen();
        let result = change(&mut breaker);
        let seen = breaker.seen();
        self.is_troubled.store(breaker.remembers(), Relaxed);
        if seen != before {
            for vitals in lock(&self.vitals).iter() {
                breaker.rests_until().iter().for_each(|until| vitals.set_rest(*until));
                vitals.set_breaker(seen);
            }
            if seen == Seen::Open {
                // What was open to a process that has gone is of no use.
                self.idle.iter().for_each(|idle| lock(idle).clear());
            }
        }
        result
    }

    pub(crate) async fn connect(&self) -> std::io::Result<Socket> {
        let reach = self.reach();
        let stream = match self.address {
            Some(address) => reach.connect([address]).await?,
            None => reach.connect(self.resolve().await?).await?,
        };
        stream.set_nodelay(true)?;
        let Some(own_name) = &self.server_name else { return Ok(Socket::Plain(stream)) };
        let unknown = || std::io::Error::other("nothing says whose signature the pod must have");
        let tls = reach.tls.as_ref().ok_or_else(unknown)?;
        let name = tls.server_name.as_ref().unwrap_or(own_name).clone();
        let stream = TlsConnector::from(Arc::clone(&tls.config)).connect(name, stream).await?;
        Ok(Socket::Tls(Box::new(stream)))
    }

    /// What its name stands for. While nobody can say, what it stood for not long ago: a name server that fails says nothing
    /// about the pod.
    async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let known = self.believed();
        let asked = tokio::net::lookup_host((self.host.as_str(), self.port));
        let found: std::io::Result<Vec<_>> = match &known {
            None => asked.await.map(Iterator::collect),
            // By itself the system would wait for longer than a connection may take.
            Some(_) => match timeout(ASKED_FOR, asked).await {
                Ok(found) => found.map(Iterator::collect),
                Err(late) => Err(late.into()),
            },
        };
        match (found, known) {
            (Ok(found), _) => {
                *lock(&self.resolved) = Some((Instant::now(), found.clone()));
                Ok(found)
            }
            (Err(_), Some(known)) => Ok(known),
            (Err(error), None) => Err(error),
        }
    }

    /// What its name stood for, if that is not too long ago: somebody else may be there by then.
    fn believed(&self) -> Option<Vec<SocketAddr>> {
        let (since, addresses) = lock(&self.resolved).clone()?;
        (since.elapsed() < BELIEVED_FOR).then_some(addresses)
    }

    /// The connection that was idle for the shortest time. One that was so for long may have been forgotten by whoever
    /// stands between.
    pub(crate) fn take_idle(&self, worker: WorkerNumber) -> Option<Connection> {
        let mut idle = lock(self.idle.get(worker.0)?);
        let (since, line) = idle.pop()?;
        if since.elapsed() > LONGEST_IDLE {
            idle.clear();
            return None;
        }
        Some(line)
    }

    /// Closes connections that nobody used for long, and those that the engine has closed.
    pub fn close_unused(&self) {
        for idle in &self.idle {
            lock(idle)
                .retain_mut(|(since, line)| since.elapsed() <= LONGEST_IDLE && line.is_free());
        }
    }

    /// By which rules a connection is opened now.
    pub(crate) fn rules(&self) -> u64 {
        self.rules.load(Relaxed)
    }

    pub(crate) fn keep(&self, worker: WorkerNumber, line: Connection) {
        let Some(idle) = self.idle.get(worker.0) else { return };
        let (mut idle, now) = (lock(idle), Instant::now());
        if line.rules != self.rules() {
            return;
        }
        let old = idle.partition_point(|(since, _)| now.duration_since(*since) > LONGEST_IDLE);
        idle.drain(..old);
        if idle.len() < MOST_IDLE {
            idle.push((now, line));
        }
    }
}

/// What is locked is replaced as a whole, so nobody who panicked left half of something.
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
    fn addresses_are_read_and_refused() {
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
    async fn a_name_that_nobody_knows_any_more_stands_for_what_it_stood_for() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let named = endpoint("http://pod.invalid:80").unwrap();
        let known = vec![listener.local_addr().unwrap()];
        *lock(&named.resolved) = Some((Instant::now(), known.clone()));
        assert_eq!(named.resolve().await.unwrap(), known);
        assert!(named.connect().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_name_stood_for_is_not_believed_for_ever() {
        let named = endpoint("http://pod.invalid:80").unwrap();
        *lock(&named.resolved) = Some((Instant::now(), Vec::new()));
        tokio::time::advance(BELIEVED_FOR / 2).await;
        assert!(named.believed().is_some());
        tokio::time::advance(BELIEVED_FOR / 2).await;
        assert!(named.believed().is_none());
    }

    #[test]
    fn what_must_not_be_called_is_refused_as_soon_as_that_is_known() {
        let reach = Arc::new(EgressPolicy::default());
        let told = |url: &str| endpoint(url).unwrap().within(&reach).unwrap_err().to_string();
        assert!(told("http://169.254.169.254/latest").contains("link-local"));
        assert!(told("http://[::ffff:169.254.169.254]").contains("link-local"));
        assert!(told("https://engine:8443").contains("pod_tls"));
        assert!(endpoint("http://10.0.0.5").unwrap().within(&reach).is_ok());
    }

    #[test]
    fn a_key_takes_the_place_of_a_clients_and_is_never_shown() {
        let endpoint = endpoint("http://10.0.0.5:8000").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer client"));
        headers.insert("x-api-key", HeaderValue::from_static("client"));
        let before = headers.clone();
        endpoint.authorize(&mut headers);
        assert_eq!(headers, before, "it has none");
        endpoint.set_key(Some(HeaderValue::from_static("Bearer canary")));
        endpoint.authorize(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[AUTHORIZATION], "Bearer canary");
        assert!(!format!("{endpoint:?} {headers:?}").contains("canary"));
    }

    #[test]
    fn every_pod_behind_an_endpoint_shows_its_breaker() {
        let endpoint = endpoint("http://10.0.0.5:8000").unwrap();
        let ranks = [Arc::<Vitals>::default(), Arc::default()];
        endpoint.show(&ranks[0]);
        endpoint.judge(CallOutcome::Gone, Duration::ZERO);
        endpoint.show(&ranks[1]);
        assert_eq!(ranks.each_ref().map(|rank| rank.breaker()), [Seen::Open; 2]);
        assert!(endpoint.tick(Duration::from_millis(100)));
        endpoint.probed(CallOutcome::Good, Duration::from_millis(100));
        endpoint.judge(CallOutcome::Good, Duration::from_millis(101));
        assert_eq!(ranks.each_ref().map(|rank| rank.breaker()), [Seen::Closed; 2]);
        assert_eq!(endpoint.breaker(), (Seen::Closed, 1));
    }
}
