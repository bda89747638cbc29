//! HTTP client of all commands that talk to a gateway, its admin plane or an engine.
//!
//! A command sends few requests and waits for each, so every request has a connection of its own
//! and no pool is kept. The connection ends when its response is dropped.

mod endpoint;
mod proxy;
mod upload;

use anyhow::{Context, anyhow, ensure};
pub(crate) use endpoint::{Endpoint, TlsArguments, is_tls_rejection};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, http::response};
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;
use upload::FileUpload;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Larger request bodies are uploads, to which the response timeout does not apply.
const UPLOAD_BYTES: u64 = 1 << 20;
/// Largest server-sent event that is buffered.
const MAX_EVENT_BYTES: usize = 64 << 20;
const CONNECTION_LOST: &str = "connection lost while reading the response";

/// A client of one endpoint.
pub(crate) struct HttpClient {
    endpoint: Endpoint,
    authorization: Option<HeaderValue>,
    response_timeout: Option<Duration>,
}

impl HttpClient {
    /// A client that authenticates with `key`, an API key or an admin token.
    pub(crate) fn new(endpoint: Endpoint, key: Option<&str>) -> anyhow::Result<Self> {
        let authorization = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).context(
                "the key or token has a character that no HTTP header may have, such as a line break",
            )?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let authorization = authorization.transpose()?;
        Ok(Self { endpoint, authorization, response_timeout: Some(RESPONSE_TIMEOUT) })
    }

    /// Limits the time from sending a request to the head of its response; `None` waits for ever.
    pub(crate) fn with_response_timeout(self, response_timeout: Option<Duration>) -> Self {
        Self { response_timeout, ..self }
    }

    /// The address that requests go to, as `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.address()
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::GET, path, Payload::empty()).await?.json().await
    }

    pub(crate) async fn get_text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(Method::GET, path, Payload::empty()).await?;
        let bytes = response.successful().await?.bytes().await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(Method::POST, path, Payload::json(body)).await?.json().await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::DELETE, path, Payload::empty()).await?.json().await
    }

    /// Uploads a file of batch lines, which is read while it is sent.
    pub(crate) async fn upload(&self, path: &Path) -> anyhow::Result<Value> {
        let upload = FileUpload::open(path)?;
        let payload = Payload { content_type: Some(upload::CONTENT_TYPE), body: upload.boxed() };
        self.send(Method::POST, "/v1/files", payload).await?.json().await
    }

    /// Copies a response body to `out` while it arrives.
    pub(crate) async fn download(&self, path: &str, out: &mut impl Write) -> anyhow::Result<()> {
        let response = self.send(Method::GET, path, Payload::empty()).await?;
        let mut response = response.successful().await?;
        while let Some(frame) = response.body.frame().await {
            if let Ok(data) = frame.context(CONNECTION_LOST)?.into_data() {
                out.write_all(&data)?;
            }
        }
        Ok(())
    }

    /// Sends a request and waits for the head of its response, whatever its status.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        payload: Payload,
    ) -> anyhow::Result<HttpResponse> {
        let Payload { content_type, body } = payload;
        let is_upload = body.size_hint().upper().is_none_or(|bytes| bytes >= UPLOAD_BYTES);
        let timeout = self.response_timeout.filter(|_| !is_upload);
        let mut request =
            Request::builder().method(method).uri(path).header(HOST, self.endpoint.authority());
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let mut connection = JoinSet::new();
        let response = self.endpoint.send(request.body(body)?, timeout, &mut connection).await?;
        let (head, body) = response.into_parts();
        Ok(HttpResponse { head, body, connection })
    }
}

/// The body of a request and its content type.
pub(crate) struct Payload {
    content_type: Option<&'static str>,
    body: BoxBody<Bytes, io::Error>,
}

impl Payload {
    pub(crate) fn empty() -> Self {
        Self { content_type: None, body: whole(Bytes::new()) }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self { content_type: Some("application/json"), body: whole(value.to_string().into()) }
    }
}

fn whole(bytes: Bytes) -> BoxBody<Bytes, io::Error> {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

/// A response whose body has not been read yet.
pub(crate) struct HttpResponse {
    head: response::Parts,
    body: Incoming,
    /// Drives the connection.
    connection: JoinSet<()>,
}

impl HttpResponse {
    pub(crate) fn status(&self) -> StatusCode {
        self.head.status
    }

    /// The value of a header; empty if it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.head.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }

    /// The response itself if its status is 2xx, or the error that its body describes.
    pub(crate) async fn successful(self) -> anyhow::Result<Self> {
        if self.status().is_success() {
            return Ok(self);
        }
        let status = self.status();
        Err(HttpError { status, message: error_message(&self.bytes().await?) }.into())
    }

    pub(crate) async fn bytes(self) -> anyhow::Result<Bytes> {
        Ok(self.body.collect().await.context(CONNECTION_LOST)?.to_bytes())
    }

    /// The body, of at most `most` bytes.
    pub(crate) async fn bytes_within(self, most: usize) -> anyhow::Result<Bytes> {
        let body = Limited::new(self.body, most).collect().await;
        let body = body.map_err(|error| anyhow!("{CONNECTION_LOST}: {error} (limit {most} bytes)"));
        Ok(body?.to_bytes())
    }

    pub(crate) async fn json(self) -> anyhow::Result<Value> {
        let bytes = self.successful().await?.bytes().await?;
        serde_json::from_slice(&bytes).context("the response is not JSON")
    }

    /// Reads the body as server-sent events.
    pub(crate) fn events(self) -> EventStream {
        EventStream { body: self.body, buffer: Vec::new(), _connection: self.connection }
    }
}

/// A response whose status is not 2xx.
#[derive(Debug)]
pub(crate) struct HttpError {
    status: StatusCode,
    message: String,
}

impl HttpError {
    /// Whether a retry would fail alike: the request itself is at fault.
    pub(crate) fn is_client_error(&self) -> bool {
        self.status.is_client_error()
    }
}

impl std::fmt::Display for HttpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status, self.message.trim_end())
    }
}

impl std::error::Error for HttpError {}

/// The message of an error in OpenAI's form, or the whole body.
fn error_message(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = value["error"]["message"].as_str().map(str::to_owned);
    message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned())
}

/// Server-sent events of a response.
pub(crate) struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
    _connection: JoinSet<()>,
}

impl EventStream {
    /// The lines of the next event; none when the server has ended the stream.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(Some(String::from_utf8_lossy(&event).trim_end().to_owned()));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.context(CONNECTION_LOST)?.into_data() {
                self.buffer.extend_from_slice(&data);
                let size = self.buffer.len();
                ensure!(size < MAX_EVENT_BYTES, "event too large: {size} bytes without an end");
            }
        }
    }
}
