//! Listeners: how every one of them accepts, and how the admin plane and the event listener serve
//! their connections, with or without TLS.
//!
//! Accepting fails while file descriptors run out, so it is retried with a backoff and logged.
//!
//! The admin plane and the event listener have few connections, and a caller without a token must
//! not be able to take all of them. So a connection counts as admitted only once it has sent a
//! request that the access rules allow. One that has not within [`ADMISSION_TIMEOUT`] of being
//! accepted is closed, TLS handshake included; and where connections run out, the oldest one that is
//! not admitted makes room for the next. Limits: a caller that opens connections faster than an
//! operator's first request arrives can still close that operator's connection.

use crate::log_limit::LogLimit;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::server::TlsStream;
use wornpath_config::tls::ListenerTls;

/// Timeout of reading the head of each request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from accept to the first request that the access rules allow.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);

/// A TCP listener that retries failed accepts.
pub struct Acceptor {
    listener: Arc<TcpListener>,
    /// The name of the listener, for the log.
    name: &'static str,
    backoff: AcceptBackoff,
    failure_log: LogLimit,
}

impl Acceptor {
    /// Accepts on `listener`, which the log calls `name`.
    #[must_use]
    pub fn new(listener: Arc<TcpListener>, name: &'static str) -> Self {
        let failure_log = LogLimit::new(Duration::from_secs(1));
        Self { listener, name, backoff: AcceptBackoff::default(), failure_log }
    }

    /// The next connection. Cancel-safe: a cancelled backoff ends early.
    pub async fn accept(&mut self) -> TcpStream {
        loop {
            let error = match self.listener.accept().await {
                Ok((stream, _)) => {
                    self.backoff = AcceptBackoff::default();
                    return stream;
                }
                Err(error) => error,
            };
            if is_of_one_client(&error) {
                continue;
            }
            if self.failure_log.is_due() {
                tracing::warn!(
                    listener = self.name,
                    %error,
                    "cannot accept connections; retrying (no file descriptor left? raise \
                     `ulimit -n`, `LimitNOFILE`)"
                );
            }
            tokio::time::sleep(self.backoff.failed()).await;
        }
    }

    /// Closes the listener. The connections that the system had accepted by then, which would be
    /// reset otherwise. None if the listener is shared.
    #[must_use]
    pub fn into_pending(self) -> Vec<TcpStream> {
        let Some(Ok(listener)) = Arc::into_inner(self.listener).map(TcpListener::into_std) else {
            return Vec::new();
        };
        let mut pending = Vec::new();
        loop {
            match listener.accept() {
                Ok((stream, _)) => pending.extend(
                    stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)),
                ),
                Err(error) if is_of_one_client(&error) => {}
                Err(_) => return pending,
            }
        }
    }
}

/// Whether only the client that connected is concerned; the next accept may succeed at once.
fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// The delay before a failed accept is retried.
#[derive(Default)]
struct AcceptBackoff {
    /// None after a success.
    last: Option<Duration>,
}

impl AcceptBackoff {
    const MIN_DELAY: Duration = Duration::from_millis(10);
    const MAX_DELAY: Duration = Duration::from_millis(320);

    fn failed(&mut self) -> Duration {
        let delay = self.last.map_or(Self::MIN_DELAY, |last| (last * 2).min(Self::MAX_DELAY));
        self.last = Some(delay);
        delay
    }
}

/// How many connections a listener has at once.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Of all callers.
    pub total: usize,
    /// Of callers that are not admitted yet.
    pub unadmitted: usize,
}

/// Whether a connection has sent a request that the access rules allow.
#[derive(Clone, Default)]
pub struct Admission(Arc<AtomicBool>);

