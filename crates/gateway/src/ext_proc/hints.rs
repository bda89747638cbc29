//! What the data plane, and headers, say about a request beside its body: the pods that may serve
//! it, its objective, and its share of the wait queue.

use super::head::{FAIRNESS, MODEL_REWRITE, OBJECTIVE, TEST_SELECTION};
use super::proto::{Metadata, Struct, value};
use crate::proxy::route::{ModelName, RouteHints};
use hyper::header::HeaderMap;
use std::sync::Arc;
use wornpath_config::EppSettings;
use wornpath_routing::{AllowedPods, Name, PodAddress};

const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// Longer names are ignored: they would be kept as long as the request waits.
const MAX_NAME_BYTES: usize = 256;

/// One entry of a subset; none if it is no address, and so matches nothing.
fn entry(text: &str) -> Option<PodAddress> {
    let text = text.trim();
    let host = text.trim_start_matches('[').trim_end_matches(']');
    let port = text.parse().map(PodAddress::Port);
    port.or_else(|_| host.parse().map(PodAddress::Host)).ok()
}

/// The hints of a request.
pub(super) fn hints(
    headers: &HeaderMap,
    metadata: Option<&Metadata>,
    settings: &EppSettings,
) -> RouteHints {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let short = |name| text(name).filter(|text| (1..=MAX_NAME_BYTES).contains(&text.len()));
    let objective = short(OBJECTIVE);
    let known = |objective: &str| {
        let mut known = settings.objectives.iter().filter(|(name, _)| name == objective);
        known.next().map(|(_, priority)| *priority)
    };
    let selected = text(TEST_SELECTION).filter(|_| settings.has_test_hooks);
    let selected = selected.map(|text| text.split(',').filter_map(entry).collect());
    let subset = selected.or_else(|| subset(metadata));
    RouteHints {
        allowed: Some(subset.map_or(AllowedPods::Addressed, AllowedPods::At)),
        priority: objective.and_then(known),
        fairness: short(FAIRNESS).map(Name::from),
        model: short(MODEL_REWRITE).map(str::to_owned),
        model_name: ModelName::Required,
    }
}

/// The entries of the subset that the data plane allows; none if it allows all pods.
fn subset(metadata: Option<&Metadata>) -> Option<Arc<[PodAddress]>> {
    let hint = metadata?.filter_metadata.get(SUBSET_NAMESPACE)?.fields.get(SUBSET)?;
    let mut texts = Vec::new();
    match &hint.kind {
        Some(value::Kind::StringValue(text)) => texts.push(text.as_str()),
        Some(value::Kind::ListValue(list)) => {
            for item in &list.values {
                if let Some(value::Kind::StringValue(text)) = &item.kind {
                    texts.push(text);
                }
            }
        }
        // Neither form allows any pod.
        _ => {}
    }
    let entries = texts.into_iter().flat_map(|text| text.split(','));
    Some(entries.filter_map(entry).collect())
}

/// A text of dynamic metadata.
pub(super) fn metadata_text<'a>(
    metadata: Option<&'a Metadata>,
    namespace: &str,
    key: &str,
) -> Option<&'a str> {
    let fields: &Struct = metadata?.filter_metadata.get(namespace)?;
    match &fields.fields.get(key)?.kind {
        Some(value::Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{ListValue, Value};
    use super::*;

    fn text(text: &str) -> Value {
        Value { kind: Some(value::Kind::StringValue(text.to_owned())) }
    }

    fn list(texts: &[&str]) -> Value {
        let values = texts.iter().map(|it| text(it)).collect();
        Value { kind: Some(value::Kind::ListValue(ListValue { values })) }
    }

    fn metadata(namespace: &str, key: &str, value: Value) -> Metadata {
        let fields = Struct { fields: [(key.to_owned(), value)].into() };
        Metadata { filter_metadata: [(namespace.to_owned(), fields)].into() }
    }

    /// Which of three pods at 192.168.1.1 to .3, ports 8000 and 8001 each, a hint allows.
    fn allows(hint: Value) -> Vec<String> {
        let subset = subset(Some(&metadata(SUBSET_NAMESPACE, SUBSET, hint))).unwrap();
        let pods =
            (1..=3).flat_map(|host| [8000, 8001].map(|port| format!("192.168.1.{host}:{port}")));
        let is_in = |pod: &String| subset.iter().any(|one| one.has(pod.parse().unwrap()));
        pods.filter(is_in).collect()
    }

    #[test]
    fn a_subset_is_a_list_or_a_text_with_commas_or_both_and_spaces_do_not_count() {
        let both = ["192.168.1.1:8000", "192.168.1.2:8000"];
        assert_eq!(allows(list(&both)), both);
        assert_eq!(allows(text("192.168.1.1:8000,192.168.1.2:8000")), both);
        assert_eq!(allows(list(&["192.168.1.1:8000, 192.168.1.2:8000", "x"])), both);
        assert_eq!(allows(list(&[" 192.168.1.1:8000 ", "\t192.168.1.2:8000"])), both);
    }

    #[test]
    fn an_empty_subset_and_one_without_a_match_allow_no_pod() {
        for hint in [list(&[]), text(""), list(&["10.0.0.1:8000"]), list(&["192.168.1.1:9"])] {
            assert!(allows(hint.clone()).is_empty(), "{hint:?}");
        }
        assert!(allows(Value { kind: Some(value::Kind::NumberValue(1.0)) }).is_empty());
    }

    #[test]
    fn a_host_without_a_port_allows_all_its_ports() {
        assert_eq!(allows(text("192.168.1.3")), ["192.168.1.3:8000", "192.168.1.3:8001"]);
        let ipv6 = entry("[2001:db8::1]").unwrap();
        assert!(ipv6.has("[2001:db8::1]:80".parse().unwrap()));
    }

    #[test]
    fn without_the_namespace_or_its_key_all_pods_are_allowed() {
        assert_eq!(subset(None), None);
        assert_eq!(subset(Some(&metadata("envoy.lb", SUBSET, text("192.168.1.1")))), None);
        assert_eq!(subset(Some(&metadata(SUBSET_NAMESPACE, "other", text("x")))), None);
    }
}
