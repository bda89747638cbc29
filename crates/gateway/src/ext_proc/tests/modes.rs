//! Ways to send the body of a response: each passes unchanged, and a request asks the engine only
//! for what the picker can take out again.

use super::*;
use crate::observe::summary::RequestEnd;

const STREAM: &str = r#"{"model":"m","prompt":"x","stream":true}"#;

impl Conversation {
    /// The first message of a stream, whose responses will be sent in a mode.
    async fn open(&self, head: HttpHeaders, mode: BodySendMode) {
        let protocol_config = Some(ProtocolConfiguration {
            request_body_mode: BodySendMode::FullDuplexStreamed.into(),
            response_body_mode: mode.into(),
        });
        let message = ProcessingRequest {
            request: Some(Request::RequestHeaders(head)),
            protocol_config,
            ..ProcessingRequest::default()
        };
        self.send_raw(framed(&message)).await;
    }

    /// Sends a request, and returns its body as the pod gets it.
    async fn sent_to_pod(&mut self, mode: BodySendMode, body: &str) -> serde_json::Value {
        self.open(head(&[]), mode).await;
        self.body(body.as_bytes(), true).await;
        assert!(matches!(self.answer().await, Response::RequestHeaders(_)));
        let Response::RequestBody(chunk) = self.answer().await else { panic!("no body") };
        let (body, is_last) = streamed(chunk.response);
        assert!(is_last);
        serde_json::from_slice(&body).unwrap()
    }
}

#[tokio::test]
async fn token_counts_are_asked_for_only_if_the_picker_can_take_them_out_again() {
    for (mode, asks) in [
        (BodySendMode::FullDuplexStreamed, true),
        (BodySendMode::Streamed, false),
        (BodySendMode::Buffered, false),
        (BodySendMode::None, false),
    ] {
        let bench = Bench::new();
        let sent = bench.stream().sent_to_pod(mode, STREAM).await;
        assert_eq!(sent.get("stream_options").is_some(), asks, "{mode:?}");
        let client =
            r#"{"model":"m","prompt":"x","stream":true,"stream_options":{"include_usage":true}}"#;
        let sent = bench.stream().sent_to_pod(mode, client).await;
        assert_eq!(sent["stream_options"]["include_usage"], true, "the client asks: {mode:?}");
    }
}

#[tokio::test]
async fn chunks_that_need_an_answer_of_their_own_pass_unchanged_and_are_counted() {
    for mode in [BodySendMode::Streamed, BodySendMode::Buffered, BodySendMode::BufferedPartial] {
        let bench = Bench::new();
        let mut stream = bench.stream();
        stream.sent_to_pod(mode, r#"{"model":"m","prompt":"x"}"#).await;
        stream.send(response_head(&[(":status", "200")], false), None).await;
        assert!(matches!(stream.answer().await, Response::ResponseHeaders(_)));
        let usage = br#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
        stream.send(response_body(usage, true), None).await;
        let Response::ResponseBody(chunk) = stream.answer().await else { panic!("{mode:?}") };
        assert_eq!(chunk.response.and_then(|common| common.body_mutation), None, "{mode:?}");
        let [summary] = &bench.ended()[..] else { panic!("{mode:?}") };
        assert_eq!(summary.ended, RequestEnd::Whole);
        assert_eq!(summary.usage.output_tokens, Some(2), "{mode:?}");
        assert_eq!(bench.load(), 0);
    }
}

#[tokio::test]
async fn trailers_end_a_response_in_every_mode_that_sends_them() {
    for mode in [BodySendMode::Streamed, BodySendMode::Buffered, BodySendMode::BufferedPartial] {
        let bench = Bench::new();
        let mut stream = bench.stream();
        stream.sent_to_pod(mode, r#"{"model":"m","prompt":"x"}"#).await;
        stream.send(response_head(&[(":status", "200")], false), None).await;
        assert!(matches!(stream.answer().await, Response::ResponseHeaders(_)));
        let usage = br#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
        stream.send(response_body(usage, false), None).await;
        let Response::ResponseBody(chunk) = stream.answer().await else { panic!("{mode:?}") };
        assert_eq!(chunk.response.and_then(|common| common.body_mutation), None, "{mode:?}");
        assert_eq!(bench.load(), 1, "it is not over");
        stream.send(Request::ResponseTrailers(trailers()), None).await;
        let Response::ResponseTrailers(answer) = stream.answer().await else { panic!("{mode:?}") };
        assert_eq!(answer.header_mutation, None, "{mode:?}");
        let [summary] = &bench.ended()[..] else { panic!("{mode:?}") };
        assert_eq!(summary.ended, RequestEnd::Whole);
        assert_eq!(summary.usage.output_tokens, Some(2), "{mode:?}");
        assert_eq!(bench.load(), 0);
    }
}

#[tokio::test]
async fn a_response_whose_body_is_not_sent_ends_with_its_head() {
    let bench = Bench::new();
    let mut stream = bench.stream();
    stream.sent_to_pod(BodySendMode::None, STREAM).await;
    assert_eq!(bench.load(), 1);
    stream.send(response_head(&[(":status", "200")], false), None).await;
    assert!(matches!(stream.answer().await, Response::ResponseHeaders(_)));
    assert_eq!(bench.load(), 0);
    stream.close().await;
    assert!(stream.next().await.is_none());
    let [summary] = &bench.ended()[..] else { panic!("not one summary") };
    assert_eq!((summary.ended, summary.status), (RequestEnd::Whole, 200));
}
