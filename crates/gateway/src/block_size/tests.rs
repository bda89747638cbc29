//! What engines report, and what becomes of it.

use super::*;
use crate::settings::{EventSource, NamedProfile, PodSettings};
use serde_json::json;
use tokio::runtime::Runtime;
use wornpath_events::wire::{WireBatch, WireEvent, WireStored};
use wornpath_events::{
    BatchId, BlockIdScheme, BlockIdentity, Capabilities, Delivery, ResumePoint, SourceMessage,
    SourceSignal,
};
use wornpath_index::{Depths, EngineHash};
use wornpath_routing::ByteTokenizer;

fn tokens(tokens: usize) -> NonZeroUsize {
    NonZeroUsize::new(tokens).unwrap()
}

fn model(name: &str, block_size: BlockSize) -> ModelSettings {
    let tokenizer = Some(Arc::new(ByteTokenizer) as _);
    ModelSettings { name: name.into(), block_size, tokenizer, aliases: Vec::new() }
}

fn url(pod: usize) -> String {
    format!("http://127.0.0.1:{}", pod + 1)
}

/// Pods of the model `m` whose events are pushed.
fn settings(pods: usize, models: Vec<ModelSettings>) -> Settings {
    let text = "{prepare: [tokenize, block_hash], score: [cache_affinity], pick: max_score}";
    let pod = |number| {
        let mut pod = PodSettings::at(&url(number));
        pod.facts.models = vec!["m".into()];
        pod.events = Some(EventSource::Elsewhere);
        pod
    };
    Settings {
        pods: (0..pods).map(pod).collect(),
        models,
        profiles: vec![NamedProfile {
            name: "held".into(),
            file: "test".into(),
            text: text.to_owned(),
        }],
        ..Settings::default()
    }
}

fn start(settings: Settings) -> (Arc<Gateway>, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    (Gateway::new(settings, runtime.handle().clone(), 7).unwrap(), runtime)
}

fn report(gateway: &Gateway, pod: usize, size: usize) {
    let page = format!("vllm:cache_config_info{{block_size=\"{size}\"}} 1.0\n");
    gateway.note_block_size(&url(pod), Some(&page));
}

/// Tokens that are whole blocks of every size here.
const WHOLE: usize = 192;

/// The size of `m` in the settings, by which its prompts are hashed too, and the events of its first pod translated.
fn size(gateway: &Gateway) -> BlockSize {
    let source = gateway.events().attach("push", Capabilities::default());
    let pod = gateway.roster().seats()[0].pod.clone();
    let mut batch = Box::<WireBatch>::default();
    batch.push(WireEvent::Stored(WireStored::plain(&[EngineHash(1)], None, &[7; WHOLE])));
    let said = SourceMessage::Batch { id: BatchId::default(), delivery: Delivery::Live, batch };
    let heard = SourceSignal::Pod(pod.facts().name.as_str().into(), said);
    gateway.events().handle(&mut gateway.index().writer(), &source, heard, gateway.now());

    let (routing, mut chain, mut answer) = (gateway.routing(), Vec::new(), Depths::default());
    let hasher = routing.models().find(&"m".into()).unwrap().hasher();
    let root = gateway.settings().key.root(&Scope::model("m"));
    hasher.hash_tokens(&[7; WHOLE], root, &mut chain);
    gateway.index().reader().lookup(&chain, &mut answer);
    let size = gateway.settings().models[0].block_size;
    assert_eq!(hasher.block_size(), size.tokens());
    assert_eq!(answer.depth(pod.slot()) * size.tokens().get(), WHOLE, "what it said is found");
    size
}

fn mismatches(gateway: &Gateway) -> Vec<Option<String>> {
    let (roster, settings) = (gateway.roster(), gateway.settings());
    let shown = |seat| mismatch(seat, roster.seats(), &settings).map(|it| it.to_string());
    roster.seats().iter().map(shown).collect()
}

#[test]
fn without_a_configured_size_the_engines_size_counts() {
    let (gateway, _runtime) = start(settings(1, vec![model("m", BlockSize::default())]));
    assert_eq!(size(&gateway), BlockSize::Unasked(tokens(16)));
    report(&gateway, 0, 32);
    assert_eq!(size(&gateway), BlockSize::Reported(tokens(32)));
    assert_eq!(mismatches(&gateway), [None]);
}

#[test]
fn engines_of_different_sizes_have_the_greatest_divisor_and_it_never_grows() {
    let (gateway, _runtime) = start(settings(3, vec![model("m", BlockSize::default())]));
    for (pod, reported, common) in [(0, 32, 32), (1, 48, 16), (2, 64, 16)] {
        report(&gateway, pod, reported);
        assert_eq!(size(&gateway), BlockSize::Reported(tokens(common)));
    }
    let name = gateway.roster().seats()[1].pod.facts().name.to_string();
    assert!(gateway.remove_pod(&name));
    report(&gateway, 2, 128);
    assert_eq!(size(&gateway), BlockSize::Reported(tokens(16)), "it may come back");
    assert_eq!(mismatches(&gateway), [None, None], "nobody configured it");
}

