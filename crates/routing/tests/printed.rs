//! What `check --print` prints is a profile itself, and means the same.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::time::Duration;

use proptest::prelude::*;
use wornpath_routing::fleet_spec::FleetSpec;
use wornpath_routing::{
    DecisionEnv, DecisionState, Name, Outcome, Profile, ProfileEnv, Prompt, Registry, Request, Rng,
    Stage,
};

/// A text as YAML that needs no knowledge of what is special in YAML: every character by its number.
fn spelled(text: &str) -> String {
    let letters: String = text.chars().map(|c| format!("\\U{:08X}", u32::from(c))).collect();
    format!("\"{letters}\"")
}

/// Texts that mean something in YAML, in our files, or to who splits lines.
#[rustfmt::skip]
const NASTY: [&str; 32] = [
    "", " ", "top level", "null", "~", "true", "1", "1e3", "-", "- a", "a: b", "a #b", "#", "{", "}", "[x]", ",",
    "'", "\"", "\\", "%", "@", "`", "!t", "&a", "*a", "|", "?", "\t", "a\nb", "\u{85}", "\u{FEFF}é🦀",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![prop::sample::select(&NASTY[..]).prop_map(str::to_owned), "(?s).{0,12}"]
}

/// A profile with these texts wherever a profile can have any text.
fn profile(texts: &[String; 9]) -> String {
    let [described, header, selector, first, second, role, field, value, tenant] =
        texts.each_ref().map(|text| spelled(text));
    format!(
        "description: {described}
prepare: [tokenize, block_hash, plan_hint, session_key: {{header: {header}}}]
selectors:
  {selector}:
    score: [{{expression: {{score: \"pod.name == 'p1' ? 1.0 : 0.0\"}}}}, cache_affinity: {{tiers: {{host: 0.25}}}}]
    pick: {{session: {{ttl: 1500us, otherwise: {{planned: {{otherwise: power_of_two}}}}}}}}
workflow:
  steps:
    - {first}: {{selector: {selector}, role: {role}, set: {{{field}: {value}, n: 1.5, z: ~}}, prefill_only: true}}
    - {second}: {{selector: {selector}, role: {role}, deadline: 0.25s, takes: mooncake, fallbacks: 1}}
hold: {{unless: [{{concurrency: {{requests: 9}}}}], shares: {{{tenant}: 3}}}}
"
    )
}

/// The plan of one request on three pods that can play the role.
fn planned(profile: &Profile, built: &wornpath_routing::fleet_spec::BuiltFleet) -> String {
    let (mut state, mut rng) = (DecisionState::new(&built.index), Rng::new(3));
    let mut request = Request { prompt: Prompt::Tokens((0..64).collect()), ..Request::default() };
    request.model.base = Name::from("m");
    let mut context = profile.context(request);
    profile.prepare(&mut context).unwrap();
    let (fleet, now) = (&built.fleet, Duration::ZERO);
    let mut world = DecisionEnv { fleet, state: &mut state, now, rng: &mut rng };
    match profile.decide(&mut context, &mut world) {
        Outcome::Plan(plan) => plan.to_json(|pod| built.name(pod)).to_string(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_printed_profile_checks_prints_as_itself_and_plans_alike(
        mut texts in prop::array::uniform9(text()),
    ) {
        texts[4].insert(0, '2');
        prop_assume!(texts[3] != texts[4] && !["n", "z"].contains(&texts[6].as_str()));
        let role = spelled(&texts[5]);
        let fleet = format!(
            "models: [{{name: m}}]\npods: [{{name: p0, roles: [{role}]}}, {{name: p1, roles: [{role}]}}]\n"
        );
        let described = FleetSpec::read("fleet.yaml", &fleet).unwrap();
        let built = described.build(Duration::ZERO, |_| None).unwrap();
        let surroundings = ProfileEnv {
            models: built.models.clone(),
            roles: Some(described.roles()),
            ..ProfileEnv::default()
        };
        let check = |text: &str| Profile::check("p.yaml", text, &surroundings).unwrap();
        let profile = check(&profile(&texts));
        let again = check(&profile.printed());
        prop_assert_eq!(again.printed(), profile.printed());
        prop_assert_eq!(again.description(), Some(texts[0].as_str()));
        prop_assert_eq!(again.graph(), profile.graph());
        prop_assert_eq!(again.queue_rules(), profile.queue_rules());
        prop_assert_eq!(planned(&again, &built), planned(&profile, &built));
    }
}

/// All preparers but `text_blocks`, which stands for two of them.
const PREPARE: [&str; 6] =
    ["tokenize", "block_hash", "session_key", "hash_key", "attributes", "plan_hint"];

/// A profile in which a plugin stands as in its example, with whatever it may need.
fn around(registry: &Registry, stage: Stage, example: &str) -> String {
    let example_of = |name: &&str| registry.find(Stage::Prepare, name).unwrap().example;
    let mut text = String::from("prepare:\n");
    for preparer in PREPARE.iter().map(example_of) {
        let stands_for = example.starts_with("text_blocks") && preparer.starts_with("block_hash");
        text += &format!("  - {}\n", if stands_for { example } else { preparer });
    }
    text += "selectors:\n  any: {pick: max_score}\n  its:\n";
    match stage {
        Stage::Prepare => {}
        Stage::Pick => return format!("{text}    pick: [{example}]\n{STEPS}"),
        Stage::Filter | Stage::Score => {
            text += &format!("    {}:\n      - {example}\n", stage.key());
        }
    }
    format!("{text}    pick: max_score\n{STEPS}")
}

const STEPS: &str = "workflow: {steps: [prefill: {selector: any}, serve: {selector: its}]}\n";

#[test]
fn every_plugin_prints_as_itself_with_all_its_parameters() {
    let registry = Registry::shipped();
    for plugin in registry.plugins() {
        let text = around(&registry, plugin.stage(), plugin.example);
        let check = |text: &str| {
            Profile::check(plugin.name, text, &ProfileEnv::default())
                .unwrap_or_else(|problems| panic!("{problems}"))
        };
        let profile = check(&text);
        let printed = profile.printed();
        assert!(printed.contains(plugin.name), "{printed}");
        for parameter in plugin.parameters {
            let has_default = matches!(parameter.absent, wornpath_routing::Absent::Means(_));
            assert!(
                !has_default || printed.contains(&format!("{}: ", parameter.name)),
                "{printed}"
            );
        }
        assert_eq!(check(&printed).printed(), printed);
        assert_eq!(check(&printed).graph(), profile.graph());
    }
}