impl Admission {
    /// Admits the connection for the rest of its life.
    pub fn admit(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_admitted(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Returns if the connection is not admitted in time.
    async fn timed_out(&self) {
        tokio::time::sleep(ADMISSION_TIMEOUT).await;
        if self.is_admitted() {
            std::future::pending::<()>().await;
        }
    }
}

/// The connections of one listener.
struct OpenConnections {
    limits: ConnectionLimits,
    tasks: JoinSet<()>,
    /// Those that are not known to be admitted or closed, oldest first.
    unadmitted: VecDeque<UnadmittedConnection>,
}

struct UnadmittedConnection {
    admission: Admission,
    task: AbortHandle,
}

impl UnadmittedConnection {
    fn is_open(&self) -> bool {
        !self.admission.is_admitted() && !self.task.is_finished()
    }
}

impl OpenConnections {
    fn new(limits: ConnectionLimits) -> Self {
        Self { limits, tasks: JoinSet::new(), unadmitted: VecDeque::new() }
    }

    /// Whether a connection must make room for the next one.
    fn is_full(&mut self) -> bool {
        let total = self.tasks.len();
        if total < self.limits.total && self.unadmitted.len() < self.limits.unadmitted {
            return false;
        }
        self.unadmitted.retain(UnadmittedConnection::is_open);
        total >= self.limits.total || self.unadmitted.len() >= self.limits.unadmitted
    }

    /// Closes the oldest connection that is not admitted, if the next one needs its place. If all
    /// are admitted, waits until one of them closes.
    async fn make_room(&mut self) {
        while self.is_full() {
            if let Some(oldest) = self.unadmitted.pop_front() {
                oldest.task.abort();
                return;
            }
            self.tasks.join_next().await;
        }
    }

    fn spawn(&mut self, admission: Admission, serving: impl Future<Output = ()> + Send + 'static) {
        let watched = admission.clone();
        let task = self.tasks.spawn(async move {
            tokio::select! {
                () = serving => {}
                () = watched.timed_out() => tracing::debug!("no valid request in time; closing"),
            }
        });
        self.unadmitted.push_back(UnadmittedConnection { admission, task });
    }
}

/// Accepts connections and serves each in a task of its own, until it is dropped. `serve` admits a
/// connection once it has sent a request that the access rules allow.
pub async fn serve_connections<F>(
    mut acceptor: Acceptor,
    limits: ConnectionLimits,
    mut serve: impl FnMut(TcpStream, Admission) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = OpenConnections::new(limits);
    loop {
        tokio::select! {
            biased;
            Some(_) = open.tasks.join_next() => {}
            stream = acceptor.accept() => {
                open.make_room().await;
                let admission = Admission::default();
                open.spawn(admission.clone(), serve(stream, admission));
                // Lets it read a request that has arrived already, before the next takes its place.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Serves all requests of a connection with `service`.
pub async fn serve_connection<S>(stream: TcpStream, tls: Option<ListenerTls>, service: S)
where
    S: HttpService<Incoming>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Body + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match tls {
        None => serve_http(stream, service).await,
        Some(tls) => {
            if let Some(stream) = tls_handshake(stream, &tls).await {
                serve_http(stream, service).await;
            }
        }
    }
}

/// Completes the TLS handshake; none if it fails. Its timeout is that of the admission.
pub async fn tls_handshake(stream: TcpStream, tls: &ListenerTls) -> Option<TlsStream<TcpStream>> {
    let handshake = tls.accept(stream).await;
    handshake.inspect_err(|error| tracing::debug!(%error, "TLS handshake failed")).ok()
}

async fn serve_http<S>(stream: impl AsyncRead + AsyncWrite + Unpin, service: S)
where
    S: HttpService<Incoming>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Body + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A peer that disconnects is no error of ours.
    let _ = connection.await;
}

/// Closes the connection once sent data stays unacknowledged for `timeout` (`TCP_USER_TIMEOUT`): a
/// client that stops reading would otherwise hold its slot on the pod. Linux only; elsewhere a
/// no-op.
///
/// # Errors
/// If the socket option cannot be set.
pub fn set_user_timeout(stream: &TcpStream, timeout: Duration) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(stream, millis)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, timeout);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    #[tokio::test]
    async fn a_listener_that_closes_gives_the_connections_that_it_had_not_taken() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let mut acceptor = Acceptor::new(listener, "test");
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let first = acceptor.accept().await;
        let pending = acceptor.into_pending();
        let taken = [&first].into_iter().chain(&pending);
        let taken: Vec<_> = taken.map(|it| it.peer_addr().unwrap()).collect();
        let opened: Vec<_> = clients.iter().map(|it| it.local_addr().unwrap()).collect();
        assert_eq!(taken, opened);
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn failed_accepts_are_retried_after_growing_delays() {
        let mut backoff = AcceptBackoff::default();
        let delays: Vec<_> = (0..8).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 320, 320]);
    }

