//! The output of `check --print` is a profile with the same meaning.

use wornpath_index::Moment;

use proptest::prelude::*;
use wornpath_routing::fleet_spec::FleetSpec;
use wornpath_routing::{
    DecisionEnv, DecisionState, Name, Outcome, Profile, ProfileEnv, Prompt, Registry, Request, Rng,
    Stage,
};

/// A text as a YAML string with every character escaped, so that nothing in it is special.
fn escaped(text: &str) -> String {
    let letters: String = text.chars().map(|c| format!("\\U{:08X}", u32::from(c))).collect();
    format!("\"{letters}\"")
}

/// Texts that are special in YAML, in profiles, or to code that splits lines.
#[rustfmt::skip]
const SPECIAL: [&str; 32] = [
    "", " ", "top level", "null", "~", "true", "1", "1e3", "-", "- a", "a: b", "a #b", "#", "{", "}", "[x]", ",",
    "'", "\"", "\\", "%", "@", "`", "!t", "&a", "*a", "|", "?", "\t", "a\nb", "\u{85}", "\u{FEFF}é🦀",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![prop::sample::select(&SPECIAL[..]).prop_map(str::to_owned), "(?s).{0,12}"]
}

/// A profile with these texts in every position where a profile allows any text.
fn profile(texts: &[String; 9]) -> String {
    let [description, header, selector, first, second, role, field, value, tenant] =
        texts.each_ref().map(|text| escaped(text));
    format!(
        "description: {description}
prepare: [tokenize, block_hash, plan_hint, session_key: {{header: {header}}}]
selectors:
  {selector}:
    score: [{{expression: {{score: \"pod.name == 'p1' ? 1.0 : 0.0\"}}}}, cache_affinity: {{tiers: {{host: 0.25}}}}]
    pick: {{session: {{ttl: 1500us, otherwise: {{planned: {{otherwise: power_of_two}}}}}}}}
workflow:
  steps:
    - {first}: {{selector: {selector}, role: {role}, set: {{{field}: {value}, n: 1.5, z: ~}}, prefill_only: true, offers: mooncake}}
    - {second}: {{selector: {selector}, role: {role}, deadline: 0.25s, start: together, takes: mooncake, fallbacks: 1}}
hold: {{unless: [{{concurrency: {{requests: 9}}}}], shares: {{{tenant}: 3}}}}
"
    )
}

/// The plan of one request on the fleet, as JSON.
fn planned(profile: &Profile, built: &wornpath_routing::fleet_spec::BuiltFleet) -> String {
    let mut state = DecisionState::new(&built.index);
    let mut rng = Rng::new(3);
    let mut request = Request { prompt: Prompt::Tokens((0..64).collect()), ..Request::default() };
    request.model.base = Name::from("m");
    let mut context = profile.context(request);
    profile.prepare(&mut context).unwrap();
    let fleet = &built.fleet;
    let now = Moment::ZERO;
    let mut env = DecisionEnv { fleet, state: &mut state, now, rng: &mut rng };
    match profile.decide(&mut context, &mut env) {
        Outcome::Plan(plan) => plan.to_json(|pod| built.name(pod)).to_string(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_printed_profile_checks_prints_itself_and_plans_the_same(
        mut texts in prop::array::uniform9(text()),
    ) {
        texts[4].insert(0, '2');
        prop_assume!(texts[3] != texts[4] && !["n", "z"].contains(&texts[6].as_str()));
        let role = escaped(&texts[5]);
        let fleet = format!(
            "models: [{{name: m}}]\npods: [{{name: p0, role: [{role}]}}, {{name: p1, role: [{role}]}}]\n"
        );
        let spec = FleetSpec::read("fleet.yaml", &fleet).unwrap();
        let built = spec.build(Moment::ZERO, |_| None).unwrap();
        let env = ProfileEnv {
            models: built.models.clone(),
            roles: Some(spec.roles()),
            ..ProfileEnv::default()
        };
        let check = |text: &str| Profile::check("p.yaml", text, &env).unwrap();
        let profile = check(&profile(&texts));
        let again = check(&profile.printed());
        prop_assert_eq!(again.printed(), profile.printed());
        prop_assert_eq!(again.description(), Some(texts[0].as_str()));
        prop_assert_eq!(again.graph(), profile.graph());
        prop_assert_eq!(again.queue_rules(), profile.queue_rules());
        prop_assert_eq!(planned(&again, &built), planned(&profile, &built));
    }
}

/// All preparers but `text_blocks`, which replaces `block_hash`.
const PREPARE: [&str; 6] =
    ["tokenize", "block_hash", "session_key", "hash_key", "attributes", "plan_hint"];

/// A profile that contains a plugin's example and everything that it may need.
fn profile_with(registry: &Registry, stage: Stage, example: &str) -> String {
    let example_of = |name: &&str| registry.find(Stage::Prepare, name).unwrap().example;
    let mut text = String::from("prepare:\n");
    for preparer in PREPARE.iter().map(example_of) {
        let replaced = example.starts_with("text_blocks") && preparer.starts_with("block_hash");
        text += &format!("  - {}\n", if replaced { example } else { preparer });
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
fn every_plugin_is_printed_with_all_its_parameters() {
    let registry = Registry::shipped();
    for plugin in registry.plugins() {
        let text = profile_with(&registry, plugin.stage(), plugin.example);
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
