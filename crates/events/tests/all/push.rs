//! Pushed events, from real HTTP requests to the index.

use crate::push_router::{FREE_PORT, PushRouter};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wornpath_events::{BlockIdScheme, FeedState};

const JSON: &str = "content-type: application/json\r\n";

impl PushRouter {
    /// Posts, and returns the status line and the body.
    async fn post(&self, path: &str, headers: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    async fn tell(&self, path: &str, body: &str) -> serde_json::Value {
        let (status, answer) = self.post(path, JSON, body).await;
        assert_eq!(status, "HTTP/1.1 200 OK", "{answer}");
        serde_json::from_str(&answer).unwrap()
    }
}

#[tokio::test]
async fn a_sidecar_registers_stores_evicts_and_shuts_down() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    router.tell("/events/register", r#"{"pod": "pod", "epoch": 1}"#).await;
    let stored = r#"{"pod": "pod", "epoch": 1, "sequence": 0, "stored":
        [{"hashes": [1, 2, 3], "tokens": [7, 7, 8, 8, 9, 9], "block_size": 2}]}"#;
    router.tell("/events/stored", stored).await;
    router.until("stored", |router| router.count() == 3).await;
    let evicted = r#"{"pod": "pod", "epoch": 1, "sequence": 1, "evicted": [3]}"#;
    router.tell("/events/evicted", evicted).await;
    // Retries are harmless.
    router.tell("/events/stored", stored).await;
    router.tell("/events/evicted", evicted).await;
    router.until("evicted", |router| router.count() == 2).await;
    router.tell("/events/bye", r#"{"pod": "pod", "epoch": 1}"#).await;
    router.until("gone", |router| router.count() == 0).await;
}

#[tokio::test]
async fn a_sidecar_is_asked_for_a_snapshot_when_its_digest_differs() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    router.tell("/events/register", r#"{"pod": "pod", "epoch": 1}"#).await;
    let digest =
        r#"{"pod": "pod", "epoch": 1, "sequence": 4, "tiers": {"gpu": {"count": 2, "xor": 3}}}"#;
    let wants_snapshot = async {
        while router.tell("/events/digest", digest).await["sync"] == false {
            tokio::task::yield_now().await;
        }
    };
    let requested = tokio::time::timeout(Duration::from_secs(3), wants_snapshot).await;
    requested.expect("the router asks for a snapshot");
    let sync = r#"{"pod": "pod", "epoch": 1, "sequence": 4, "stored":
        [{"hashes": [1, 2], "tokens": [7, 7, 8, 8], "block_size": 2}]}"#;
    router.tell("/events/sync", sync).await;
    router.tell("/events/digest", digest).await;
    let is_live = |router: &PushRouter| router.status().state == FeedState::Live;
    router.until("healed", |router| router.count() == 2 && is_live(router)).await;
}

#[tokio::test]
async fn the_older_paths_carry_the_index_s_own_hashes() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Index).await;
    router.tell("/internal/sync", r#"{"worker_id": "pod", "active_hashes": [11, 12, 13]}"#).await;
    router.until("synced", |router| router.count() == 3).await;
    router.tell("/internal/eviction", r#"{"worker_id": "pod", "evicted_hashes": [12]}"#).await;
    router.until("evicted", |router| router.count() == 2).await;
    router.tell("/internal/sync", r#"{"worker_id": "pod", "active_hashes": [13, 14]}"#).await;
    router.until("synced again", |router| router.digest().xor == 13 ^ 14).await;
}

#[tokio::test]
async fn a_router_that_knows_no_tokens_is_partial_and_asks_for_them() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    let names = r#"{"worker_id": "pod", "active_hashes": [1, 2, 3]}"#;
    router.tell("/internal/sync", names).await;
    let is_partial = |router: &PushRouter| {
        let status = router.status();
        (status.state, status.unnamed) == (FeedState::Partial, 3)
    };
    router.until("partial", is_partial).await;
    assert_eq!(router.count(), 0);
    // Anything that the worker posts is answered with the wish.
    let asks = async {
        let post = r#"{"worker_id": "pod", "evicted_hashes": [9]}"#;
        while router.tell("/internal/eviction", post).await["tokens"] != true {
            tokio::task::yield_now().await;
        }
    };
    let asked = tokio::time::timeout(Duration::from_secs(3), asks).await;
    asked.expect("the router asks for a snapshot with tokens");
    let with_tokens = r#"{"pod": "pod", "stored":
        [{"hashes": [1, 2, 3], "tokens": [7, 7, 8, 8, 9, 9], "block_size": 2}]}"#;
    router.tell("/events/sync", with_tokens).await;
    let is_live = |router: &PushRouter| router.status().state == FeedState::Live;
    router.until("rebuilt", |router| router.count() == 3 && is_live(router)).await;
    // From now on, hashes are enough.
    router.tell("/internal/sync", r#"{"worker_id": "pod", "active_hashes": [1, 2]}"#).await;
    router.until("by hashes", |router| router.count() == 2 && is_live(router)).await;
}

#[tokio::test]
async fn a_pod_whose_past_is_unknown_is_partial_until_it_tells_everything() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    let stored =
        r#"{"pod": "pod", "stored": [{"hashes": [1], "tokens": [7, 7], "block_size": 2}]}"#;
    router.tell("/events/stored", stored).await;
    let is = |state| move |router: &PushRouter| router.status().state == state;
    router.until("partial", is(FeedState::Partial)).await;
    assert_eq!(router.count(), 1);
    let asked = async {
        while router.tell("/events/stored", stored).await["sync"] != true {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3), asked).await.expect("it is asked for the rest");
    router.tell("/events/sync", stored).await;
    router.until("whole", is(FeedState::Live)).await;
}

