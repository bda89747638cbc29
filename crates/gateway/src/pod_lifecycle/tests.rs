//! Who is who after a change: the same pod, the same engine in a new seat, or another.

use super::*;
use crate::settings::{BlockSize, ModelSettings, NamedProfile};
use serde_json::json;
use std::time::Duration;
use tokio::runtime::Runtime;
use wornpath_events::wire::{WireBatch, WireEvent, WireStored};
use wornpath_events::{
    AttachedSource, BatchId, Capabilities, Delivery, FeedState, SourceMessage, SourceSignal,
};
use wornpath_index::{BlockDigest, EngineHash};

const URL: &str = "http://127.0.0.1:1";

fn model(name: &str) -> ModelSettings {
    let block_size = BlockSize::default();
    ModelSettings { name: name.into(), block_size, tokenizer: None, aliases: Vec::new() }
}

/// A pod whose events are pushed; if no model is given, it is asked.
fn pushed(models: &[&str]) -> PodSettings {
    let mut pod = PodSettings::at(URL);
    pod.facts.models = models.iter().map(|name| (*name).into()).collect();
    pod.events = Some(EventSource::Elsewhere);
    pod.event_sources = vec!["push".into()];
    pod
}

fn settings(pod: PodSettings) -> Settings {
    let text = "{filter: [model], score: [least_load], pick: max_score}".to_owned();
    Settings {
        pods: vec![pod],
        models: vec![model("m"), model("m2")],
        profiles: vec![NamedProfile { name: "fair".into(), file: "test".into(), text }],
        ..Settings::default()
    }
}

fn start(settings: Settings) -> (Arc<Gateway>, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    (Gateway::new(settings, runtime.handle().clone(), 7).unwrap(), runtime)
}

fn seat(gateway: &Gateway) -> PodEntry {
    gateway.roster().seats()[0].clone()
}

fn attach(gateway: &Gateway) -> AttachedSource {
    gateway.events().attach("push", Capabilities { snapshot: true, ..Capabilities::default() })
}

/// The pod says that it holds two blocks.
fn say(gateway: &Gateway, source: &AttachedSource) {
    let mut batch = Box::<WireBatch>::default();
    let (hashes, tokens) = ([1, 2].map(EngineHash), [7; 32]);
    batch.push(WireEvent::Stored(WireStored::plain(&hashes, None, &tokens)));
    let mut writer = gateway.index().writer();
    let pod: Arc<str> = seat(gateway).pod.facts().name.as_str().into();
    for said in [
        SourceMessage::Connected,
        SourceMessage::Batch { id: BatchId::default(), delivery: Delivery::Live, batch },
    ] {
        let heard = SourceSignal::Pod(Arc::clone(&pod), said);
        gateway.events().handle(&mut writer, source, heard, gateway.now());
    }
}

fn blocks(gateway: &Gateway) -> BlockDigest {
    gateway.index().digest(seat(gateway).pod.id()).unwrap().blocks
}

#[test]
fn a_pod_that_another_source_speaks_of_comes_anew() {
    let (gateway, _runtime) = start(settings(pushed(&["m"])));
    say(&gateway, &attach(&gateway));
    assert_eq!(blocks(&gateway).count, 2);
    let before = seat(&gateway).pod.id();
    gateway.apply(settings(pushed(&["m"]))).unwrap();
    assert_eq!(seat(&gateway).pod.id(), before, "nothing has changed");
    let elsewhere = PodSettings { event_sources: vec!["broker".into()], ..pushed(&["m"]) };
    gateway.apply(settings(elsewhere)).unwrap();
    assert_ne!(seat(&gateway).pod.id(), before);
    assert_eq!(blocks(&gateway).count, 0);
}

#[test]
fn a_pod_that_comes_anew_at_the_same_address_is_up_and_loaded_as_it_was() {
    let (gateway, _runtime) = start(settings(pushed(&[])));
    gateway.introduce(URL, &Arc::from([json!({"id": "m"})]));
    let before = seat(&gateway);
    before.pod.vitals().set_health(Health::Up);
    let zmq = EventSource::ZeroMq("zmq://127.0.0.1:1".parse().unwrap());
    gateway.apply(settings(PodSettings { events: Some(zmq), ..pushed(&[]) })).unwrap();
    let after = seat(&gateway);
    assert_ne!(after.pod.id(), before.pod.id());
    assert!(Arc::ptr_eq(after.pod.vitals(), before.pod.vitals()));
    assert!(Arc::ptr_eq(&after.endpoint, &before.endpoint));
    assert_eq!(after.pod.vitals().health(), Health::Up);
    assert_eq!(after.pod.facts().models[0], *"m", "it has said so before");
    assert_eq!(after.pod.vitals().trust(), EventTrust::Unsure);

    let mut moved = PodSettings { url: "http://127.0.0.1:2".into(), ..pushed(&[]) };
    moved.facts.name = after.pod.facts().name.clone();
    gateway.apply(settings(moved)).unwrap();
    assert_eq!(seat(&gateway).pod.vitals().health(), Health::Down, "another has its name");
}

#[test]
fn events_are_understood_by_the_model_that_a_pod_says_it_serves() {
    let (told, _runtime) = start(settings(pushed(&["m2"])));
    say(&told, &attach(&told));
    let (asked, _other) = start(settings(pushed(&[])));
    let source = attach(&asked);
    say(&asked, &source);
    assert_eq!((blocks(&told).count, blocks(&asked).count), (2, 2));
    assert_ne!(blocks(&told), blocks(&asked));
    asked.introduce(URL, &Arc::from([json!({"id": "m2"})]));
    assert_eq!(blocks(&asked).count, 0, "what was said before meant something else");
    say(&asked, &source);
    assert_eq!(blocks(&told), blocks(&asked));
    asked.introduce(URL, &Arc::from([json!({"id": "m2"}), json!({"id": "m", "parent": "m2"})]));
    asked.apply(settings(pushed(&[]))).unwrap();
    assert_eq!(blocks(&told), blocks(&asked), "the same again changes nothing");
}

#[test]
fn how_long_events_may_be_silent_can_be_changed() {
    let (gateway, _runtime) = start(settings(pushed(&["m"])));
    say(&gateway, &attach(&gateway));
    let state = || {
        let later = gateway.now() + Duration::from_secs(10);
        gateway.events().status(later)[0].status.state
    };
    assert_eq!(state(), FeedState::Live);
    let mut soon = settings(pushed(&["m"]));
    soon.event_rules.stale_after = Duration::from_secs(1);
    gateway.apply(soon.clone()).unwrap();
    assert_eq!(state(), FeedState::Stale);
    soon.pods.clear();
    gateway.apply(soon.clone()).unwrap();
    gateway.apply(Settings { pods: vec![pushed(&["m"])], ..soon }).unwrap();
    say(&gateway, &attach(&gateway));
    assert_eq!(state(), FeedState::Stale, "also for those who come later");
}

#[test]
fn what_a_pod_adapts_its_models_by_is_what_is_configured_and_what_it_says() {
    let cards = [json!({"id": "m"}), json!({"id": "sql", "parent": "m"})];
    for models in [&[][..], &["m"]] {
        let mut pod = pushed(models);
        pod.facts.loras = vec!["law".into(), "sql".into()];
        let facts = introduced(&pod, &cards);
        let words = |names: &[Name]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (words(&facts.models), words(&facts.loras)),
            (vec!["m".into()], vec!["law".into(), "sql".into()])
        );
        pod.facts.loras.clear();
        assert_eq!(words(&introduced(&pod, &cards).loras), ["sql"]);
    }
}
