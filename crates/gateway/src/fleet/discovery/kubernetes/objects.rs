//! What is read of pods and pools; all other fields are skipped while they are received.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::api::{Api, ApiResource};
use kube::core::Object;
use kube::{Client, ResourceExt};
use serde::{Deserialize, Serialize};
use wornpath_config::{DRAIN_ANNOTATION, KubernetesPod};

/// The API group of `InferencePool`.
pub(super) const POOL_GROUP: &str = "inference.networking.k8s.io";

/// A pod.
pub(super) type Pod = Object<PodSpec, PodStatus>;

/// An `InferencePool`.
pub(super) type Pool = Object<PoolSpec, kube::core::NotUsed>;

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<IpAddr>,
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolSpec {
    selector: PoolSelector,
    target_ports: Vec<TargetPort>,
    endpoint_picker_ref: Option<EndpointPicker>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolSelector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct TargetPort {
    number: u16,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointPicker {
    name: String,
    failure_mode: Option<String>,
}

/// What the router does with a pod.
pub(super) trait PodObject {
    /// Its identity, which a pod of the same name does not inherit.
    fn identity(&self) -> String;

    /// Its description; none without an address, and of a pod that has ended.
    fn found<'a>(&'a self, namespace: &'a str) -> Option<KubernetesPod<'a>>;

    /// Whether it gets new requests: it is ready, and is not to be removed.
    fn is_serving(&self) -> bool;
}

impl PodObject for Pod {
    fn identity(&self) -> String {
        self.uid().unwrap_or_else(|| self.name_any())
    }

    fn found<'a>(&'a self, namespace: &'a str) -> Option<KubernetesPod<'a>> {
        let status = self.status.as_ref()?;
        if matches!(&*status.phase, "Succeeded" | "Failed") {
            return None;
        }
        Some(KubernetesPod {
            name: self.metadata.name.as_deref()?,
            namespace,
            ip: status.pod_ip?,
            node: self.spec.node_name.as_deref(),
            labels: self.labels(),
            annotations: self.annotations(),
        })
    }

    fn is_serving(&self) -> bool {
        let is_ready =
            |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let conditions = self.status.as_ref().map(|status| &*status.conditions);
        conditions.unwrap_or_default().iter().any(is_ready)
            && self.metadata.deletion_timestamp.is_none()
            && self.annotations().get(DRAIN_ANNOTATION).is_none_or(|value| value == "false")
    }
}

/// What a pool says of its pods.
pub(super) trait PoolObject {
    /// Its label selector.
    fn selector(&self) -> String;

    /// The ports of each pod.
    fn ports(&self) -> Vec<u16>;

    /// Its endpoint picker, and what a proxy does without it.
    fn picker(&self) -> Option<(&str, &str)>;
}

impl PoolObject for Pool {
    fn selector(&self) -> String {
        let labels = self.spec.selector.match_labels.iter();
        labels.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }

    fn ports(&self) -> Vec<u16> {
        self.spec.target_ports.iter().map(|port| port.number).collect()
    }

    fn picker(&self) -> Option<(&str, &str)> {
        let picker = self.spec.endpoint_picker_ref.as_ref()?;
        // The default of the API.
        Some((&picker.name, picker.failure_mode.as_deref().unwrap_or("FailClose")))
    }
}

pub(super) fn pods_api(client: &Client, namespace: &str) -> Api<Pod> {
    Api::namespaced_with(client.clone(), namespace, &resource("", "Pod", "pods"))
}

pub(super) fn pools_api(client: &Client, namespace: &str) -> Api<Pool> {
    let resource = resource(POOL_GROUP, "InferencePool", "inferencepools");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
