//! Any split of bodies, any end of a stream: nothing is lost, nothing is counted twice.

use super::*;
use crate::observe::summary::RequestEnd;
use proptest::prelude::*;
use proptest::sample::Index;
use tokio::runtime::Builder;

/// How a body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    LastChunk,
    EmptyChunk,
    Trailers,
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![Just(Ending::LastChunk), Just(Ending::EmptyChunk), Just(Ending::Trailers)]
}

/// Cuts bytes at some places; two equal places give an empty chunk.
fn cut(bytes: &[u8], places: &[Index]) -> Vec<Vec<u8>> {
    let mut at: Vec<_> = places.iter().map(|place| place.index(bytes.len() + 1)).collect();
    at.sort_unstable();
    let ends = at.iter().copied().chain([bytes.len()]);
    let mut start = 0;
    ends.map(|end| bytes[std::mem::replace(&mut start, end)..end].to_vec()).collect()
}

/// The messages of a body, made by `chunk` and `trailers`.
fn messages(
    chunks: Vec<Vec<u8>>,
    ending: Ending,
    chunk: fn(HttpBody) -> Request,
    trailers: Request,
) -> Vec<Request> {
    let last = chunks.len() - 1;
    let mut all: Vec<_> = chunks
        .into_iter()
        .enumerate()
        .map(|(at, body)| {
            let end_of_stream = at == last && ending == Ending::LastChunk;
            chunk(HttpBody { body: body.into(), end_of_stream })
        })
        .collect();
    match ending {
        Ending::LastChunk => {}
        Ending::EmptyChunk => {
            all.push(chunk(HttpBody { body: Bytes::new(), end_of_stream: true }));
        }
        Ending::Trailers => all.push(trailers),
    }
    all
}

/// What came back of a body.
#[derive(Default)]
struct Echo {
    bytes: Vec<u8>,
    has_ended: bool,
    has_trailers: bool,
}

impl Echo {
    fn chunk(&mut self, common: Option<CommonResponse>) {
        let (body, end) = streamed(common);
        assert!(!self.has_ended && !self.has_trailers, "a chunk after the end");
        self.bytes.extend_from_slice(&body);
        self.has_ended = end;
    }

    fn check(&self, bytes: &[u8], ending: Ending) {
        assert_eq!(self.bytes, bytes);
        assert_eq!(self.has_trailers, ending == Ending::Trailers);
        assert_eq!(self.has_ended, ending != Ending::Trailers);
    }
}

/// Sends messages, possibly in pieces that cross them.
async fn send_in_pieces(stream: &Conversation, all: Vec<Request>, piece: usize) {
    let mut bytes = BytesMut::new();
    for request in all {
        let message = ProcessingRequest { request: Some(request), ..ProcessingRequest::default() };
        bytes.extend_from_slice(&framed(&message));
    }
    let mut bytes = bytes.freeze();
    while !bytes.is_empty() {
        let piece = bytes.split_to(piece.min(bytes.len()));
        stream.send_raw(piece).await;
    }
}

fn block_on(test: impl Future<Output = ()>) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

