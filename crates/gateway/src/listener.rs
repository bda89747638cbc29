//! One connection of a listener that few come to.

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::error::Error;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use wornpath_config::tls::ListenerTls;

/// For the greeting over TLS, and for the head of each request.
const WITHIN: Duration = Duration::from_secs(5);

/// Answers everything that comes over a connection.
pub async fn converse<S>(stream: TcpStream, tls: Option<ListenerTls>, answer: S)
where
    S: HttpService<Incoming>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Body + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match tls {
        None => talk(stream, answer).await,
        Some(tls) => {
            if let Some(stream) = greeted(stream, &tls).await {
                talk(stream, answer).await;
            }
        }
    }
}

/// The connection of a caller that is let in.
pub async fn greeted(stream: TcpStream, tls: &ListenerTls) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(WITHIN, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
    None
}

async fn talk<S>(stream: impl AsyncRead + AsyncWrite + Unpin, answer: S)
where
    S: HttpService<Incoming>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Body + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(WITHIN)
        .serve_connection(TokioIo::new(stream), answer);
    // A peer that breaks off is its own affair.
    let _ = connection.await;
}

/// Breaks a connection whose client takes nothing of its answer for so long: else it would keep its pod's load.
pub fn leave_after(stream: &TcpStream, patience: Duration) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(stream, patience)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, patience);
    Ok(())
}
