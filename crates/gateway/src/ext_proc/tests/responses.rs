//! Responses: what they say about their pods, and those that come in another form than asked for.

use super::*;
use crate::observe::summary::RequestEnd;
use std::time::Duration;

impl Asked {
    /// The data plane takes the request, and its response is whole.
    async fn answered(&mut self, served: Option<Metadata>) {
        let Response::RequestBody(_) = self.stream.answer().await else { panic!("no body") };
        self.stream.send(response_head(&[(":status", "200")], false), served).await;
        assert!(matches!(self.stream.answer().await, Response::ResponseHeaders(_)));
        self.stream.send(response_body(b"{}", true), None).await;
        assert!(matches!(self.stream.answer().await, Response::ResponseBody(_)));
    }
}

impl Bench {
    /// Makes pods report so many waiting requests.
    fn report_waiting(&self, waiting: [u32; 3]) {
        for (entry, waiting) in self.gateway.snapshot().entries().iter().zip(waiting) {
            entry.pod.state().report(waiting, 0.5);
        }
    }
}

/// A pod that is busy, and one that Envoy cannot reach, look alike but for a header.
#[tokio::test(start_paused = true)]
async fn a_response_that_only_the_data_plane_can_have_sent_makes_its_pod_a_suspect() {
    let pods = format!("pods: [{{url: \"http://{}\", model: m}}]\n", PODS[0]);
    for (status, headers, is_suspect) in [
        ("503", &[][..], true),
        ("504", &[], true),
        ("502", &[("content-type", "text/plain")], true),
        ("503", &[("x-envoy-upstream-service-time", "12")], false),
        ("503", &[("retry-after", "1")], false),
        ("500", &[], false),
        ("429", &[], false),
    ] {
        let bench = Bench::of(&pods);
        // Activity is recorded in steps.
        tokio::time::advance(Duration::from_secs(1)).await;
        for number in 0..2 {
            let mut asked = bench.ask(&[], &prompt(&number.to_string())).await;
            assert_eq!(asked.picked().destinations(), [PODS[0]], "it is avoided, not refused");
            let Response::RequestBody(_) = asked.stream.answer().await else { panic!() };
            let head = response_head(&[&[(":status", status)], headers].concat(), true);
            asked.stream.send(head, None).await;
            assert!(matches!(asked.stream.answer().await, Response::ResponseHeaders(_)));
        }
        let snapshot = bench.gateway.snapshot();
        let endpoint = &snapshot.entries()[0].endpoint;
        assert_eq!(endpoint.tick(bench.gateway.now()), is_suspect, "a probe: {status} {headers:?}");
        let was_heard = endpoint.was_active_within(Duration::from_secs(60));
        assert_eq!(was_heard, !is_suspect && status != "500", "{status} {headers:?}");
    }
}

/// The data plane has sent nothing to its client while it has no answer to the head.
#[tokio::test(start_paused = true)]
async fn a_held_head_is_answered_with_the_first_part_of_the_body() {
    const HOLDS: &str = "listen: {epp: {address: \"127.0.0.1:9002\", hold_head: true}}\n\
                         pods: [{url: \"http://192.168.1.1:8000\", model: m}]\n";
    let bench = Bench::of_text(HOLDS);
    let head = |is_last| response_head(&[(":status", "200")], is_last);
    for then in [response_body(b"{}", true), Request::ResponseTrailers(trailers())] {
        let mut asked = bench.ask(&[], &prompt("x")).await;
        let Response::RequestBody(_) = asked.stream.answer().await else { panic!("no body") };
        asked.stream.send(head(false), None).await;
        let answered = tokio::time::timeout(Duration::from_secs(60), asked.stream.next()).await;
        assert!(answered.is_err(), "{answered:?}");
        asked.stream.send(then, None).await;
        assert!(matches!(asked.stream.answer().await, Response::ResponseHeaders(_)));
    }
    let mut asked = bench.ask(&[], &prompt("x")).await;
    let Response::RequestBody(_) = asked.stream.answer().await else { panic!("no body") };
    asked.stream.send(head(true), None).await;
    assert!(matches!(asked.stream.answer().await, Response::ResponseHeaders(_)), "no body comes");
}

