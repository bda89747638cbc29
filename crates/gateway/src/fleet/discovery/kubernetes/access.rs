//! What a source may do in its cluster, and what it finds there: for `wornpath check --kubernetes`.

use std::path::Path;

use http::Request;
use kube::api::{ListParams, ObjectList};
use kube::{Client, Error};
use serde_json::{Value, json};
use wornpath_config::{Config, KubernetesConfig, KubernetesPods, RelativePaths};

use super::objects::{POOL_GROUP, Pod, PodObject, Pool, PoolObject, pods_api, pools_api};
use super::{client, with_causes};

/// What was found of one source.
#[derive(Debug, Default)]
pub struct AccessReport {
    /// What works.
    pub found: Vec<String>,
    /// What keeps pods from being discovered, each with its cure.
    pub missing: Vec<String>,
}

/// A right that a source needs.
struct Right<'a> {
    group: &'a str,
    resource: &'a str,
    verb: &'a str,
    name: Option<&'a str>,
}

/// Asks the API server what the router may do, and tries it.
pub async fn check_access(source: &KubernetesConfig, config: &Config, path: &Path) -> AccessReport {
    let mut report = AccessReport::default();
    let (client, namespace) = match client(source).await {
        Ok(client) => client,
        Err(reason) => {
            report.missing.push(reason);
            return report;
        }
    };
    let mut rights = Vec::new();
    for verb in ["list", "watch"] {
        rights.push(Right { group: "", resource: "pods", verb, name: None });
        if let KubernetesPods::Pool(pool) = &source.pods {
            let name = Some(pool.as_str());
            rights.push(Right { group: POOL_GROUP, resource: "inferencepools", verb, name });
        }
    }
    for right in rights {
        match is_allowed(&client, &namespace, &right).await {
            Ok(true) => {}
            Ok(false) => report.missing.push(missing(&right, &namespace)),
            Err(error) => {
                report.missing.push(format!("Kubernetes API failed: {}", with_causes(&error)));
                return report;
            }
        }
    }
    if !report.missing.is_empty() {
        return report;
    }
    let (selector, ports) = match &source.pods {
        KubernetesPods::Selector { labels, port } => (labels.clone(), vec![*port]),
        KubernetesPods::Pool(name) => match pool(&client, &namespace, name).await {
            Ok(pool) => {
                let (picker, mode) = pool.picker().unwrap_or(("none", "FailClose"));
                let ports = pool.ports();
                report.found.push(format!(
                    "InferencePool `{name}`: ports {ports:?}, endpoint picker {picker}, {mode}"
                ));
                (pool.selector(), ports)
            }
            Err(reason) => {
                report.missing.push(reason);
                return report;
            }
        },
    };
    let listed = pods_api(&client, &namespace).list(&ListParams::default().labels(&selector)).await;
    match listed {
        Ok(pods) => {
            let place = Place { namespace: &namespace, selector: &selector, ports: &ports };
            report.describe(&pods, &place, &|pod| {
                let environment = RelativePaths::new(path);
                let found = pod.found(&namespace)?;
                let described = config.kubernetes_pods(source, found, &ports, &environment);
                described.err().map(|error| format!("pod `{}`: {error}", found.name))
            });
        }
        Err(error) => {
            report.missing.push(format!("pods by `{selector}`: {}", with_causes(&error)));
        }
    }
    report
}

/// Where pods were looked for.
struct Place<'a> {
    namespace: &'a str,
    selector: &'a str,
    ports: &'a [u16],
}

impl AccessReport {
    /// Describes the pods of a list; `problem` says what is wrong with one.
    fn describe(
        &mut self,
        pods: &ObjectList<Pod>,
        place: &Place<'_>,
        problem: &dyn Fn(&Pod) -> Option<String>,
    ) {
        let Place { namespace, selector, ports } = place;
        let ready = pods.items.iter().filter(|pod| pod.is_serving()).count();
        let all = pods.items.len();
        self.found.push(format!(
            "namespace `{namespace}`: {all} pods by `{selector}`, {ready} of them ready; ports {ports:?}"
        ));
        if all == 0 {
            self.missing.push(format!(
                "no pod in namespace `{namespace}` has the labels `{selector}`; compare with `kubectl get pods -n {namespace} --show-labels`"
            ));
        }
        self.missing.extend(pods.items.iter().filter_map(problem));
    }
}

async fn pool(client: &Client, namespace: &str, name: &str) -> Result<Pool, String> {
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    match pools_api(client, namespace).list(&one).await {
        Ok(pools) => pools.items.into_iter().next().ok_or(format!(
            "no InferencePool `{name}` in namespace `{namespace}`; create it, or set `namespace`"
        )),
        Err(Error::Api(status)) if status.code == 404 => Err(format!(
            "the cluster has no `inferencepools.{POOL_GROUP}/v1`; install the Gateway API Inference Extension, or use `selector`"
        )),
        Err(error) => Err(format!("InferencePool `{name}`: {}", with_causes(&error))),
    }
}

async fn is_allowed(client: &Client, namespace: &str, right: &Right<'_>) -> Result<bool, Error> {
    let Right { group, resource, verb, name } = right;
    let mut attributes =
        json!({"namespace": namespace, "group": group, "resource": resource, "verb": verb});
    if let Some(name) = name {
        attributes["name"] = json!(name);
    }
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes());
    let request = request.expect("the path and the header are constants and valid");
    let answer: Value = client.request(request).await?;
    Ok(answer["status"]["allowed"] == true)
}

/// A missing right, with the rule that gives it.
fn missing(right: &Right<'_>, namespace: &str) -> String {
    let Right { group, resource, verb, name } = right;
    let names = name.map(|name| format!(", resourceNames: [{name}]")).unwrap_or_default();
    format!(
        "may not {verb} {resource} in namespace `{namespace}`; add `{{apiGroups: [\"{group}\"], resources: [{resource}]{names}, verbs: [list, watch]}}` to a Role and bind it to the router's service account"
    )
}
