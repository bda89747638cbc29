//! Streams against a gateway in this process: the cases of other pickers' tests, and any split and
//! order of messages.

mod bare;
mod cases;
mod modes;
mod responses;
mod splits;
mod tenants;
mod waiting;

use super::answers::Answers;
use super::proto::body_mutation::Mutation;
use super::proto::processing_request::Request;
use super::proto::processing_response::Response;
use super::proto::{
    BodySendMode, CommonResponse, HeaderMap, HeaderValue, HttpBody, HttpHeaders, HttpTrailers,
    ImmediateResponse, Metadata, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
    Struct, Value, value,
};
use super::session::process;
use crate::observe::summary::{RequestSummary, SummaryObserver};
use crate::proxy::gateway::Gateway;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use serde_json::json;
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::codec::Codec;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use wornpath_config::{Config, Environment, Tokenizers};
use wornpath_routing::Health;

const PODS: [&str; 3] = ["192.168.1.1:8000", "192.168.1.2:8000", "192.168.1.3:8000"];

/// Collects the summaries of requests that ended.
#[derive(Default)]
struct Ended(Mutex<Vec<RequestSummary>>);

impl SummaryObserver for Ended {
    fn ended(&self, record: &RequestSummary) {
        self.0.lock().unwrap().push(record.clone());
    }
}

/// A gateway whose pods are up, and never called.
struct Bench {
    gateway: Arc<Gateway>,
    worker: Arc<Worker>,
    ended: Arc<Ended>,
}

/// A file system without files.
struct NoFiles;

impl Environment for NoFiles {
    fn text(&self, _: &Path) -> Result<String, std::io::Error> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn output_path(&self, _: &Path) -> Option<PathBuf> {
        None
    }

    fn is_folder(&self, _: &Path) -> Option<bool> {
        None
    }

    fn has_tokenizer(&self, _: &Path) -> bool {
        false
    }
}

impl Bench {
    fn new() -> Self {
        Self::with("")
    }

    /// With three pods and further sections of the configuration.
    fn with(sections: &str) -> Self {
        let pods = PODS.map(|at| format!("  - {{url: \"http://{at}\", model: m, loras: [a]}}\n"));
        Self::of(&format!("pods:\n{}{sections}", pods.concat()))
    }

    fn of(sections: &str) -> Self {
        Self::of_text(&format!(
            "listen: {{epp: {{address: \"127.0.0.1:9002\", objectives: [urgent=7]}}}}\n{sections}"
        ))
    }

    fn of_text(text: &str) -> Self {
        let config = Config::check("wornpath.yaml", text, &NoFiles);
        let config = config.unwrap_or_else(|refused| panic!("{refused}"));
        let settings = config.settings(&mut Tokenizers::new(Path::new(""))).unwrap();
        let gateway = Gateway::new(settings, Handle::current(), 7).unwrap();
        for entry in gateway.snapshot().entries() {
            entry.pod.state().set_health(Health::Up);
        }
        let ended = Arc::<Ended>::default();
        gateway.observe(vec![Arc::clone(&ended) as Arc<dyn SummaryObserver>]);
        let worker = Arc::new(Worker::new(Arc::clone(&gateway), 0));
        let poller = Arc::clone(&worker);
        tokio::spawn(async move { poller.gateway.wait_queue.run_poller(&*poller).await });
        Self { gateway, worker, ended }
    }

    /// Opens a stream.
    fn stream(&self) -> Conversation {
        let (sender, receiver) = mpsc::channel(4096);
        let mut codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
        let inbox =
            Streaming::new_request(codec.decoder(), ClientReply::Pieces(receiver), None, None);
        let worker = Arc::clone(&self.worker);
        let peer = IpAddr::from([127, 0, 0, 1]);
        let answers = Answers::new(move |outbox| process(worker, peer, inbox, outbox));
        Conversation { sender, answers }
    }

    /// Requests in flight at all pods.
    fn load(&self) -> u32 {
        self.gateway.snapshot().entries().iter().map(|entry| entry.pod.state().requests()).sum()
    }

    fn ended(&self) -> Vec<RequestSummary> {
        std::mem::take(&mut self.ended.0.lock().unwrap())
    }

    /// Asks for the pods of a request.
    async fn ask(&self, headers: &[(&str, &str)], body: &str) -> Asked {
        self.ask_about(head(headers), None, body).await
    }

    async fn ask_in_subset(&self, subset: Value, body: &str) -> Asked {
        self.ask_about(head(&[]), Some(only(subset)), body).await
    }

    async fn ask_about(&self, head: HttpHeaders, metadata: Option<Metadata>, body: &str) -> Asked {
        let mut stream = self.stream();
        stream.send(Request::RequestHeaders(head), metadata).await;
        stream.body(body.as_bytes(), true).await;
        let first = stream.next().await;
        Asked { first, stream }
    }
}

/// A stream whose request was sent, and the first answer.
struct Asked {
    first: Option<Result<ProcessingResponse, Status>>,
    stream: Conversation,
}

impl Asked {
    /// The answer to the head of the request.
    fn picked(&self) -> Picked {
        let first = self.first.as_ref().expect("an answer").as_ref().unwrap();
        let Some(Response::RequestHeaders(answer)) = &first.response else {
            panic!("not picked: {first:?}")
        };
        let metadata = &first.dynamic_metadata.as_ref().unwrap().fields["envoy.lb"];
        let Some(value::Kind::StructValue(lb)) = &metadata.kind else { panic!("{metadata:?}") };
        let Some(value::Kind::StringValue(metadata)) =
            lb.fields["x-gateway-destination-endpoint"].kind.clone()
        else {
            panic!("{lb:?}")
        };
        let mut scores = HashMap::new();
        if let Some(all) = lb.fields.get("x-gateway-destination-endpoint-scores") {
            let Some(value::Kind::StructValue(all)) = &all.kind else { panic!("{all:?}") };
            for (address, score) in &all.fields {
                let Some(value::Kind::NumberValue(score)) = score.kind else { panic!("{score:?}") };
                scores.insert(address.clone(), score);
            }
        }
        Picked { answer: answer.response.clone().unwrap(), metadata, scores }
    }

