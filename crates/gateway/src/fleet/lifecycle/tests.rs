//! Identity of pods across changes: the same pod, the same engine in a new entry, or another
//! engine.

use super::*;
use crate::fleet::engine_facts::EngineFacts;
use crate::proxy::gateway::Gateway;
use serde_json::json;
use std::time::Duration;
use tokio::runtime::Runtime;
use wornpath_config::{BlockSize, ModelSettings, NamedProfile, TokenizerSource};
use wornpath_events::wire::{WireBatch, WireEvent, WireStored};
use wornpath_events::{
    AttachedSource, BatchId, Capabilities, Delivery, FeedState, SourceMessage, SourceSignal,
};
use wornpath_execution::BreakerRules;
use wornpath_index::{BlockDigest, EngineHash};
use wornpath_routing::Name;

const URL: &str = "http://127.0.0.1:1";

fn model(name: &str) -> ModelSettings {
    let block_size = BlockSize::default();
    ModelSettings {
        name: name.into(),
        block_size,
        tokenizer: None,
        tokenizer_source: TokenizerSource::Configured,
        aliases: Vec::new(),
        wait_for_pod: std::time::Duration::ZERO,
    }
}

/// A pod whose events are pushed; without models, it is queried for them.
fn pushed(models: &[&str]) -> PodConfig {
    let mut pod = PodConfig::new(URL);
    pod.facts.models = models.iter().map(|name| (*name).into()).collect();
    pod.events = vec![EventSource::Source("push".into())];
    pod
}

fn settings(pod: PodConfig) -> Settings {
    let text = "{filter: [model], score: [least_load], pick: max_score}".to_owned();
    Settings {
        pods: vec![pod],
        models: vec![model("m"), model("m2")],
        profiles: vec![NamedProfile { name: "fair".into(), file: "test".into(), text }],
        ..Settings::default()
    }
}

fn start(settings: Settings) -> (Arc<PodRegistry>, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    (Arc::clone(Gateway::new(settings, runtime.handle().clone(), 7).unwrap().pods()), runtime)
}

fn entry(registry: &PodRegistry) -> PodEntry {
    registry.snapshot().entries()[0].clone()
}

fn attach(registry: &PodRegistry) -> AttachedSource {
    registry.events().attach("push", Capabilities { snapshot: true, ..Capabilities::default() })
}

/// Delivers an event by which the pod stores two blocks.
fn store_two_blocks(registry: &PodRegistry, source: &AttachedSource) {
    let mut batch = Box::<WireBatch>::default();
    let hashes = [1, 2].map(EngineHash);
    let tokens = [7; 32];
    batch.push(WireEvent::Stored(WireStored::plain(&hashes, None, &tokens)));
    let id = BatchId::default();
    let mut writer = registry.index().writer();
    let pod: Arc<str> = entry(registry).pod.facts().name.as_str().into();
    for message in
        [SourceMessage::Connected, SourceMessage::Batch { id, delivery: Delivery::Live, batch }]
    {
        let signal = SourceSignal::Pod(Arc::clone(&pod), message);
        registry.events().handle(&mut writer, source, signal, registry.now());
    }
}

fn blocks(registry: &PodRegistry) -> BlockDigest {
    registry.index().digest(entry(registry).pod.id()).unwrap().blocks
}

#[test]
fn a_pod_with_another_event_source_gets_a_new_entry() {
    let (registry, _runtime) = start(settings(pushed(&["m"])));
    store_two_blocks(&registry, &attach(&registry));
    assert_eq!(blocks(&registry).count, 2);
    let before = entry(&registry).pod.id();
    registry.apply(settings(pushed(&["m"]))).unwrap();
    assert_eq!(entry(&registry).pod.id(), before, "nothing has changed");
    let elsewhere =
        PodConfig { events: vec![EventSource::Source("broker".into())], ..pushed(&["m"]) };
    registry.apply(settings(elsewhere)).unwrap();
    assert_ne!(entry(&registry).pod.id(), before);
    assert_eq!(blocks(&registry).count, 0);
}

