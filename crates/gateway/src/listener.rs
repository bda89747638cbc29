//! HTTP/1 connections of the low-traffic listeners (admin plane and event pushes), with or without
//! TLS.

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

/// Timeout of a TLS handshake, and of reading the head of each request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Completes the TLS handshake; none if it fails or times out.
pub async fn tls_handshake(stream: TcpStream, tls: &ListenerTls) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
    None
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