    /// The error that the client gets.
    fn refused(self) -> ImmediateResponse {
        let first = self.first.expect("an answer").unwrap();
        let Some(Response::ImmediateResponse(refused)) = first.response else {
            panic!("not refused: {first:?}")
        };
        refused
    }
}

struct Picked {
    answer: CommonResponse,
    metadata: String,
    scores: HashMap<String, f64>,
}

impl Picked {
    /// A header that the answer sets.
    fn header(&self, name: &str) -> Option<String> {
        header(self.answer.header_mutation.as_ref()?.set_headers.iter(), name)
    }

    fn destinations(&self) -> Vec<String> {
        let header = self.header("x-gateway-destination-endpoint").unwrap();
        assert_eq!(header, self.metadata);
        assert!(self.answer.clear_route_cache);
        header.split(',').map(str::to_owned).collect()
    }
}

fn header<'a>(
    mut all: impl Iterator<Item = &'a super::proto::HeaderValueOption>,
    name: &str,
) -> Option<String> {
    let found = all.find_map(|it| it.header.as_ref().filter(|header| header.key == name))?;
    assert!(found.value.is_empty(), "values are raw");
    Some(String::from_utf8(found.raw_value.to_vec()).unwrap())
}

/// The data plane's side of a stream.
struct Conversation {
    sender: mpsc::Sender<Option<Bytes>>,
    answers: Answers,
}

impl Conversation {
    async fn send(&self, request: Request, metadata: Option<Metadata>) {
        let protocol_config = Some(ProtocolConfiguration {
            request_body_mode: BodySendMode::FullDuplexStreamed.into(),
            response_body_mode: BodySendMode::FullDuplexStreamed.into(),
        });
        let message = ProcessingRequest {
            request: Some(request),
            metadata_context: metadata,
            observability_mode: false,
            protocol_config,
        };
        self.send_raw(framed(&message)).await;
    }

    async fn send_raw(&self, bytes: Bytes) {
        self.sender.send(Some(bytes)).await.unwrap();
    }

    async fn body(&self, body: &[u8], end_of_stream: bool) {
        let body = Bytes::copy_from_slice(body);
        self.send(Request::RequestBody(HttpBody { body, end_of_stream }), None).await;
    }

    /// Ends the data plane's side.
    async fn close(&self) {
        self.sender.send(None).await.unwrap();
    }

    async fn next(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        poll_fn(|context| Pin::new(&mut self.answers).poll_next(context)).await
    }

    async fn answer(&mut self) -> Response {
        self.next().await.expect("an answer").unwrap().response.unwrap()
    }
}

/// A message as gRPC frames it.
fn framed(message: &ProcessingRequest) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}

fn header_map(headers: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| HeaderValue {
        key: (*name).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap { headers: headers.iter().map(header).collect() }
}

/// The head of a completion.
fn head(headers: &[(&str, &str)]) -> HttpHeaders {
    let own = [
        (":method", "POST"),
        (":path", "/v1/completions"),
        (":authority", "gateway"),
        ("content-type", "application/json"),
    ];
    HttpHeaders { headers: Some(header_map(&[&own[..], headers].concat())), end_of_stream: false }
}

fn response_head(headers: &[(&str, &str)], end_of_stream: bool) -> Request {
    let headers = Some(header_map(headers));
    Request::ResponseHeaders(HttpHeaders { headers, end_of_stream })
}

fn response_body(body: &[u8], end_of_stream: bool) -> Request {
    Request::ResponseBody(HttpBody { body: Bytes::copy_from_slice(body), end_of_stream })
}

fn trailers() -> HttpTrailers {
    HttpTrailers { trailers: Some(header_map(&[("x-end", "1")])) }
}

fn streamed(common: Option<CommonResponse>) -> (Bytes, bool) {
    let Some(Mutation::StreamedResponse(streamed)) =
        common.and_then(|common| common.body_mutation?.mutation)
    else {
        panic!("not a streamed chunk")
    };
    assert!(streamed.body.len() <= 62_000);
    (streamed.body, streamed.end_of_stream)
}

/// Metadata that names the pod that served.
fn served_by(address: &str) -> Metadata {
    let fields = [("x-gateway-destination-endpoint-served".to_owned(), text(address))].into();
    Metadata { filter_metadata: [("envoy.lb".to_owned(), Struct { fields })].into() }
}

/// The status of an error.
fn code(refused: &ImmediateResponse) -> u16 {
    u16::try_from(refused.status.unwrap().code).unwrap()
}

/// Why a request was dropped, as its client reads it.
fn dropped(refused: &ImmediateResponse) -> Option<String> {
    let headers = refused.headers.as_ref()?.set_headers.iter();
    header(headers, "x-llm-d-request-dropped-reason")
}

fn prompt(text: &str) -> String {
    json!({"model": "m", "prompt": text, "max_tokens": 5}).to_string()
}

/// Metadata that allows only the pods of a subset.
fn only(subset: Value) -> Metadata {
    let fields = [("x-gateway-destination-endpoint-subset".to_owned(), subset)].into();
    let namespace = ("envoy.lb.subset_hint".to_owned(), Struct { fields });
    Metadata { filter_metadata: [namespace].into() }
}

fn text(text: &str) -> Value {
    Value { kind: Some(value::Kind::StringValue(text.to_owned())) }
}
