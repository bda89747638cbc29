//! A collector that takes OTLP over HTTP and gRPC on one port, and answers as it is told.
//!
//! It reads exports with our own messages; `otlp_peer` does with those that OpenTelemetry publishes.

use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use messages::{ExportMetrics, ExportResponse, ExportTraces, PartialSuccess};
use prost::Message;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

#[rustfmt::skip]
#[path = "../../../gateway/src/observe/otlp/messages.rs"]
#[allow(missing_docs, unreachable_pub, dead_code, reason = "generated")]
pub(crate) mod messages;

/// How an export is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CollectorAnswer {
    /// This HTTP status, or this gRPC status.
    Refuses { http: u16, grpc: u16 },
    /// Accepted but for so many spans.
    Rejects(i64),
    /// Never.
    Hangs,
}

/// An export as it arrived, uncompressed.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) is_compressed: bool,
    body: Bytes,
}

impl Export {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub(crate) fn traces(&self) -> ExportTraces {
        ExportTraces::decode(self.body.clone()).unwrap()
    }

    pub(crate) fn metrics(&self) -> ExportMetrics {
        ExportMetrics::decode(self.body.clone()).unwrap()
    }
}

#[derive(Default)]
struct Kept {
    exports: Vec<Export>,
    answers: VecDeque<CollectorAnswer>,
}

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
    _runtime: Runtime,
}

impl Collector {
    /// Answers the first exports so, and accepts all later ones.
    pub(crate) fn answering(answers: &[CollectorAnswer]) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let answers = answers.iter().copied().collect();
        let kept = Arc::new(Mutex::new(Kept { exports: Vec::new(), answers }));
        let shared = Arc::clone(&kept);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let kept = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service =
                        hyper::service::service_fn(|request| answer(request, Arc::clone(&kept)));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // The client may have ended.
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, kept, _runtime: runtime }
    }

    pub(crate) fn start() -> Self {
        Self::answering(&[])
    }

    /// The exports so far, accepted or not.
    pub(crate) fn exports(&self) -> Vec<Export> {
        self.kept.lock().unwrap().exports.clone()
    }
}

type Body = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Part>>>;
type Part = Result<Frame<Bytes>, Infallible>;

fn body(parts: Vec<Frame<Bytes>>) -> Body {
    let parts: Vec<Part> = parts.into_iter().map(Ok).collect();
    StreamBody::new(futures_util::stream::iter(parts))
}

async fn answer(
    request: Request<Incoming>,
    kept: Arc<Mutex<Kept>>,
) -> Result<Response<Body>, Infallible> {
    let (head, incoming) = request.into_parts();
    let incoming = incoming.collect().await.unwrap().to_bytes();
    let is_grpc = head.headers["content-type"] == "application/grpc";
    let (is_compressed, sent) = if is_grpc {
        let length = u32::from_be_bytes(incoming[1..5].try_into().unwrap()) as usize;
        assert_eq!(incoming.len(), 5 + length, "one message");
        (incoming[0] == 1, incoming.slice(5..))
    } else {
        assert_eq!(head.headers["content-type"], "application/x-protobuf");
        (head.headers.get("content-encoding").is_some_and(|it| it == "gzip"), incoming)
    };
    let sent = if is_compressed { unzipped(&sent) } else { sent };
    let path = head.uri.path().to_owned();
    let export = Export { path, headers: head.headers, is_compressed, body: sent };
    let answer = {
        let mut kept = kept.lock().unwrap();
        kept.exports.push(export);
        kept.answers.pop_front()
    };
    let mut response = ExportResponse::default();
    let mut status = 0;
    match answer {
        Some(CollectorAnswer::Hangs) => std::future::pending().await,
        Some(CollectorAnswer::Refuses { http, .. }) if !is_grpc => {
            return Ok(Response::builder().status(http).body(body(Vec::new())).unwrap());
        }
        Some(CollectorAnswer::Refuses { grpc, .. }) => status = grpc,
        Some(CollectorAnswer::Rejects(rejected)) => {
            let error_message = "too old".to_owned();
            response.partial_success = Some(PartialSuccess { rejected, error_message });
        }
        None => {}
    }
    let message = response.encode_to_vec();
    if !is_grpc {
        return Ok(Response::new(body(vec![Frame::data(message.into())])));
    }
    let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.into());
    let mut parts = vec![Frame::trailers(trailers)];
    if status == 0 {
        parts.insert(0, Frame::data(framed.into()));
    }
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body(parts)).unwrap())
}

fn unzipped(bytes: &[u8]) -> Bytes {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut text).unwrap();
    text.into()
}