const SSE: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\
                   \"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_request_and_response_passes_whole_and_is_counted_once(
        words in 1..20_000_usize,
        request_cuts in prop::collection::vec(any::<Index>(), 0..8),
        response_cuts in prop::collection::vec(any::<Index>(), 0..8),
        request_ending in ending(),
        response_ending in ending(),
        piece in 1000..100_000_usize,
    ) {
        block_on(async {
            let bench = Bench::new();
            let body = prompt(&"word ".repeat(words));
            let mut stream = bench.stream();
            let chunks = cut(body.as_bytes(), &request_cuts);
            let mut all = vec![Request::RequestHeaders(head(&[]))];
            let end = Request::RequestTrailers(trailers());
            all.extend(messages(chunks, request_ending, Request::RequestBody, end));
            let sender = stream.sender();
            let sent = send_in_pieces(&sender, all, piece);
            let ((), first) = tokio::join!(sent, stream.next_answer());
            let Some(Response::RequestHeaders(_)) = first.response else { panic!("{first:?}") };
            let mut echo = Echo::default();
            while !echo.has_ended && !echo.has_trailers {
                match stream.answer().await {
                    Response::RequestBody(chunk) => echo.chunk(chunk.response),
                    Response::RequestTrailers(_) => echo.has_trailers = true,
                    other => panic!("{other:?}"),
                }
            }
            echo.check(body.as_bytes(), request_ending);
            assert_eq!(bench.load(), 1);
            let head = response_head(&[(":status", "200"), ("content-type", "text/event-stream")], false);
            let chunks = cut(SSE.as_bytes(), &response_cuts);
            let mut all = vec![head];
            let end = Request::ResponseTrailers(trailers());
            all.extend(messages(chunks, response_ending, Request::ResponseBody, end));
            send_in_pieces(&stream.sender(), all, piece).await;
            stream.close().await;
            assert!(matches!(stream.answer().await, Response::ResponseHeaders(_)));
            let mut echo = Echo::default();
            while let Some(answer) = stream.next().await {
                match answer.unwrap().response.unwrap() {
                    Response::ResponseBody(chunk) => echo.chunk(chunk.response),
                    Response::ResponseTrailers(_) => echo.has_trailers = true,
                    other => panic!("{other:?}"),
                }
            }
            echo.check(SSE.as_bytes(), response_ending);
            drop(stream);
            let [summary] = &bench.ended()[..] else { panic!("not one summary") };
            assert_eq!((summary.ended, summary.status), (RequestEnd::Whole, 200));
            let usage = summary.usage;
            assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.output_tokens), (Some(9), Some(4), Some(2)));
            assert_eq!(bench.load(), 0);
        });
    }

    #[test]
    fn a_stream_that_ends_anywhere_releases_its_load_once(
        sent in 0..9_usize,
        answers in 0..6_usize,
        is_closed in any::<bool>(),
    ) {
        block_on(async {
            let bench = Bench::new();
            let body = prompt("a few words");
            let (one, two) = body.split_at(10);
            let chunk = |body: &str, end_of_stream| HttpBody { body: Bytes::copy_from_slice(body.as_bytes()), end_of_stream };
            let all = [
                Request::RequestHeaders(head(&[])),
                Request::RequestBody(chunk(one, false)),
                Request::RequestBody(chunk(two, true)),
                response_head(&[(":status", "200"), ("content-type", "text/event-stream")], false),
                response_body(&SSE.as_bytes()[..20], false),
                response_body(&SSE.as_bytes()[20..50], false),
                response_body(&SSE.as_bytes()[50..], false),
                response_body(b"", true),
            ];
            let mut stream = bench.stream();
            // The session runs only while its answers are awaited.
            let mut has_run = is_closed;
            for (at, request) in all.into_iter().take(sent).enumerate() {
                stream.send(request, None).await;
                if at >= 2 && answers > at {
                    has_run = true;
                    let moment = std::time::Duration::from_millis(1);
                    drop(tokio::time::timeout(moment, stream.next()).await);
                }
            }
            if is_closed {
                stream.close().await;
                let end = async { while let Some(Ok(_)) = stream.next().await {} };
                end.await;
            }
            drop(stream);
            assert_eq!(bench.load(), 0);
            assert_eq!(bench.ended().len(), usize::from(has_run && sent > 0));
            assert_eq!(bench.gateway.bodies().held(), 0);
        });
    }
}

impl Conversation {
    /// A second handle for sending while answers are awaited.
    fn sender(&self) -> Conversation {
        let sender = self.sender.clone();
        Conversation { sender, answers: Answers::new(|_| async { Ok(()) }) }
    }

    async fn next_answer(&mut self) -> ProcessingResponse {
        self.next().await.expect("an answer").unwrap()
    }
}
