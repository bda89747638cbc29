//! Pods of a Kubernetes cluster: lists them once and watches them from then on.
//!
//! Pods rather than EndpointSlices: a slice has neither labels nor annotations of a pod, and
//! follows the pod's state through a controller. A pod is added when it is ready; one that was
//! added and is not ready, terminating or marked for removal is drained, so that its cache is still
//! known if it returns; a deleted one is removed. Errors change nothing: only a complete list or an
//! event of the watch removes a pod, however long the API server is away.

mod access;
mod objects;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

pub use access::{AccessReport, check_access};

use kube::{Client, Config as ClientConfig};
use objects::{Pod, PodObject, Pool, PoolObject, pods_api, pools_api};
use watch::{LONGEST_SILENCE, ObjectWatch, WatchError};
use wornpath_config::{Config, KubernetesConfig, KubernetesPods, PodConfig, RelativePaths};

/// Interval between two attempts to use the credentials, and to add pods that were refused.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The pods of a source as they are now.
pub(crate) struct KubernetesListing {
    pub(crate) pods: Vec<PodConfig>,
    /// The names of those that get no new requests.
    pub(crate) draining: BTreeSet<String>,
}

/// The watches of one source, and what they have shown.
#[derive(Default)]
pub(crate) struct KubernetesWatch {
    cluster: Option<Cluster>,
    /// Pods that have been ready, by uid, as they were last described without an error.
    added: BTreeMap<String, Vec<PodConfig>>,
    /// The last error of each thing that fails, so that one that persists is logged once.
    failures: BTreeMap<Asked, String>,
    /// Why pods were refused, for the same reason.
    refused: BTreeMap<String, String>,
}

/// What an API server is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Asked {
    /// A connection with the credentials.
    Connection,
    Pool,
    Pods,
}

/// A connection to an API server.
struct Cluster {
    client: Client,
    namespace: String,
    pool: Option<ObjectWatch<Pool>>,
    /// None while the pool is not known.
    pods: Option<ObjectWatch<Pod>>,
    /// What `pods` selects.
    selector: String,
    ports: Vec<u16>,
}

impl KubernetesWatch {
    /// Waits for a change, and returns the pods; none if nothing is known yet, or if there was no
    /// change for a while. May be cancelled.
    pub(crate) async fn next(
        &mut self,
        source: &KubernetesConfig,
        config: &Config,
        path: Option<&Path>,
    ) -> Option<KubernetesListing> {
        if self.cluster.is_none() {
            match Cluster::connect(source).await {
                Ok(cluster) => self.cluster = Some(cluster),
                Err(reason) => {
                    self.failed(source, Asked::Connection, reason);
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    return None;
                }
            }
        }
        let cluster = self.cluster.as_mut()?;
        let changed = tokio::time::timeout(RETRY_INTERVAL, cluster.changed()).await.ok()?;
        match changed {
            Ok(asked) => self.answered(source, asked),
            Err((asked, error)) => self.failed(source, asked, error.to_string()),
        }
        self.listing(source, config, path)
    }

    /// Logs a failure that is new.
    fn failed(&mut self, source: &KubernetesConfig, asked: Asked, reason: String) {
        if self.failures.get(&asked) != Some(&reason) {
            let pods = source.pods.to_string();
            tracing::warn!(pods, ?asked, reason, "Kubernetes API failed; keeping known pods");
            self.failures.insert(asked, reason);
        }
    }

    /// Logs the end of the last failure.
    fn answered(&mut self, source: &KubernetesConfig, asked: Asked) {
        let before = self.failures.len();
        self.failures.retain(|failed, _| ![asked, Asked::Connection].contains(failed));
        if before > 0 && self.failures.is_empty() {
            tracing::info!(pods = source.pods.to_string(), "Kubernetes API answers");
        }
    }

    fn listing(
        &mut self,
        source: &KubernetesConfig,
        config: &Config,
        path: Option<&Path>,
    ) -> Option<KubernetesListing> {
        let cluster = self.cluster.as_ref()?;
        let objects = cluster.objects()?;
        let environment = RelativePaths::new(path.unwrap_or(Path::new("")));
        let mut listing = KubernetesListing { pods: Vec::new(), draining: BTreeSet::new() };
        let mut added = BTreeMap::new();
        let mut refused = BTreeMap::new();
        for object in objects {
            let Some(found) = object.found(&cluster.namespace) else { continue };
            let uid = object.identity();
            let known = self.added.remove(&uid);
            if !object.is_serving() && known.is_none() {
                continue;
            }
            let described = config.kubernetes_pods(source, found, &cluster.ports, &environment);
            let pods = match (described, known) {
                (Ok(pods), _) => pods,
                (Err(error), known) => {
                    let reason = error.to_string();
                    if self.refused.get(found.name) != Some(&reason) {
                        tracing::error!(pod = found.name, reason, "Kubernetes pod refused");
                    }
                    refused.insert(found.name.to_owned(), reason);
                    let Some(known) = known else { continue };
                    known
                }
            };
            if !object.is_serving() {
                listing.draining.extend(pods.iter().map(|pod| pod.name().to_owned()));
            }
            listing.pods.extend(pods.iter().cloned());
            added.insert(uid, pods);
        }
        self.added = added;
        self.refused = refused;
        Some(listing)
    }
}

