//! An address that pods are behind: its breaker, and its idle connections.
//!
//! Health is the endpoint's and not the pod's: data-parallel ranks share a process. A connection belongs
//! to the thread that opened it, whose event loop it is registered with; so every worker keeps its own.

use crate::breaker::{Breaker, BreakerRules, Verdict};
use crate::line::Line;
use hyper::Uri;
use hyper::header::HeaderValue;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use wornpath_index::Moment;
use wornpath_routing::{Breaker as Seen, Vitals};

/// Which of the threads that answer clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerNumber(pub usize);

/// Idle connections that a worker keeps for one endpoint, and for how long.
const MOST_IDLE: usize = 256;
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// With the time since when, longest first.
type IdleLines = Vec<(Instant, Line)>;

/// An address that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// Not a URL at all.
    #[error("`{0}` is not a URL; write it like http://10.0.0.5:8000")]
    NotAUrl(String),
    /// Neither http nor anything else we speak.
    #[error("`{0}` is not an http:// address; engines are called over plain HTTP")]
    NotHttp(String),
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
    breaker: Mutex<Breaker>,
    /// Whether the breaker has anything to forget: if not, a good answer costs one load.
    is_troubled: AtomicBool,
    vitals: Mutex<Vec<Arc<Vitals>>>,
    /// For each worker.
    idle: Box<[Mutex<IdleLines>]>,
}

impl Endpoint {
    /// The endpoint at `url`, called by so many workers.
    ///
    /// # Errors
    /// If the address is none.
    pub fn new(url: &str, rules: BreakerRules, workers: usize) -> Result<Self, AddressError> {
        let not = || AddressError::NotAUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| not())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(AddressError::NotHttp(url.to_owned())),
            None => return Err(not()),
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(not)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(80);
        let authority = uri.authority().ok_or_else(not)?;
        // Whoever is named before an `@` is nobody whom an engine should be told of.
        let authority = authority.as_str().rsplit('@').next().unwrap_or_default();
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            address: host.parse::<IpAddr>().ok().map(|host| SocketAddr::new(host, port)),
            host,
            port,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: HeaderValue::from_str(authority).map_err(|_| not())?,
            breaker: Mutex::new(Breaker::new(rules)),
            is_troubled: AtomicBool::new(false),
            vitals: Mutex::default(),
            idle: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
        })
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
        let seen = lock(&self.breaker).seen();
        vitals.set_breaker(seen);
        lock(&self.vitals).push(Arc::clone(vitals));
    }

    /// A call said something about the endpoint.
    pub fn judge(&self, verdict: Verdict, now: Moment) {
        if verdict == Verdict::Good && !self.is_troubled.load(Relaxed) {
            return;
        }
        self.change(|breaker| breaker.judge(verdict, now));
    }

    /// Lets the time pass; whether a probe is due.
    pub fn tick(&self, now: Moment) -> bool {
        self.is_troubled.load(Relaxed) && self.change(|breaker| breaker.tick(now))
    }

    /// A probe was answered, or not.
    pub fn probed(&self, verdict: Verdict, now: Moment) {
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

    fn change<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.seen();
        let result = change(&mut breaker);
        let seen = breaker.seen();
        self.is_troubled.store(breaker.remembers(), Relaxed);
        if seen != before {
            for vitals in lock(&self.vitals).iter() {
                vitals.set_breaker(seen);
            }
            if seen == Seen::Open {
                // What was open to a process that has gone is of no use.
                self.idle.iter().for_each(|idle| lock(idle).clear());
            }
        }
        result
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = match self.address {
            Some(address) => TcpStream::connect(address).await?,
            None => TcpStream::connect((self.host.as_str(), self.port)).await?,
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The connection that was idle for the shortest time.
    pub(crate) fn take_idle(&self, worker: WorkerNumber) -> Option<Line> {
        lock(self.idle.get(worker.0)?).pop().map(|(_, line)| line)
    }

    pub(crate) fn keep(&self, worker: WorkerNumber, line: Line) {
        let Some(idle) = self.idle.get(worker.0) else { return };
        let (mut idle, now) = (lock(idle), Instant::now());
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

    fn endpoint(url: &str) -> Result<Endpoint, AddressError> {
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
        for wrong in ["", "engine:8000", "/path", "http://", "https://engine"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_pod_behind_an_endpoint_shows_its_breaker() {
        let endpoint = endpoint("http://10.0.0.5:8000").unwrap();
        let ranks = [Arc::<Vitals>::default(), Arc::default()];
        endpoint.show(&ranks[0]);
        endpoint.judge(Verdict::Gone, Duration::ZERO);
        endpoint.show(&ranks[1]);
        assert_eq!(ranks.each_ref().map(|rank| rank.breaker()), [Seen::Open; 2]);
        assert!(endpoint.tick(Duration::from_millis(100)));
        endpoint.probed(Verdict::Good, Duration::from_millis(100));
        endpoint.judge(Verdict::Good, Duration::from_millis(101));
        assert_eq!(ranks.each_ref().map(|rank| rank.breaker()), [Seen::Closed; 2]);
        assert_eq!(endpoint.breaker(), (Seen::Closed, 1));
    }
}
