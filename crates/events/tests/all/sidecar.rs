//! The sidecar for engines without events, in Python, posting to a router.

use crate::peer::{self, Peer};
use crate::push_router::{FREE_PORT, PushRouter};
use crate::wait::until;
use std::time::Duration;
use wornpath_events::BlockIdScheme;

impl PushRouter {
    /// Waits until the index has the digest that the engine printed.
    async fn until_it_has(&self, digest: &str, when: &str) {
        let (count, xor) = digest.split_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        let xor: u64 = xor.parse().unwrap();
        self.until(&format!("{when}: {count} blocks"), |router| {
            let ours = router.digest();
            ours.count == count && ours.xor == xor
        })
        .await;
    }
}

#[tokio::test]
async fn a_router_knows_what_an_engine_with_the_sidecar_holds() {
    if !peer::has("import urllib.request", "the standard library") {
        return;
    }
    let sidecar = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    let router = PushRouter::start(FREE_PORT, None, BlockIdScheme::Engine).await;
    let address = router.address;
    let url = format!("http://{address}");
    let mut engine = Peer::start("engine_with_sidecar.py", &[sidecar, &url]);
    for steps in [1, 5, 200, 50] {
        engine.tell(&steps.to_string());
        let digest = engine.line();
        router.until_it_has(&digest, &format!("after {steps} steps")).await;
    }
    let status = router.status();
    assert_eq!((status.counters.malformed, status.counters.disagreements), (0, 0), "{status:?}");

    // A router that restarts gets a snapshot.
    drop(router);
    let refuses = || std::net::TcpStream::connect(address).is_err();
    until(Duration::from_secs(10), refuses, || format!("{address} is still bound")).await;
    engine.tell("20");
    let digest = engine.line();
    let router = PushRouter::start(address, None, BlockIdScheme::Engine).await;
    router.until_it_has(&digest, "after the router's restart").await;

    engine.end();
    router.until_it_has("0 0", "after the engine's shutdown").await;
}
