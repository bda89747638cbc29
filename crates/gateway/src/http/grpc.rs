//! gRPC connections: those of data planes, and health checks.
//!
//! Streams of one connection stay on its worker. A data plane has few connections, so each takes a
//! limited number of streams: for more it opens another connection, which another worker gets.

use crate::ext_proc::service::{STREAMS_PER_CONNECTION, answer};
use crate::http::front::Phase;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::named;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

const CONNECTION: TaskName = TaskName::new("data plane connection");

/// A data plane that vanished is noticed after this time, and again this time without an answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Serves a connection until it closes; in a drain, until its streams have ended.
pub(super) async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    worker: &Arc<Worker>,
    address: IpAddr,
    mut phases: watch::Receiver<Phase>,
) {
    let service = service_fn(|request| {
        let answer = answer(Arc::clone(worker), address, request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let draining = async { phases.wait_for(|phase| *phase >= Phase::Draining).await.is_ok() };
    let mut draining = pin!(draining);
    // A connection error concerns only that data plane, so it is not reported.
    let served = async {
        tokio::select! {
            biased;
            _ended = connection.as_mut() => {}
            _ = draining.as_mut() => {
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await;
            }
        }
    };
    named(CONNECTION, served).await;
}
