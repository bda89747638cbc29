//! Calls to a gateway's Files and Batches interface.

use crate::input;
use crate::server::Server;
use anyhow::{Context, ensure};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context as Waking, Poll};
use std::time::Duration;
use tokio::task::JoinSet;

const BOUNDARY: &str = "wornpath-6f1d0c52b7";
/// For the head of the answer to anything but an upload.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// More than any question has, and less than a file that takes long.
const SHORT: u64 = 1 << 20;

/// Bytes of a file that are read at once.
const PIECE: usize = 256 << 10;

/// Who answers questions in JSON: a gateway, its admin plane, an engine.
pub(crate) struct Service {
    server: Server,
    authorization: Option<String>,
}

type Sent = BoxBody<Bytes, io::Error>;

/// The gateway has answered, and that it does not do it.
#[derive(Debug)]
pub(crate) struct ServiceRefused {
    status: StatusCode,
    message: String,
}

impl ServiceRefused {
    /// Whether it would be refused again, and nothing has come of it.
    pub(crate) fn is_final(&self) -> bool {
        self.status.is_client_error()
    }
}

impl std::fmt::Display for ServiceRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServiceRefused {}

impl Service {
    /// The one at `server`, which is shown `key`.
    pub(crate) fn of(server: Server, key: Option<&str>) -> Self {
        Self { server, authorization: key.map(|key| format!("Bearer {key}")) }
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.json(Method::GET, path, "application/json", empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed();
        self.json(Method::POST, path, "application/json", body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.json(Method::DELETE, path, "application/json", empty()).await
    }

    /// Sends a file as it is read.
    pub(crate) async fn upload(&self, path: &Path) -> anyhow::Result<Value> {
        let cannot = || format!("cannot read {}", path.display());
        // Nobody knows how long anything else is, and what is no file may wait for ever to be opened.
        ensure!(
            std::fs::metadata(path).with_context(cannot)?.is_file(),
            "{} is no regular file; write the lines to one first",
            path.display()
        );
        input::refuse_packed(path)?;
        let file = File::open(path).with_context(cannot)?;
        let name = path.file_name().map_or_else(|| "file".into(), |name| name.to_string_lossy());
        let name = name.replace(['"', '\r', '\n'], "_");
        let head = format!(
            "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
        );
        let tail = format!("\r\n--{BOUNDARY}--\r\n");
        let left = file.metadata().with_context(cannot)?.len();
        let body = Upload { head: Some(head.into()), file, left, tail: Some(tail.into()) }.boxed();
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        self.json(Method::POST, "/v1/files", &kind, body).await
    }

    /// Copies an answer's body as it comes.
    pub(crate) async fn copy(&self, path: &str, out: &mut impl Write) -> anyhow::Result<()> {
        let mut connection = JoinSet::new();
        let response = self.send(Method::GET, path, ("", empty()), &mut connection).await?;
        let (head, mut body) = response.into_parts();
        if !head.status.is_success() {
            let bytes = body.collect().await.context("the answer broke off")?.to_bytes();
            return Err(ServiceRefused { status: head.status, message: said(&bytes) }.into());
        }
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.context("the answer broke off")?.into_data() {
                out.write_all(&data)?;
            }
        }
        Ok(())
    }

    async fn json(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Sent,
    ) -> anyhow::Result<Value> {
        let mut connection = JoinSet::new();
        let response = self.send(method, path, (kind, body), &mut connection).await?;
        let status = response.status();
        let bytes =
            response.into_body().collect().await.context("the answer broke off")?.to_bytes();
        if !status.is_success() {
            return Err(ServiceRefused { status, message: said(&bytes) }.into());
        }
        serde_json::from_slice(&bytes).context("the answer is not JSON")
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        (kind, body): (&str, Sent),
        connection: &mut JoinSet<()>,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.server.authority());
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization.as_str());
        }
        // What is uploaded takes as long as it takes.
        let is_short = body.size_hint().upper().is_some_and(|bytes| bytes < SHORT);
        let within = is_short.then_some(ANSWER_WITHIN);
        self.server.send(request.body(body)?, within, connection).await
    }
}

fn empty() -> Sent {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed()
}

/// What an error says.
fn said(bytes: &[u8]) -> String {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let message = value["error"]["message"].as_str().map(str::to_owned);
    message.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned())
}

/// A form around a file, which is read while it is sent.
struct Upload {
    head: Option<Bytes>,
    file: File,
    left: u64,
    tail: Option<Bytes>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Waking<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        if self.left == 0 {
            return Poll::Ready(self.tail.take().map(|tail| Ok(Frame::data(tail))));
        }
        let mut piece = vec![0; PIECE.min(self.left as usize)];
        // The file is all that this process waits for.
        Poll::Ready(Some(self.file.read(&mut piece).and_then(|read| {
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            piece.truncate(read);
            self.left -= read as u64;
            Ok(Frame::data(piece.into()))
        })))
    }

    fn size_hint(&self) -> SizeHint {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len) as u64;
        SizeHint::with_exact(length(&self.head) + self.left + length(&self.tail))
    }
}
