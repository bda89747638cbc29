//! Data planes that send the client's headers and body, then nothing more, and wait for the answer.

use super::*;

/// The head of a request without pseudo headers, with texts instead of raw values.
fn client_head(name: &str, value: &str) -> HttpHeaders {
    let header =
        HeaderValue { key: name.to_owned(), value: value.to_owned(), raw_value: Bytes::new() };
    HttpHeaders { headers: Some(HeaderMap { headers: vec![header] }), end_of_stream: false }
}

impl Conversation {
    /// Sends a whole request, and ends the data plane's side.
    async fn ask_barely(&self, head: HttpHeaders, body: &str) {
        let body = HttpBody { body: Bytes::copy_from_slice(body.as_bytes()), end_of_stream: true };
        for request in [Request::RequestHeaders(head), Request::RequestBody(body)] {
            let request = Some(request);
            self.send_raw(framed(&ProcessingRequest { request, ..ProcessingRequest::default() }))
                .await;
        }
        self.close().await;
    }
}

#[tokio::test]
async fn a_request_without_a_path_is_one_of_the_api_that_its_body_has_the_fields_of() {
    for (body, api) in [
        (r#"{"model":"m","prompt":"x"}"#, "completions"),
        (r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#, "chat"),
        (r#"{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x"}"#, "chat"),
    ] {
        let bench = Bench::new();
        let mut stream = bench.stream();
        stream.ask_barely(client_head("Content-Type", "application/json"), body).await;
        let first = stream.next().await;
        let mut asked = Asked { first, stream };
        assert_eq!(asked.picked().destinations().len(), 3, "{body}");
        let Response::RequestBody(chunk) = asked.stream.answer().await else { panic!("{body}") };
        assert_eq!(streamed(chunk.response), (Bytes::from(body), true));
        assert!(asked.stream.next().await.is_none(), "the picker ends the stream as well");
        let [summary] = &bench.ended()[..] else { panic!("{body}") };
        assert_eq!(summary.api.name(), api);
        assert_eq!(bench.load(), 0);
    }
}

#[tokio::test]
async fn a_request_whose_data_plane_sends_no_more_still_waits_for_a_pod() {
    let rules = "    filter: [healthy, model, {concurrency: {requests: 1, on_empty: hold}}]\n    pick: max_score\n    hold: {deadline: 60s}\n";
    let pods = "pods: [{url: \"http://192.168.1.1:8000\", model: m}]\n";
    let bench = Bench::of(&format!("{pods}profiles:\n  p:\n    prepare: []\n{rules}"));
    let busy = bench.ask(&[], &prompt("x")).await;
    assert_eq!(busy.picked().destinations().len(), 1);
    let mut stream = bench.stream();
    stream.ask_barely(client_head("x-request-id", "1"), r#"{"model":"m","prompt":"y"}"#).await;
    let moment = std::time::Duration::from_millis(1);
    while bench.gateway.waiting() == 0 {
        assert!(tokio::time::timeout(moment, stream.next()).await.is_err(), "it does not wait");
    }
    drop(busy);
    let first = stream.next().await;
    assert_eq!(Asked { first, stream }.picked().destinations(), ["192.168.1.1:8000"]);
    assert_eq!((bench.gateway.waiting(), bench.load()), (0, 0));
}
