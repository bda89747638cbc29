//! The sidecar for engines without events, in Python, posting to a router.

use crate::listening::listen;
use crate::peer::{self, Peer};
use crate::wait::until;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use wornpath_blocks::HashKey;
use wornpath_events::{
    BlockIdScheme, EventClock, EventPods, FeedRules, FeedStatus, PodTokens, Push, PushAccess,
    ServedModel, consume, run_timers,
};
use wornpath_index::{Index, IndexLimits, PodId};

struct Router {
    pods: Arc<EventPods>,
    id: PodId,
    clock: EventClock,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Router {
    async fn start(at: SocketAddr) -> Self {
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
        let served_model = ServedModel {
            key: HashKey::DEFAULT,
            model: "any".to_owned(),
            block_size: NonZeroUsize::new(2).unwrap(),
            id_scheme: BlockIdScheme::Engine,
        };
        let id = pods.add(&"pod".into(), served_model).unwrap();
        let tokens = Arc::<PodTokens>::default();
        tokens.set([("pod".into(), None)].into());
        let (push, service) = Push::new(tokens);
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let access = PushAccess::new(address, None).unwrap();
        let clock = EventClock::start();
        let fed = Arc::clone(&pods);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            tokio::join!(consume(push, &fed, clock), run_timers(&fed, clock)).0;
        });
        tasks.spawn(async move {
            listen(service, listener, access).await;
        });
        Self { pods, id, clock, address, _tasks: tasks }
    }

    fn status(&self) -> FeedStatus {
        self.pods.status(self.clock.now()).remove(0).status
    }

    async fn until_it_has(&self, digest: &str, when: &str) {
        let (count, xor) = digest.split_once(' ').unwrap();
        let wanted = (count.parse::<u64>().unwrap(), xor.parse::<u64>().unwrap());
        let digest = || self.pods.index().digest(self.id).unwrap().tiers[0];
        until(
            Duration::from_secs(10),
            || (digest().count, digest().xor) == wanted,
            || format!("{when}: {} blocks, not {count}; {:?}", digest().count, self.status()),
        )
        .await;
    }
}

#[tokio::test]
async fn a_router_knows_what_an_engine_with_the_sidecar_holds() {
    if !peer::has("import urllib.request", "the standard library") {
        return;
    }
    let sidecar = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sidecar");
    let router = Router::start("127.0.0.1:0".parse().unwrap()).await;
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
    let router = Router::start(address).await;
    router.until_it_has(&digest, "after the router's restart").await;

    engine.end();
    router.until_it_has("0 0", "after the engine's shutdown").await;
}
