//! Which of the requests that wait for a pod is picked next.

use super::*;
use std::time::Duration;
use wornpath_config::PodConfig;

/// A picker for one pod, which serves one request at a time.
fn one_at_a_time() -> Bench {
    waiting_for("60s")
}

/// The same, where a request waits so long, and five at most.
fn waiting_for(deadline: &str) -> Bench {
    Bench::of_text(&format!(
        "listen: {{epp: {{address: \"127.0.0.1:9002\", objectives: [urgent=7, nightly=1]}}}}\n\
         pods: [{{url: \"http://192.168.1.1:8000\", model: m}}]\n\
         profiles:\n  p:\n    prepare: []\n    \
         filter: [healthy, model, {{concurrency: {{requests: 1, on_empty: hold}}}}]\n    \
         pick: max_score\n    hold: {{deadline: {deadline}, capacity: 5}}\n"
    ))
}

/// A request that waits, by the value of its header.
struct Waiting {
    name: &'static str,
    stream: Conversation,
}

impl Bench {
    /// Sends a request with one header, which then waits.
    async fn queue(&self, header: (&'static str, &'static str)) -> Waiting {
        let before = self.gateway.waiting();
        let mut stream = self.stream();
        stream.send(Request::RequestHeaders(head(&[header])), None).await;
        stream.body(prompt("x").as_bytes(), true).await;
        while self.gateway.waiting() == before {
            assert!(!stream.has_answer().await, "{header:?} does not wait");
        }
        Waiting { name: header.1, stream }
    }

    /// The requests in the order in which they are picked, each once the one before it has ended.
    async fn served(&self, busy: Asked, mut waiting: Vec<Waiting>) -> Vec<&'static str> {
        let mut order = Vec::new();
        drop(busy);
        while !waiting.is_empty() {
            let mut picked = Vec::new();
            while picked.is_empty() {
                for (at, one) in waiting.iter_mut().enumerate() {
                    if one.stream.has_answer().await {
                        picked.push(at);
                    }
                }
            }
            assert_eq!(picked.len(), 1, "the pod serves one request at a time");
            order.push(waiting.remove(picked[0]).name);
        }
        order
    }
}

impl Bench {
    /// A picker for a model whose requests wait for a first pod, and which has none.
    fn without_pods() -> Self {
        Self::of_text(
            "listen: {epp: \"127.0.0.1:9002\", admin: \"127.0.0.1:9090\"}\n\
             models: [{name: m, tokenizer: bytes, wait_for_pod: 60s}]\n",
        )
    }

    fn add_pod(&self, address: &str) {
        let mut pod = PodConfig::new(&format!("http://{address}"));
        pod.facts.models = vec!["m".into()];
        self.gateway.pods().add_pod(pod).unwrap();
        self.gateway.snapshot().named(address).unwrap().pod.state().set_health(Health::Up);
    }

    /// Sends a request that may go to these pods, or to any.
    async fn begin(&self, subset: Option<&str>) -> Conversation {
        let stream = self.stream();
        let metadata = subset.map(|pods| only(text(pods)));
        stream.send(Request::RequestHeaders(head(&[])), metadata).await;
        stream.body(prompt("x").as_bytes(), true).await;
        stream
    }

    /// Requests that wait for the model, in whatever place.
    fn waiting_for_model(&self) -> usize {
        self.gateway.model_waits.of(&"m".into(), self.gateway.now()).requests
    }
}

#[tokio::test]
async fn a_request_waits_for_the_first_pod_of_its_model_also_where_only_some_pods_may_serve_it() {
    for subset in [None, Some("192.168.1.9:8000, 192.168.1.2:8000"), Some("192.168.1.2")] {
        let bench = Bench::without_pods();
        let mut stream = bench.begin(subset).await;
        assert!(!stream.has_answer().await && bench.waiting_for_model() == 1, "{subset:?}");
        bench.add_pod(PODS[1]);
        let first = stream.next().await;
        assert_eq!(Asked { first, stream }.picked().destinations(), [PODS[1]], "{subset:?}");
        assert_eq!(bench.waiting_for_model(), 0);
    }
}

#[tokio::test]
async fn a_request_that_no_pod_may_serve_does_not_wait_for_one() {
    for subset in ["", "no address"] {
        let bench = Bench::without_pods();
        let mut stream = bench.begin(Some(subset)).await;
        let first = stream.next().await;
        let refused = Asked { first, stream }.refused();
        let reason = Some("rejected-no-endpoints".to_owned());
        assert_eq!((code(&refused), dropped(&refused)), (503, reason), "{subset}");
        assert_eq!(bench.waiting_for_model(), 0);
    }
}