    /// A listener whose connections never answer, and the admissions of those that it serves.
    struct Silent {
        address: std::net::SocketAddr,
        admissions: mpsc::UnboundedReceiver<Admission>,
        _serving: JoinSet<()>,
    }

    async fn silent(total: usize, unadmitted: usize) -> Silent {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let (sender, admissions) = mpsc::unbounded_channel();
        let limits = ConnectionLimits { total, unadmitted };
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let acceptor = Acceptor::new(listener, "test");
            serve_connections(acceptor, limits, |stream, admission| {
                sender.send(admission).unwrap();
                async move {
                    let _stream = stream;
                    std::future::pending::<()>().await;
                }
            })
            .await;
        });
        Silent { address, admissions, _serving: serving }
    }

    impl Silent {
        async fn connect(&mut self) -> (TcpStream, Admission) {
            let stream = TcpStream::connect(self.address).await.unwrap();
            (stream, self.admissions.recv().await.unwrap())
        }
    }

    /// Whether the listener has not closed a connection, on which it never sends anything.
    async fn is_open(stream: &TcpStream) -> bool {
        tokio::time::pause();
        let is_open =
            tokio::time::timeout(Duration::from_secs(1), stream.readable()).await.is_err();
        tokio::time::resume();
        is_open
    }

    #[tokio::test]
    async fn the_oldest_connection_without_a_valid_request_makes_room_for_the_next() {
        let mut server = silent(3, 2).await;
        let (admitted, admission) = server.connect().await;
        admission.admit();
        let (mut oldest, _) = server.connect().await;
        let (mut second, _) = server.connect().await;
        let (third, admission) = server.connect().await;
        assert_eq!(oldest.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        admission.admit();
        let (_fourth, admission) = server.connect().await;
        assert_eq!(second.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        admission.admit();
        // Three admitted connections: the next one waits until one of them closes.
        let _waiting = TcpStream::connect(server.address).await.unwrap();
        tokio::task::yield_now().await;
        assert!(server.admissions.try_recv().is_err());
        assert!(is_open(&admitted).await && is_open(&third).await);
    }

    #[tokio::test]
    async fn an_admitted_connection_never_makes_room() {
        let mut server = silent(4, 2).await;
        let (first, first_admission) = server.connect().await;
        let (second, second_admission) = server.connect().await;
        // The listener waits for the next connection by now.
        tokio::task::yield_now().await;
        first_admission.admit();
        second_admission.admit();
        let (_third, _) = server.connect().await;
        let (_fourth, _) = server.connect().await;
        assert!(is_open(&first).await && is_open(&second).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_valid_request_is_closed_in_time_and_others_are_not() {
        let mut server = silent(8, 8).await;
        let (mut silent, _) = server.connect().await;
        let (admitted, admission) = server.connect().await;
        admission.admit();
        let start = Instant::now();
        assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        assert_eq!(start.elapsed().as_secs(), ADMISSION_TIMEOUT.as_secs());
        tokio::time::sleep(ADMISSION_TIMEOUT * 10).await;
        tokio::time::resume();
        assert!(is_open(&admitted).await);
    }
}
