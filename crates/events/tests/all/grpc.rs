//! Events over gRPC, from a client that was made of the proto file, to the index.

use crate::peer::{self, Peer};
use crate::push_router::{FREE_PORT, PushRouter};
use wornpath_events::{BlockIdScheme, FeedState};

async fn router() -> PushRouter {
    PushRouter::start(FREE_PORT, Some("secret"), BlockIdScheme::Engine).await
}

/// An engine in Python; and the folder of its stubs, which goes with it.
struct Engine {
    peer: Peer,
    folder: std::path::PathBuf,
}

impl Engine {
    fn start(router: &PushRouter, token: &str) -> Self {
        let name = format!("wornpath-grpc-{}-{token}", router.address.port());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let proto = format!("{}/proto/events.proto", env!("CARGO_MANIFEST_DIR"));
        let address = router.address.to_string();
        let arguments = [&address, &proto, folder.to_str().unwrap(), token];
        let mut peer = Peer::start("reporter.py", &arguments);
        assert_eq!(peer.line(), "ready");
        Self { peer, folder }
    }

    async fn line(mut self) -> (Self, String) {
        tokio::task::spawn_blocking(move || {
            let line = self.peer.line();
            (self, line)
        })
        .await
        .unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test]
async fn an_engine_streams_its_events_and_is_asked_for_a_snapshot_after_a_loss() {
    if !peer::has("import grpc, grpc_tools", "grpcio grpcio-tools") {
        return;
    }
    let router = router().await;
    let mut engine = Engine::start(&router, "secret");
    engine.peer.tell(r#"{"pod": "pod", "epoch": 7, "register": {}}"#);
    let (engine, wish) = engine.line().await;
    assert_eq!(wish, "wish", "a router without state asks for a snapshot");
    let mut engine = engine;
    engine.peer.tell(r#"{"pod": "pod", "epoch": 7, "sync": {}}"#);
    engine.peer.tell(
        r#"{"pod": "pod", "epoch": 7, "sequence": 0, "batch": {"events": [{"stored":
           {"blocks": [11, 12], "tokens": [1, 2, 3, 4], "blockSize": 2}}]}}"#
            .replace('\n', " ")
            .as_str(),
    );
    router.until("two blocks", |router| router.count() == 2).await;
    router.until("live", |router| router.status().state == FeedState::Live).await;

    // A batch is lost, and the engine's digest shows it.
    engine.peer.tell(
        r#"{"pod": "pod", "epoch": 7, "sequence": 1, "digest": {"tiers": [{"tier": "GPU", "count": 1, "xor": 11}]}}"#,
    );
    let (mut engine, wish) = engine.line().await;
    assert_eq!(wish, "wish");
    engine.peer.tell(
        r#"{"pod": "pod", "epoch": 7, "sequence": 1, "sync": {"events": [{"stored": {"blocks": [11], "tokens": [1, 2], "blockSize": 2}}]}}"#,
    );
    router.until("healed", |router| router.count() == 1).await;

    // A report of an earlier epoch has no effect; one of another pod ends the stream.
    engine.peer.tell(
        r#"{"pod": "pod", "epoch": 6, "sequence": 2, "batch": {"events": [{"cleared": {}}]}}"#,
    );
    router.until("outdated", |router| router.status().counters.outdated == 1).await;
    assert_eq!(router.count(), 1);
    engine.peer.tell(r#"{"pod": "careful", "register": {}}"#);
    let (_, end) = engine.line().await;
    assert!(end.starts_with("end INVALID_ARGUMENT pod `careful`: this stream"), "{end}");
}

#[tokio::test]
async fn a_report_without_permission_is_refused_with_the_reason() {
    if !peer::has("import grpc, grpc_tools", "grpcio grpcio-tools") {
        return;
    }
    let router = router().await;
    for (token, pod, answer) in [
        ("wrong", "pod", "end UNAUTHENTICATED"),
        ("own", "pod", "end PERMISSION_DENIED pod `pod`: wrong token"),
        ("secret", "careful", "end PERMISSION_DENIED pod `careful`"),
        ("secret", "other", "end NOT_FOUND unknown pod `other`"),
    ] {
        let mut engine = Engine::start(&router, token);
        engine.peer.tell(&format!(r#"{{"pod": "{pod}", "register": {{}}}}"#));
        let (_, end) = engine.line().await;
        assert!(end.starts_with(answer), "{token} {pod}: {end}");
    }
}