#[tokio::test]
async fn a_queued_request_goes_to_a_pod_of_its_subset_that_comes_meanwhile() {
    let bench = one_at_a_time();
    let busy = bench.ask(&[], &prompt("x")).await;
    assert_eq!(busy.picked().destinations(), [PODS[0]]);
    let mut stream = bench.begin(Some("192.168.1.1:8000,192.168.1.2:8000")).await;
    assert!(!stream.has_answer().await && bench.gateway.waiting() == 1);
    bench.add_pod(PODS[2]);
    bench.gateway.wait_queue.poll(&*bench.worker);
    assert!(!stream.has_answer().await, "it may not go there");
    bench.add_pod(PODS[1]);
    bench.gateway.wait_queue.poll(&*bench.worker);
    let first = stream.next().await;
    assert_eq!(Asked { first, stream }.picked().destinations()[0], PODS[1]);
    drop(busy);
    assert_eq!((bench.load(), bench.gateway.waiting()), (0, 0));
}

impl Conversation {
    /// Whether the next answer comes within a moment; what comes is not kept.
    async fn has_answer(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(1), self.next()).await.is_ok()
    }
}

#[tokio::test]
async fn requests_wait_in_the_order_of_their_objectives_under_both_names_of_the_header() {
    for name in ["x-llm-d-inference-objective", "x-gateway-inference-objective"] {
        let bench = one_at_a_time();
        let busy = bench.ask(&[], &prompt("x")).await;
        assert_eq!(busy.picked().destinations().len(), 1);
        let mut waiting = Vec::new();
        for objective in ["nightly", "unheard of", "urgent"] {
            waiting.push(bench.queue((name, objective)).await);
        }
        let order = bench.served(busy, waiting).await;
        assert_eq!(order, ["urgent", "unheard of", "nightly"], "{name}");
    }
}

#[tokio::test]
async fn a_fairness_id_is_not_delayed_by_the_many_requests_of_another_one() {
    for name in ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"] {
        let bench = one_at_a_time();
        let busy = bench.ask(&[(name, "many")], &prompt("x")).await;
        assert_eq!(busy.picked().destinations().len(), 1);
        let mut waiting = Vec::new();
        for id in ["many", "many", "many", "many", "few"] {
            waiting.push(bench.queue((name, id)).await);
        }
        let order = bench.served(busy, waiting).await;
        let turn = order.iter().position(|id| *id == "few").unwrap();
        assert!(turn <= 1, "{name}: {order:?}");
    }
}

impl Bench {
    /// The error of a request whose deadline passes.
    async fn expired(&self, mut waiting: Waiting) -> ImmediateResponse {
        loop {
            self.gateway.wait_queue.poll(&*self.worker);
            let moment = Duration::from_millis(1);
            if let Ok(first) = tokio::time::timeout(moment, waiting.stream.next()).await {
                return Asked { first, stream: waiting.stream }.refused();
            }
        }
    }
}

#[tokio::test]
async fn a_dropped_request_says_whether_the_queue_was_full_or_its_time_was_up_or_no_pod_was_left() {
    let bench = one_at_a_time();
    let busy = bench.ask(&[], &prompt("x")).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(bench.queue(("x-any", "1")).await);
    }
    let refused = bench.ask(&[], &prompt("x")).await.refused();
    assert_eq!((code(&refused), dropped(&refused)), (429, Some("rejected-saturated".to_owned())));
    drop((busy, waiting));

    let bench = waiting_for("30ms");
    let busy = bench.ask(&[], &prompt("x")).await;
    let late = bench.queue(("x-any", "1")).await;
    let refused = bench.expired(late).await;
    assert_eq!((code(&refused), dropped(&refused)), (429, Some("rejected-ttl-expired".to_owned())));
    let late = bench.queue(("x-any", "2")).await;
    for entry in bench.gateway.snapshot().entries() {
        entry.pod.state().set_health(Health::Down);
    }
    let refused = bench.expired(late).await;
    assert_eq!(
        (code(&refused), dropped(&refused)),
        (503, Some("rejected-no-endpoints".to_owned()))
    );
    assert_eq!(bench.load(), 1);
    drop(busy);
    assert_eq!((bench.load(), bench.gateway.waiting()), (0, 0));
}
