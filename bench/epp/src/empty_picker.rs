//! A picker that answers at once: it reads what the protocol makes it read, sends it back, and picks
//! one pod after the other. It is what a simple picker costs, not the least: it runs on a runtime of
//! several threads, where a request may be passed from one to another.

use crate::proto::body_mutation::Mutation;
use crate::proto::header_value_option::HeaderAppendAction;
use crate::proto::processing_request::Request as Asked;
use crate::proto::processing_response::Response as Answer;
use crate::proto::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeaderValue, HeaderValueOption,
    HeadersResponse, ProcessingRequest, ProcessingResponse, StreamedBodyResponse,
};
use bytes::Bytes;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tonic::codegen::BoxFuture;
use tonic::codegen::tokio_stream::Stream;
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

struct Pods {
    all: Vec<String>,
    next: AtomicUsize,
}

/// Serves at a port until the process ends.
pub(crate) fn run(port: u16, pods: Vec<String>) -> anyhow::Result<()> {
    let pods = Arc::new(Pods { all: pods, next: AtomicUsize::new(0) });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let pods = Arc::clone(&pods);
            let service = service_fn(move |request| {
                let service = Process(Arc::clone(&pods));
                async move {
                    let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
                    Ok::<_, Infallible>(Grpc::new(codec).streaming(service, request).await)
                }
            });
            let server = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    })
}

struct Process(Arc<Pods>);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Answers;
    type Future = BoxFuture<Response<Answers>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let pods = Arc::clone(&self.0);
        let inbox = request.into_inner();
        let answers = Answers { inbox, pods, body: Vec::new(), ready: VecDeque::new() };
        Box::pin(async move { Ok(Response::new(answers)) })
    }
}

struct Answers {
    inbox: Streaming<ProcessingRequest>,
    pods: Arc<Pods>,
    body: Vec<Bytes>,
    ready: VecDeque<ProcessingResponse>,
}

impl Answers {
    fn push(&mut self, response: Answer) {
        self.ready
            .push_back(ProcessingResponse { response: Some(response), dynamic_metadata: None });
    }

    fn destined(&mut self) {
        let at = self.pods.next.fetch_add(1, Relaxed) % self.pods.all.len();
        let header = HeaderValue {
            key: "x-gateway-destination-endpoint".to_owned(),
            value: String::new(),
            raw_value: self.pods.all[at].clone().into(),
        };
        let append_action = HeaderAppendAction::OverwriteIfExistsOrAdd.into();
        let set = HeaderValueOption { header: Some(header), append_action };
        let mutation = HeaderMutation { set_headers: vec![set], remove_headers: Vec::new() };
        let response = CommonResponse {
            header_mutation: Some(mutation),
            body_mutation: None,
            clear_route_cache: true,
        };
        self.push(Answer::RequestHeaders(HeadersResponse { response: Some(response) }));
    }

    fn on(&mut self, asked: Asked) {
        match asked {
            Asked::RequestHeaders(head) => {
                if head.end_of_stream {
                    self.destined();
                }
            }
            Asked::RequestBody(chunk) => {
                self.body.push(chunk.body);
                if chunk.end_of_stream {
                    self.destined();
                    let chunks = std::mem::take(&mut self.body);
                    let last = chunks.len() - 1;
                    for (at, body) in chunks.into_iter().enumerate() {
                        self.push(Answer::RequestBody(streamed(body, at == last)));
                    }
                }
            }
            Asked::ResponseHeaders(_) => {
                let response = Some(CommonResponse::default());
                self.push(Answer::ResponseHeaders(HeadersResponse { response }));
            }
            Asked::ResponseBody(chunk) => {
                self.push(Answer::ResponseBody(streamed(chunk.body, chunk.end_of_stream)));
            }
            Asked::RequestTrailers(_) | Asked::ResponseTrailers(_) => {}
        }
    }
}

fn streamed(body: Bytes, end_of_stream: bool) -> BodyResponse {
    let chunk = StreamedBodyResponse { body, end_of_stream };
    let mutation = BodyMutation { mutation: Some(Mutation::StreamedResponse(chunk)) };
    let response = CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() };
    BodyResponse { response: Some(response) }
}

impl Stream for Answers {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(answer) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(answer)));
            }
            match ready!(Pin::new(&mut self.inbox).poll_next(context)) {
                Some(Ok(message)) => {
                    if let Some(asked) = message.request {
                        self.on(asked);
                    }
                }
                _ => return Poll::Ready(None),
            }
        }
    }
}