/// What was predicted for the chosen pod says nothing about the one that served.
#[tokio::test]
async fn the_prediction_of_a_request_is_that_of_the_pod_that_served_it() {
    let bench = Bench::with(
        "profiles:\n  p:\n    prepare: [text_blocks]\n    filter: [healthy, model]\n    \
         score: [queue_depth]\n    pick: max_score\n",
    );
    let body = prompt(&"word ".repeat(800));
    bench.report_waiting([9, 0, 9]);
    let mut asked = bench.ask(&[], &body).await;
    assert_eq!(asked.picked().destinations()[0], PODS[1]);
    asked.answered(None).await;
    assert_eq!(bench.ended()[0].predicted_tokens, Some(0), "no pod had it");
    bench.report_waiting([0, 9, 9]);
    let mut predicted = Vec::new();
    for served in [PODS[1], PODS[0]] {
        let mut asked = bench.ask(&[], &body).await;
        assert_eq!(asked.picked().destinations()[0], PODS[0]);
        asked.answered(Some(served_by(served))).await;
        let [summary] = &bench.ended()[..] else { panic!("not one summary") };
        assert_eq!(summary.pod.as_ref().unwrap().1.as_str(), served);
        predicted.push(summary.predicted_tokens);
    }
    assert!(predicted[0] > Some(500), "{predicted:?}");
    assert_eq!(predicted[1], Some(0), "the first request was not sent there: {predicted:?}");
}

#[tokio::test]
async fn a_request_for_cached_prompts_only_is_refused_until_the_decode_pod_holds_its_prompt() {
    let bench = Bench::of(
        "pods:\n  - {url: \"http://192.168.1.1:8000\", model: m, role: prefill}\n  \
         - {url: \"http://192.168.1.2:8000\", model: m, role: decode}\n\
         profiles:\n  pd:\n    prepare: [text_blocks]\n    selectors:\n      \
         prefill: {filter: [healthy, model], pick: max_score}\n      \
         decode: {filter: [healthy, model], pick: max_score}\n    \
         workflow: {prefill_decode: {min_uncached_tokens: 256}}\n",
    );
    let body = prompt(&"word ".repeat(800));
    let cached = [("prefer", "if-available")];
    assert_eq!(code(&bench.ask(&cached, &body).await.refused()), 412);
    assert_eq!(bench.load(), 0, "neither pod has work");
    let mut asked = bench.ask(&[], &body).await;
    assert!(asked.picked().header("x-prefiller-host-port").is_some());
    asked.answered(None).await;
    let asked = bench.ask(&cached, &body).await;
    let picked = asked.picked();
    assert_eq!(picked.destinations(), [PODS[1]]);
    assert_eq!(picked.header("x-prefiller-host-port"), None, "there is nothing to compute");
}

#[tokio::test]
async fn messages_that_cannot_come_end_the_stream_with_the_cure() {
    for (message, says) in [
        (Some(response_body(b"{}", true)), "`response_header_mode: SEND`"),
        (Some(Request::ResponseTrailers(trailers())), "`response_header_mode: SEND`"),
        (Some(Request::RequestTrailers(trailers())), "a part of the request came twice"),
        (None, "empty or of an unknown kind"),
    ] {
        let bench = Bench::new();
        let mut asked = bench.ask(&[], &prompt("x")).await;
        assert_eq!(asked.picked().destinations().len(), 3);
        let Response::RequestBody(_) = asked.stream.answer().await else { panic!() };
        let message = ProcessingRequest { request: message, ..ProcessingRequest::default() };
        asked.stream.send_raw(framed(&message)).await;
        let status = asked.stream.next().await.unwrap().unwrap_err();
        assert!(status.message().contains(says), "{status}");
        assert_eq!(bench.load(), 0);
        let [summary] = &bench.ended()[..] else { panic!("not one summary") };
        assert_eq!((summary.ended, summary.status), (RequestEnd::ClientLeft, 499));
    }
}

#[test]
fn every_cause_of_a_rejection_has_the_status_and_the_reason_of_the_protocol() {
    use wornpath_routing::Rejection;
    for (rejection, expected) in [
        (Rejection::unavailable("no pod"), (503, Some("rejected-no-endpoints"))),
        (Rejection::busy("full"), (429, Some("rejected-saturated"))),
        (Rejection::shutting_down(), (503, Some("rejected-shutting-down"))),
        (Rejection::refused(400, "bad".to_owned()), (400, None)),
    ] {
        let message =
            super::super::messages::refused(&rejection.into(), crate::dialect::Api::OTHER);
        let Some(Response::ImmediateResponse(refused)) = message.response else { panic!() };
        assert_eq!((code(&refused), dropped(&refused).as_deref()), expected);
    }
}

/// Profiles read one name only.
#[test]
fn service_level_objectives_count_under_their_present_name_and_both_former_ones() {
    for kind in ["ttft", "tpot"] {
        let present = format!("x-llm-d-slo-{kind}-ms");
        for name in
            [present.clone(), format!("x-gateway-slo-{kind}-ms"), format!("x-slo-{kind}-ms")]
        {
            let mut headers = hyper::HeaderMap::new();
            let name: hyper::header::HeaderName = name.parse().unwrap();
            headers.insert(name, "250".parse().unwrap());
            super::super::head::add_present_names(&mut headers);
            assert_eq!(headers[&present], "250");
            headers.insert("x-slo-ttft-ms", "9".parse().unwrap());
            super::super::head::add_present_names(&mut headers);
            assert_eq!(headers[&present], "250", "the present name counts more");
        }
    }
}