#[test]
fn an_engine_that_reports_nothing_leaves_the_size_as_assumed_until_another_reports() {
    let (gateway, _runtime) = start(settings(2, vec![model("m", BlockSize::default())]));
    gateway.note_block_size(&url(0), None);
    assert_eq!(size(&gateway), BlockSize::Assumed(tokens(16)));
    gateway.note_block_size(&url(0), Some("vllm:num_requests_waiting 0\n"));
    assert_eq!(size(&gateway), BlockSize::Assumed(tokens(16)));
    report(&gateway, 1, 64);
    assert_eq!(size(&gateway), BlockSize::Reported(tokens(64)));
    gateway.note_block_size(&url(1), None);
    assert_eq!(size(&gateway), BlockSize::Reported(tokens(64)), "one miss is no news");
}

#[test]
fn a_configured_size_stays_and_only_engines_that_predictions_are_off_for_are_told_of() {
    let off = |most: usize, cure: usize| {
        format!(
            "predictions for this pod are off by less than {most} tokens; set `block_size` of model `m` to {cure}, or \
             --block-size {cure}, unless other engines of the model have smaller blocks"
        )
    };
    let refused = |cure: usize| {
        format!(
            "its cache events cannot be cut into the index's blocks and are refused; set `block_size` of model `m` to \
             {cure}, or --block-size {cure}"
        )
    };
    for (configured, engines, expected) in [
        (16, [16, 16], [None, None]),
        (16, [32, 32], [Some(off(32, 32)), Some(off(32, 32))]),
        (32, [16, 16], [Some(refused(16)), Some(refused(16))]),
        (32, [16, 32], [Some(refused(16)), None]),
        (16, [48, 32], [None, None]),
        (16, [16, 32], [None, None]),
        (8, [16, 32], [Some(off(16, 16)), Some(off(32, 16))]),
    ] {
        let its = BlockSize::Configured(tokens(configured));
        let (gateway, _runtime) = start(settings(2, vec![model("m", its)]));
        for (pod, engine) in engines.into_iter().enumerate() {
            report(&gateway, pod, engine);
        }
        assert_eq!(size(&gateway), its);
        assert_eq!(mismatches(&gateway), expected, "{configured} {engines:?}");
    }
}

#[test]
fn a_pod_without_events_has_none_that_are_refused() {
    let mut settings = settings(1, vec![model("m", BlockSize::Configured(tokens(32)))]);
    settings.pods[0].events = None;
    let (gateway, _runtime) = start(settings);
    report(&gateway, 0, 16);
    let told = mismatches(&gateway)[0].clone().unwrap();
    assert!(
        told.starts_with("predictions for this pod are off by less than 32 tokens; "),
        "{told}"
    );
}

#[test]
fn an_engine_that_was_restarted_with_another_size_counts_by_that() {
    let size = BlockSize::Configured(tokens(16));
    let (gateway, _runtime) = start(settings(1, vec![model("m", size)]));
    report(&gateway, 0, 16);
    assert_eq!(mismatches(&gateway), [None]);
    report(&gateway, 0, 64);
    assert!(mismatches(&gateway)[0].is_some());
    report(&gateway, 0, 16);
    assert_eq!(mismatches(&gateway), [None]);
}

#[test]
fn what_was_reported_stays_under_a_new_configuration_and_is_known_of_a_model_that_it_lists_first() {
    let [m, n] = ["m", "n"].map(|name| model(name, BlockSize::default()));
    let mut first = settings(1, vec![n.clone()]);
    first.pods[0].facts.models.clear();
    let (gateway, _runtime) = start(first.clone());
    gateway.introduce(&url(0), &Arc::from([json!({"id": "m"})]));
    report(&gateway, 0, 32);
    let block_size = |at: usize| gateway.settings().models[at].block_size;
    assert_eq!(block_size(0), BlockSize::default(), "the pod serves another model");
    for _ in 0..2 {
        gateway.apply(Settings { models: vec![n.clone(), m.clone()], ..first.clone() }).unwrap();
        assert_eq!(block_size(0), BlockSize::default());
        assert_eq!(block_size(1), BlockSize::Reported(tokens(32)));
    }
    let configured = model("m", BlockSize::Configured(tokens(8)));
    gateway.apply(Settings { models: vec![n, configured], ..first }).unwrap();
    assert_eq!(block_size(1), BlockSize::Configured(tokens(8)));
}

#[test]
fn a_checkpoint_is_read_by_the_size_that_it_was_written_by_unless_another_is_configured() {
    let record = |model: &str, block_size| {
        let root = Settings::default().key.root(&Scope::model(model));
        let identity = BlockIdentity { root, block_size, scheme: BlockIdScheme::default() };
        PodCheckpoint {
            pod: "a".into(),
            identity,
            resume_point: ResumePoint::default(),
            partial_groups: Vec::new(),
            blocks: Vec::new(),
        }
    };
    let configured = BlockSize::Configured(tokens(16));
    let models = vec![
        model("m", BlockSize::default()),
        model("n", configured),
        model("o", BlockSize::default()),
    ];
    let mut settings = settings(1, models);
    recall(&mut settings, &[record("n", 64), record("m", 32)]);
    let sizes: Vec<_> = settings.models.iter().map(|model| model.block_size).collect();
    assert_eq!(sizes, [BlockSize::Unasked(tokens(32)), configured, BlockSize::default()]);
}
