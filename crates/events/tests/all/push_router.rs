//! A router that pods report their events to, over HTTP or gRPC.

use crate::listening::listen;
use crate::wait::until;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::JoinSet;
use wornpath_blocks::HashKey;
use wornpath_events::{
    BlockIdScheme, Clock, EventPods, FeedRules, FeedStatus, PodTokens, Push, PushAccess,
    ServedModel, consume, run_timers,
};
use wornpath_index::{BlockDigest, Index, IndexLimits, PodId};

pub(crate) const FREE_PORT: &str = "127.0.0.1:0";

/// Stops when it is dropped.
pub(crate) struct PushRouter {
    pods: Arc<EventPods>,
    id: PodId,
    clock: Clock,
    pub(crate) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl PushRouter {
    /// Reports need `token`, if there is one; those of the pod `careful` need `own`. Only the pod
    /// `pod` has an index.
    pub(crate) async fn start(
        at: impl ToSocketAddrs,
        token: Option<&str>,
        id_scheme: BlockIdScheme,
    ) -> Self {
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
        let served_model = ServedModel {
            key: HashKey::DEFAULT,
            model: "any".to_owned(),
            block_size: NonZeroUsize::new(2).unwrap(),
            id_scheme,
        };
        let id = pods.add(&"pod".into(), served_model).unwrap();
        let tokens = Arc::<PodTokens>::default();
        let own = Sha256::digest("own").into();
        tokens.set([("pod".into(), None), ("careful".into(), Some(own))].into());
        let (push, service) = Push::new(tokens);
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let access = PushAccess::new(address, token).unwrap();
        let clock = Clock::start();
        let mut tasks = JoinSet::new();
        let fed = Arc::clone(&pods);
        tasks.spawn(async move {
            tokio::join!(consume(push, &fed, clock), run_timers(&fed, clock)).0;
        });
        tasks.spawn(async move {
            listen(service, listener, access).await;
        });
        Self { pods, id, clock, address, _tasks: tasks }
    }

    pub(crate) fn status(&self) -> FeedStatus {
        self.pods.status(self.clock.now()).remove(0).status
    }

    /// The digest of the pod's blocks in its first tier.
    pub(crate) fn digest(&self) -> BlockDigest {
        self.pods.index().digest(self.id).unwrap().tiers[0]
    }

    /// The number of the pod's blocks in its first tier.
    pub(crate) fn count(&self) -> u64 {
        self.digest().count
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let describe = || format!("{what}: {} blocks, {:?}", self.count(), self.status());
        until(Duration::from_secs(10), || is_so(self), describe).await;
    }
}
