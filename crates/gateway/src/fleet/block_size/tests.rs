//! Reported block sizes, and their effect on settings, hashes and warnings.

use super::*;
use crate::proxy::gateway::Gateway;
use serde_json::json;
use tokio::runtime::Runtime;
use wornpath_config::{EventSource, NamedProfile, PodConfig, TokenizerSource};
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
    ModelSettings {
        name: name.into(),
        block_size,
        tokenizer,
        tokenizer_source: TokenizerSource::Configured,
        aliases: Vec::new(),
        wait_for_pod: std::time::Duration::ZERO,
    }
}

fn url(pod: usize) -> String {
    format!("http://127.0.0.1:{}", pod + 1)
}

/// Pods of the model `m` whose events are pushed.
fn settings(pods: usize, models: Vec<ModelSettings>) -> Settings {
    let text = "{prepare: [tokenize, block_hash], score: [cache_affinity], pick: max_score}";
    let pod = |number| {
        let mut pod = PodConfig::new(&url(number));
        pod.facts.models = vec!["m".into()];
        pod.events = vec![EventSource::Source("sidecars".into())];
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

fn start(settings: Settings) -> (Arc<PodRegistry>, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    (Arc::clone(Gateway::new(settings, runtime.handle().clone(), 7).unwrap().pods()), runtime)
}

fn report(registry: &PodRegistry, pod: usize, size: usize) {
    let page = format!("vllm:cache_config_info{{block_size=\"{size}\"}} 1.0\n");
    registry.record_block_size(&url(pod), Some(&page));
}

/// Tokens that are whole blocks of every size here.
const WHOLE: usize = 192;

/// The size of `m` in the settings. Checks that its prompts are hashed and the events of its first
/// pod are decoded by the same size.
fn size(registry: &PodRegistry) -> BlockSize {
    let source = registry.events().attach("push", Capabilities::default());
    let pod = registry.snapshot().entries()[0].pod.clone();
    let mut batch = Box::<WireBatch>::default();
    batch.push(WireEvent::Stored(WireStored::plain(&[EngineHash(1)], None, &[7; WHOLE])));
    let message = SourceMessage::Batch { id: BatchId::default(), delivery: Delivery::Live, batch };
    let signal = SourceSignal::Pod(pod.facts().name.as_str().into(), message);
    registry.events().handle(&mut registry.index().writer(), &source, signal, registry.now());

    let routing = registry.routes();
    let mut chain = Vec::new();
    let mut depths = Depths::default();
    let hasher = routing.models().find(&"m".into()).unwrap().hasher();
    let root = registry.settings().key.root(&Scope::model("m"));
    hasher.hash_tokens(&[7; WHOLE], root, &mut chain);
    registry.index().reader().lookup(&chain, &mut depths);
    let size = registry.settings().models[0].block_size;
    assert_eq!(hasher.block_size(), size.tokens());
    assert_eq!(
        depths.depth(pod.slot()) * size.tokens().get(),
        WHOLE,
        "the stored blocks are found"
    );
    size
}

fn mismatches(registry: &PodRegistry) -> Vec<Option<String>> {
    let snapshot = registry.snapshot();
    let settings = registry.settings();
    let shown = |entry| mismatch(entry, snapshot.entries(), &settings).map(|it| it.to_string());
    snapshot.entries().iter().map(shown).collect()
}

#[test]
fn without_a_configured_size_the_reported_one_is_used() {
    let (registry, _runtime) = start(settings(1, vec![model("m", BlockSize::default())]));
    assert_eq!(size(&registry), BlockSize::Unknown(tokens(16)));
    report(&registry, 0, 32);
    assert_eq!(size(&registry), BlockSize::Reported(tokens(32)));
    assert_eq!(mismatches(&registry), [None]);
}

#[test]
fn different_reported_sizes_give_their_common_divisor_which_never_grows() {
    let (registry, _runtime) = start(settings(3, vec![model("m", BlockSize::default())]));
    for (pod, reported, common) in [(0, 32, 32), (1, 48, 16), (2, 64, 16)] {
        report(&registry, pod, reported);
        assert_eq!(size(&registry), BlockSize::Reported(tokens(common)));
    }
    let name = registry.snapshot().entries()[1].pod.facts().name.to_string();
    assert!(registry.remove_pod(&name));
    report(&registry, 2, 128);
    assert_eq!(
        size(&registry),
        BlockSize::Reported(tokens(16)),
        "the removed engine may come back"
    );
    assert_eq!(mismatches(&registry), [None, None], "no size is configured");
}

#[test]
fn the_default_is_assumed_until_an_engine_reports_a_size() {
    let (registry, _runtime) = start(settings(2, vec![model("m", BlockSize::default())]));
    registry.record_block_size(&url(0), None);
    assert_eq!(size(&registry), BlockSize::Assumed(tokens(16)));
    registry.record_block_size(&url(0), Some("vllm:num_requests_waiting 0\n"));
    assert_eq!(size(&registry), BlockSize::Assumed(tokens(16)));
    report(&registry, 1, 64);
    assert_eq!(size(&registry), BlockSize::Reported(tokens(64)));
    registry.record_block_size(&url(1), None);
    assert_eq!(size(&registry), BlockSize::Reported(tokens(64)), "a missed scrape changes nothing");
}

#[test]
fn a_configured_size_stays_and_only_affected_engines_have_a_mismatch() {
    let off = |most: usize, recommended: usize| {
        format!(
            "predictions for this pod are off by less than {most} tokens; set `block_size` of model `m` to {recommended}, or \
             --block-size {recommended}, unless other engines of the model have smaller blocks"
        )
    };
    let refused = |recommended: usize| {
        format!(
            "its cache events do not align with the index's blocks and are refused; set `block_size` of model `m` to \
             {recommended}, or --block-size {recommended}"
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
        let configured_size = BlockSize::Configured(tokens(configured));
        let (registry, _runtime) = start(settings(2, vec![model("m", configured_size)]));
        for (pod, engine) in engines.into_iter().enumerate() {
            report(&registry, pod, engine);
        }
        assert_eq!(size(&registry), configured_size);
        assert_eq!(mismatches(&registry), expected, "{configured} {engines:?}");
    }
}

#[test]
fn the_mismatch_of_a_pod_without_events_names_no_refused_events() {
    let mut settings = settings(1, vec![model("m", BlockSize::Configured(tokens(32)))]);
    settings.pods[0].events = Vec::new();
    let (registry, _runtime) = start(settings);
    report(&registry, 0, 16);
    let shown = mismatches(&registry)[0].clone().unwrap();
    assert!(
        shown.starts_with("predictions for this pod are off by less than 32 tokens; "),
        "{shown}"
    );
}

#[test]
fn a_restarted_engine_is_compared_by_its_new_size() {
    let size = BlockSize::Configured(tokens(16));
    let (registry, _runtime) = start(settings(1, vec![model("m", size)]));
    report(&registry, 0, 16);
    assert_eq!(mismatches(&registry), [None]);
    report(&registry, 0, 64);
    assert!(mismatches(&registry)[0].is_some());
    report(&registry, 0, 16);
    assert_eq!(mismatches(&registry), [None]);
}

#[test]
fn a_reported_size_survives_a_reload_and_applies_to_a_newly_listed_model() {
    let [m, n] = ["m", "n"].map(|name| model(name, BlockSize::default()));
    let mut first = settings(1, vec![n.clone()]);
    first.pods[0].facts.models.clear();
    let (registry, _runtime) = start(first.clone());
    registry.set_models(&url(0), &Arc::from([json!({"id": "m"})]));
    report(&registry, 0, 32);
    let block_size = |at: usize| registry.settings().models[at].block_size;
    assert_eq!(block_size(0), BlockSize::default(), "the pod serves another model");
    for _ in 0..2 {
        registry.apply(Settings { models: vec![n.clone(), m.clone()], ..first.clone() }).unwrap();
        assert_eq!(block_size(0), BlockSize::default());
        assert_eq!(block_size(1), BlockSize::Reported(tokens(32)));
    }
    let configured = model("m", BlockSize::Configured(tokens(8)));
    registry.apply(Settings { models: vec![n, configured], ..first }).unwrap();
    assert_eq!(block_size(1), BlockSize::Configured(tokens(8)));
}

#[test]
fn the_size_of_a_checkpoint_is_restored_unless_another_is_configured() {
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
    restore(&mut settings, &[record("n", 64), record("m", 32)]);
    let sizes: Vec<_> = settings.models.iter().map(|model| model.block_size).collect();
    assert_eq!(sizes, [BlockSize::Unknown(tokens(32)), configured, BlockSize::default()]);
}
