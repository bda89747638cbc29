//! A collector: connections to it, and exports with retries.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;
use wornpath_config::{OtlpCompression, OtlpProtocol, OtlpTarget};
use wornpath_execution::retry_after;
use wornpath_time::Backoff;

use super::messages::{ExportMetrics, ExportResponse, ExportTraces, RetryInfo, RpcStatus};
use super::time_of_day;

const MAX_RESPONSE_BYTES: usize = 1 << 20;
const FIRST_RETRY_AFTER: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("OTel-OTLP-Exporter-wornpath/", env!("CARGO_PKG_VERSION")));

/// A message with the gRPC method that takes it.
pub(super) trait Export: Message + Clone + 'static {
    const METHOD: &'static str;
}

impl Export for ExportTraces {
    const METHOD: &'static str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
}

impl Export for ExportMetrics {
    const METHOD: &'static str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
}

/// Exports to one URL, over connections that are kept.
pub(super) struct Collector {
    target: OtlpTarget,
    client: Client<Connector, Body>,
}

/// Why an attempt failed, and whether and when another one may succeed.
#[derive(Debug)]
struct Failure {
    reason: String,
    retry: Retry,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Retry {
    Never,
    /// After the backoff, and not before this time.
    After(Duration),
}

impl Retry {
    const ANY_TIME: Self = Self::After(Duration::ZERO);
}

impl Collector {
    pub(super) fn new(target: OtlpTarget) -> Self {
        let connector = Connector { tls: target.tls.as_ref().map(|tls| Arc::clone(tls.config())) };
        let client = Client::builder(TokioExecutor::new())
            .http2_only(target.protocol == OtlpProtocol::Grpc)
            .build(connector);
        Self { target, client }
    }

    /// The URL, for logs.
    pub(super) const fn url(&self) -> &Uri {
        &self.target.url
    }

    /// Exports with retries until the target's timeout.
    ///
    /// # Errors
    /// If no attempt succeeded, or the collector rejected a part. The text is for logs.
    pub(super) async fn export(&self, message: &impl Export) -> Result<(), String> {
        let deadline = Instant::now() + self.target.timeout;
        let mut backoff =
            Backoff::new(FIRST_RETRY_AFTER, LONGEST_BACKOFF).with_jitter(time_of_day() / 1024);
        loop {
            let Failure { reason, retry } = match timeout_at(deadline, self.send(message)).await {
                Ok(Ok(response)) => return kept_all(response),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(format!("no response within {:?}", self.target.timeout)),
            };
            let Retry::After(wait) = retry else { return Err(reason) };
            let again = Instant::now() + backoff.failed().max(wait);
            if again >= deadline {
                return Err(format!("{reason}; attempts: {}", backoff.failures()));
            }
            sleep(again.duration_since(Instant::now())).await;
        }
    }

    async fn send<M: Export>(&self, message: &M) -> Result<ExportResponse, Failure> {
        match self.target.protocol {
            OtlpProtocol::Http => self.post(message.encode_to_vec()).await,
            OtlpProtocol::Grpc => self.call(message.clone()).await,
        }
    }

    async fn post(&self, mut body: Vec<u8>) -> Result<ExportResponse, Failure> {
        let is_compressed = self.target.compression == OtlpCompression::Gzip;
        if is_compressed {
            body = gzip(&body).map_err(|error| Failure::new(&error, Retry::Never))?;
        }
        let mut request = Request::new(Body::new(Full::new(Bytes::from(body))));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.url.clone();
        *request.headers_mut() = self.headers();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if is_compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let unreached = |error| Failure::new(&error, Retry::ANY_TIME);
        let response = self.client.request(request).await.map_err(unreached)?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let wait = retry_after(&head.headers).unwrap_or_default();
            let is_worth_it = matches!(
                head.status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            );
            let retry = if is_worth_it { Retry::After(wait) } else { Retry::Never };
            return Err(Failure { reason: format!("collector returned {}", head.status), retry });
        }
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        // It has accepted the export, whatever it says.
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Ok(ExportResponse::decode(body).unwrap_or_default())
    }

    async fn call<M: Export>(&self, message: M) -> Result<ExportResponse, Failure> {
        let mut grpc = Grpc::with_origin(self.client.clone(), self.target.url.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        if self.target.compression == OtlpCompression::Gzip {
            grpc = grpc
                .send_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Gzip);
        }
        grpc.ready().await.map_err(|error| Failure::new(&error, Retry::ANY_TIME))?;
        let metadata = MetadataMap::from_headers(self.headers());
        let request = tonic::Request::from_parts(metadata, Extensions::default(), message);
        let codec = ProstCodec::<M, ExportResponse>::default();
        let response = grpc.unary(request, PathAndQuery::from_static(M::METHOD), codec).await;
        response.map(tonic::Response::into_inner).map_err(|status| Failure::of_status(&status))
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = self.target.headers.clone();
        headers.entry(USER_AGENT).or_insert(AGENT);
        headers
    }
}

fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    io::Write::write_all(&mut encoder, body)?;
    encoder.finish()
}

fn kept_all(response: ExportResponse) -> Result<(), String> {
    match response.partial_success {
        Some(partial) if partial.rejected > 0 => {
            Err(format!("collector rejected {}: {}", partial.rejected, partial.error_message))
        }
        _ => Ok(()),
    }
}

impl Failure {
    /// A failure with its causes: the outermost error rarely says what happened.
    fn new(error: &(dyn std::error::Error + 'static), retry: Retry) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Self { reason: wornpath_tls::explain(error).unwrap_or(reason), retry }
    }

    fn of_status(status: &Status) -> Self {
        // The collector's own status has no source.
        if let Some(error) = std::error::Error::source(status) {
            return Self::new(error, Retry::ANY_TIME);
        }
        let retry = match (status.code(), retry_delay(status.details())) {
            (_, Some(delay)) => Retry::After(delay),
            (
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss,
                None,
            ) => Retry::ANY_TIME,
            _ => Retry::Never,
        };
        let reason = format!("collector returned {:?}: {}", status.code(), status.message());
        Self { reason, retry }
    }
}

/// The delay of the `RetryInfo` in a status.
fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay.unwrap_or_default();
    let seconds = u64::try_from(delay.seconds).ok()?;
    Some(Duration::new(seconds, u32::try_from(delay.nanos).ok().filter(|it| *it < 1 << 30)?))
}

/// Opens connections to the host of a URL, with TLS if it is configured.
#[derive(Clone)]
struct Connector {
    tls: Option<Arc<ClientConfig>>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move {
            let host = url.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let default = if tls.is_some() { 443 } else { 80 };
            let stream = TcpStream::connect((host, url.port_u16().unwrap_or(default))).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = tls else { return Ok(TokioIo::new(Stream(Box::new(stream)))) };
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(tls).connect(name, stream).await?;
            Ok(TokioIo::new(Stream(Box::new(stream))))
        })
    }
}

/// A connection, with or without TLS.
struct Stream(Box<dyn Duplex>);

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collector({})", self.target.url)
    }
}