#[tokio::test]
async fn a_snapshot_may_come_in_parts_and_counts_when_it_is_whole() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    let part = |part: u32, hash: u32, parent: &str| {
        format!(
            r#"{{"pod": "pod", "epoch": 1, "sequence": 7, "part": {part}, "parts": 3, "stored":
            [{{"hashes": [{hash}], {parent} "tokens": [{hash}, {hash}], "block_size": 2}}]}}"#
        )
    };
    router.tell("/events/sync", &part(0, 1, "")).await;
    router.tell("/events/sync", &part(1, 2, r#""parent": 1,"#)).await;
    router.until("begun", |router| router.status().state == FeedState::Unsure).await;
    assert_eq!(router.count(), 0);
    router.tell("/events/sync", &part(2, 3, r#""parent": 2,"#)).await;
    let is_live = |router: &PushRouter| router.status().state == FeedState::Live;
    router.until("whole", |router| router.count() == 3 && is_live(router)).await;
    let (status, answer) = router.post("/events/sync", JSON, &part(2, 4, "")).await;
    assert!(status.contains("409") && answer.contains("begin with part 0"), "{status} {answer}");
    assert_eq!(router.count(), 3);
}

#[tokio::test]
async fn a_wrong_post_is_refused_with_the_reason() {
    let router = PushRouter::start(FREE_PORT, Some("secret"), BlockIdScheme::Engine).await;
    let token = "authorization: Bearer secret\r\n";
    let (status, _) = router.post("/events/bye", "", r#"{"pod": "pod"}"#).await;
    assert_eq!(status, "HTTP/1.1 401 Unauthorized");
    let (status, body) = router.post("/events/bye", token, r#"{"pod": "other"}"#).await;
    assert_eq!(status, "HTTP/1.1 404 Not Found");
    assert!(body.contains("unknown pod `other`; add it to `pods`"), "{body}");
    let careful = r#"{"pod": "careful"}"#;
    let (status, body) = router.post("/events/bye", token, careful).await;
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    assert!(body.contains("pod `careful`: wrong token"), "{body}");
    let own = "authorization: Bearer own\r\n";
    let (status, _) = router.post("/events/bye", own, careful).await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    let (status, _) = router.post("/events/bye", own, r#"{"pod": "pod"}"#).await;
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    let (status, body) = router.post("/events/stored", token, r#"{"pod": 7}"#).await;
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    assert!(body.contains("expected a string at line 1 column 9"), "{body}");
    let (status, _) = router.post("/fly", token, "{}").await;
    assert_eq!(status, "HTTP/1.1 404 Not Found");
    let (status, _) = router.post("/events/bye", token, r#"{"pod": "pod"}"#).await;
    assert_eq!(status, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_web_page_on_the_routers_machine_cannot_post_events() {
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    let stored =
        r#"{"pod": "pod", "stored": [{"hashes": [1], "tokens": [7, 7], "block_size": 2}]}"#;
    let page = "content-type: application/json\r\norigin: http://evil.example\r\n";
    let (status, answer) = router.post("/events/stored", page, stored).await;
    assert!(status.contains("403") && answer.contains("web pages"), "{status} {answer}");
    let form = "content-type: text/plain\r\n";
    for untyped in [form, ""] {
        let (status, answer) = router.post("/events/stored", untyped, stored).await;
        assert!(status.contains("415") && answer.contains("application/json"), "{status} {answer}");
    }
    assert_eq!(router.count(), 0);
    router.tell("/events/stored", stored).await;
    router.until("a sidecar can", |router| router.count() == 1).await;
}