#[test]
fn a_new_entry_at_the_same_address_keeps_health_and_load() {
    let (registry, _runtime) = start(settings(pushed(&[])));
    registry.set_models(URL, &Arc::from([json!({"id": "m"})]));
    let before = entry(&registry);
    before.pod.state().set_health(Health::Up);
    let zmq = EventSource::Zmq("zmq://127.0.0.1:1".parse().unwrap());
    registry.apply(settings(PodConfig { events: vec![zmq], ..pushed(&[]) })).unwrap();
    let after = entry(&registry);
    assert_ne!(after.pod.id(), before.pod.id());
    assert!(Arc::ptr_eq(after.pod.state(), before.pod.state()));
    assert!(Arc::ptr_eq(&after.endpoint, &before.endpoint));
    assert_eq!(after.pod.state().health(), Health::Up);
    assert_eq!(after.pod.facts().models[0], *"m", "as it reported before");
    assert_eq!(after.pod.state().trust(), EventTrust::Unsure);

    let mut moved = pushed(&[]);
    moved.facts.endpoint = "http://127.0.0.1:2".into();
    moved.facts.name = after.pod.facts().name.clone();
    registry.apply(settings(moved)).unwrap();
    assert_eq!(
        entry(&registry).pod.state().health(),
        Health::Down,
        "another engine under the same name"
    );
}

#[test]
fn events_are_decoded_by_the_model_that_the_pod_reports() {
    let (configured, _runtime) = start(settings(pushed(&["m2"])));
    store_two_blocks(&configured, &attach(&configured));
    let (discovered, _other) = start(settings(pushed(&[])));
    let source = attach(&discovered);
    store_two_blocks(&discovered, &source);
    assert_eq!((blocks(&configured).count, blocks(&discovered).count), (2, 2));
    assert_ne!(blocks(&configured), blocks(&discovered));
    discovered.set_models(URL, &Arc::from([json!({"id": "m2"})]));
    assert_eq!(blocks(&discovered).count, 0, "earlier events were decoded by another model");
    store_two_blocks(&discovered, &source);
    assert_eq!(blocks(&configured), blocks(&discovered));
    discovered
        .set_models(URL, &Arc::from([json!({"id": "m2"}), json!({"id": "m", "parent": "m2"})]));
    discovered.apply(settings(pushed(&[]))).unwrap();
    assert_eq!(blocks(&configured), blocks(&discovered), "the same again changes nothing");
}

#[test]
fn the_staleness_limit_of_events_can_be_changed() {
    let (registry, _runtime) = start(settings(pushed(&["m"])));
    store_two_blocks(&registry, &attach(&registry));
    let state = || {
        let later = registry.now() + Duration::from_secs(10);
        registry.events().status(later)[0].status.state
    };
    assert_eq!(state(), FeedState::Partial, "the source has sent no full state");
    let mut soon = settings(pushed(&["m"]));
    soon.event_rules.stale_after = Duration::from_secs(1);
    registry.apply(soon.clone()).unwrap();
    assert_eq!(state(), FeedState::Stale);
    soon.pods.clear();
    registry.apply(soon.clone()).unwrap();
    registry.apply(Settings { pods: vec![pushed(&["m"])], ..soon }).unwrap();
    store_two_blocks(&registry, &attach(&registry));
    assert_eq!(state(), FeedState::Stale, "also for pods added later");
}

#[test]
fn adapters_are_those_configured_and_those_reported() {
    let cards = [json!({"id": "m"}), json!({"id": "sql", "parent": "m"})];
    let endpoint = Endpoint::new(URL, BreakerRules::default(), 1).unwrap();
    for models in [&[][..], &["m"]] {
        let mut pod = pushed(models);
        pod.facts.loras = vec!["law".into(), "sql".into()];
        let facts = facts_with(&pod, &endpoint, &cards, &EngineFacts::default());
        let strings = |names: &[Name]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (strings(&facts.models), strings(&facts.loras)),
            (vec!["m".into()], vec!["law".into(), "sql".into()])
        );
        pod.facts.loras.clear();
        assert_eq!(
            strings(&facts_with(&pod, &endpoint, &cards, &EngineFacts::default()).loras),
            ["sql"]
        );
    }
}