impl Cluster {
    async fn connect(source: &KubernetesConfig) -> Result<Self, String> {
        let (client, namespace) = client(source).await?;
        let mut cluster = Self {
            client,
            namespace,
            pool: None,
            pods: None,
            selector: String::new(),
            ports: Vec::new(),
        };
        match &source.pods {
            KubernetesPods::Selector { labels, port } => {
                cluster.ports.push(*port);
                cluster.select(labels.clone());
            }
            KubernetesPods::Pool(name) => {
                let api = pools_api(&cluster.client, &cluster.namespace);
                cluster.pool = Some(ObjectWatch::named(api, name));
            }
        }
        Ok(cluster)
    }

    fn select(&mut self, selector: String) {
        let api = pods_api(&self.client, &self.namespace);
        self.pods = Some(ObjectWatch::labelled(api, &selector));
        self.selector = selector;
    }

    /// Waits for a change of the pool or its pods, and says of which.
    async fn changed(&mut self) -> Result<Asked, (Asked, WatchError)> {
        let pool = async {
            match &mut self.pool {
                Some(pool) => pool.changed().await,
                None => std::future::pending().await,
            }
        };
        let pods = async {
            match &mut self.pods {
                Some(pods) => pods.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = pool => {
                changed.map_err(|error| (Asked::Pool, error))?;
                self.follow_pool();
                Ok(Asked::Pool)
            }
            changed = pods => match changed {
                Ok(()) => Ok(Asked::Pods),
                Err(error) => Err((Asked::Pods, error)),
            },
        }
    }

    /// Selects the pods that the pool selects now.
    fn follow_pool(&mut self) {
        let Some(pool) = self.pool.as_ref().and_then(ObjectWatch::objects) else { return };
        let Some(pool) = pool.values().next() else {
            self.pods = None;
            return;
        };
        self.ports = pool.ports();
        let selector = pool.selector();
        let failure_mode = pool.picker().map(|(_, mode)| mode);
        tracing::info!(
            pool = pool.metadata.name,
            selector,
            ports = ?self.ports,
            failure_mode,
            "InferencePool read"
        );
        if self.pods.is_none() || self.selector != selector {
            self.select(selector);
        }
    }

    /// The selected pods, once they are known; none exist where the pool does not exist.
    fn objects(&self) -> Option<Vec<&Pod>> {
        if let Some(pool) = &self.pool
            && pool.objects()?.is_empty()
        {
            return Some(Vec::new());
        }
        Some(self.pods.as_ref()?.objects()?.values().collect())
    }
}

/// A client, and the namespace of the pods.
async fn client(source: &KubernetesConfig) -> Result<(Client, String), String> {
    let config = match &source.kubeconfig {
        None => ClientConfig::incluster().map_err(|error| {
            let reason = with_causes(&error);
            format!("no service account: {reason}; run in a cluster with `automountServiceAccountToken`, or set `kubeconfig`")
        })?,
        Some(file) => {
            let refused = |error: &dyn std::error::Error| {
                format!("kubeconfig {}: {}", file.display(), with_causes(error))
            };
            let read = kube::config::Kubeconfig::read_from(file).map_err(|error| refused(&error))?;
            let options = kube::config::KubeConfigOptions::default();
            let config = ClientConfig::from_custom_kubeconfig(read, &options).await;
            config.map_err(|error| refused(&error))?
        }
    };
    let namespace = source.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = connected(config).map_err(|error| with_causes(&error))?;
    Ok((client, namespace))
}

/// A client that gives up on a server that accepts connections and says nothing.
fn connected(mut config: ClientConfig) -> kube::Result<Client> {
    // The watch has its own backoff; a second one below it would hide the failures from the log.
    config.default_retry = false;
    config.read_timeout = Some(LONGEST_SILENCE);
    config.reset_reader_on_write = true;
    Client::try_from(config)
}

/// An error with the errors that caused it.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
