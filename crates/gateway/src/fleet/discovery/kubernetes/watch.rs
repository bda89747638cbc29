//! All objects of one kind that a selector selects, kept up to date by a watch.
//!
//! `kube` lists, watches, follows bookmarks and lists again when the server has forgotten the
//! version. Here is what it leaves to its user: the backoff, and that objects stay until a new list
//! is complete. A watch that cannot be started begins again with a list: the version may be one
//! that the server no longer has, or, after a restored backup, one that it does not have yet.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use wornpath_time::Backoff;

use super::with_causes;

/// The server closes a watch after so many seconds. A connection that broke without a sign is
/// noticed a few seconds later.
const WATCH_SECONDS: u32 = 60;

/// A server that says nothing for so long does not work: it ends a watch without changes earlier.
pub(super) const LONGEST_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// Why a list or a watch failed.
#[derive(Debug)]
pub(super) struct WatchError(watcher::Error);

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use kube::Error::Api;
        use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
        match &self.0 {
            InitialListFailed(Api(status))
            | WatchStartFailed(Api(status))
            | WatchFailed(Api(status)) => write!(f, "status {}: {}", status.code, status.message),
            watcher::Error::WatchError(status) => {
                write!(f, "status {}: {}", status.code, status.message)
            }
            error => f.write_str(&with_causes(error)),
        }
    }
}

/// The objects, and the watch.
pub(super) struct ObjectWatch<K> {
    api: Api<K>,
    config: watcher::Config,
    events: Events<K>,
    /// By name; none before the first complete list.
    objects: Option<BTreeMap<String, K>>,
    /// The list that is being received.
    listing: BTreeMap<String, K>,
    backoff: Backoff,
    failures: u32,
    /// Until when nothing is asked, after a failure.
    paused_until: Option<Instant>,
}

impl<K> ObjectWatch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// The objects with labels.
    pub(super) fn labelled(api: Api<K>, selector: &str) -> Self {
        Self::new(api, watcher::Config::default().labels(selector))
    }

    /// The object of a name. By a field, not by a path: a role may allow to list one name.
    pub(super) fn named(api: Api<K>, name: &str) -> Self {
        Self::new(api, watcher::Config::default().fields(&format!("metadata.name={name}")))
    }

    fn new(api: Api<K>, config: watcher::Config) -> Self {
        let config = config.timeout(WATCH_SECONDS);
        Self {
            events: watcher(api.clone(), config.clone()).boxed(),
            api,
            config,
            objects: None,
            listing: BTreeMap::new(),
            // Several routers lose the same server at the same moment.
            backoff: BACKOFF.with_jitter(RandomState::new().hash_one(())),
            failures: 0,
            paused_until: None,
        }
    }

    /// The objects by name; none before the first complete list.
    pub(super) const fn objects(&self) -> Option<&BTreeMap<String, K>> {
        self.objects.as_ref()
    }

    /// Waits until the objects have changed, and applies all changes that have arrived. May be
    /// cancelled.
    pub(super) async fn changed(&mut self) -> Result<(), WatchError> {
        let mut has_changed = false;
        loop {
            if let Some(until) = self.paused_until {
                tokio::time::sleep_until(until).await;
                self.paused_until = None;
            }
            let event = if has_changed {
                match self.events.next().now_or_never() {
                    Some(event) => event,
                    None => return Ok(()),
                }
            } else {
                self.events.next().await
            };
            match event {
                Some(Ok(event)) => has_changed |= self.apply(event),
                Some(Err(error)) => {
                    self.pause(&error);
                    return Err(WatchError(error));
                }
                // A watcher never ends; if one did, another takes its place.
                None => self.restart(),
            }
        }
    }

    /// Returns whether the objects have changed.
    fn apply(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                return false;
            }
            Event::InitApply(object) => {
                self.listing.insert(object.name_any(), object);
                return false;
            }
            Event::InitDone => self.objects = Some(std::mem::take(&mut self.listing)),
            Event::Apply(object) => {
                self.objects.get_or_insert_default().insert(object.name_any(), object);
            }
            Event::Delete(object) => {
                self.objects.get_or_insert_default().remove(&object.name_any());
            }
        }
        self.failures = 0;
        true
    }

    fn pause(&mut self, error: &watcher::Error) {
        self.failures += 1;
        self.paused_until = Some(Instant::now() + self.backoff.delay_after(self.failures));
        if matches!(error, watcher::Error::WatchStartFailed(_)) {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.events = watcher(self.api.clone(), self.config.clone()).boxed();
    }
}

#[cfg(test)]
mod tests {
    use super::super::connected;
    use super::super::objects::{Pod, pods_api};
    use super::*;
    use std::net::TcpListener;

    /// As one whose storage does not answer: the system accepts the connection.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_accepts_and_says_nothing_is_a_failure() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        let client = connected(kube::Config::new(url)).unwrap();
        let mut pods = ObjectWatch::<Pod>::labelled(pods_api(&client, "models"), "app=vllm");
        for _ in 0..2 {
            let waited = tokio::time::timeout(LONGEST_SILENCE * 2, pods.changed()).await;
            let error = waited.expect("it gives up").expect_err("there are no pods");
            assert!(error.to_string().contains("timed out"), "{error}");
        }
        assert!(pods.objects().is_none(), "nothing is known");
    }
}
