//! Every shipped profile is loaded, checked and run, and does what its first line says.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use wornpath_routing::fleet_spec::{BuiltFleet, FleetSpec};
use wornpath_routing::{
    DecisionEnv, DecisionState, Health, Name, Outcome, Profile, ProfileEnv, Prompt, Registry,
    Request, Rng, RoutingPlan,
};

#[rustfmt::skip]
const SHIPPED: [&str; 17] = [
    "cache-affinity", "cache-aware", "cache-aware-sticky", "consistent-hash", "dynamo", "geo",
    "least-load", "llm-d", "llm-d-sticky", "lmetric", "lora", "min-ttft", "prefill-decode",
    "preprocess-prefill-decode", "round-robin", "sglang", "sticky-least-loaded",
];

/// Six pods: all can serve, two have each special role; two hosts, two regions; one adapter on two.
const FLEET: &str = "
models: [{name: m, block_size: 16}]
pods:
  - {name: p0, roles: [serve, preprocess], host: h0, region: eu}
  - {name: p1, roles: [serve, preprocess], host: h1, region: us, loras: [sql]}
  - {name: p2, roles: [serve, prefill], host: h0, region: eu, loras: [sql]}
  - {name: p3, roles: [serve, prefill], host: h1, region: us}
  - {name: p4, roles: [serve, decode], host: h0, region: eu}
  - {name: p5, roles: [serve, decode], host: h1, region: us}
";

struct Town {
    built: BuiltFleet,
    state: DecisionState,
    rng: Rng,
    profile: Profile,
}

impl Town {
    fn new(profile: &str, fleet: &str) -> Self {
        let described = FleetSpec::read("fleet.yaml", fleet).unwrap();
        let built = described.build(Duration::from_secs(100), |_| None).unwrap();
        let surroundings = ProfileEnv {
            models: built.models.clone(),
            roles: Some(described.roles()),
            ..ProfileEnv::default()
        };
        let profile = Profile::check(profile, &read(profile), &surroundings)
            .unwrap_or_else(|problems| panic!("{problems}"));
        Self { state: DecisionState::new(&built.index), rng: Rng::new(5), profile, built }
    }

    fn send(&mut self, request: Request) -> RoutingPlan {
        let mut context = self.profile.context(request);
        self.profile.prepare(&mut context).unwrap_or_else(|rejection| panic!("{rejection:?}"));
        let now = Duration::from_secs(100);
        let mut world = DecisionEnv {
            fleet: &self.built.fleet,
            state: &mut self.state,
            now,
            rng: &mut self.rng,
        };
        match self.profile.decide(&mut context, &mut world) {
            Outcome::Plan(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    /// The names of the pods that a plan's bound steps got.
    fn pods(&self, plan: &RoutingPlan) -> Vec<String> {
        plan.steps.iter().filter_map(|step| step.pod).map(|pod| self.built.name(pod)).collect()
    }

    fn chosen(&mut self, request: Request) -> String {
        let plan = self.send(request);
        self.pods(&plan).remove(0)
    }
}

fn read(profile: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    fs::read_to_string(path.join(format!("{profile}.yaml"))).unwrap()
}

fn request(seed: u32) -> Request {
    let mut request = Request::default();
    request.model.base = Name::from("m");
    request.prompt = Prompt::Tokens((0..2_048).map(|token| seed * 10_000 + token).collect());
    request
}

#[test]
fn the_folder_holds_these_profiles_and_each_checks_runs_and_prints_as_itself() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    assert_eq!(files, SHIPPED);
    for name in SHIPPED {
        assert!(read(name).starts_with("# "), "{name} must say what it is for in its first line");
        let mut town = Town::new(name, FLEET);
        for seed in 0..50 {
            let plan = town.send(request(seed % 7));
            assert!(plan.steps.iter().any(|step| step.pod.is_some()), "{name}: {plan:?}");
        }
        for pod in town.built.fleet.pods() {
            assert_eq!(pod.vitals().requests(), 0, "{name}: load is given back");
        }
        let printed = town.profile.printed();
        let again = Profile::check(name, &printed, &ProfileEnv::default())
            .unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(again.printed(), printed, "{name}");
        assert_eq!(again.graph().to_json(), town.profile.graph().to_json(), "{name}");
    }
}

/// All that a profile prints under these keys.
fn printed(profile: &str, keys: &[&str]) -> String {
    let text = Town::new(profile, FLEET).profile.printed();
    let mut wanted = false;
    let is_wanted = |line: &&str| {
        if !line.starts_with(' ') {
            wanted = keys.iter().any(|key| line.starts_with(&format!("{key}:")));
        }
        wanted
    };
    text.lines().filter(is_wanted).collect::<Vec<_>>().join("\n")
}

#[test]
fn cache_aware_sticky_is_like_cache_aware_but_for_its_sessions() {
    let alike = ["filter", "score", "hold", "speculate"];
    let expected = printed("cache-aware", &alike);
    assert!(expected.contains("predicted_ttft") && expected.contains("backlog"), "{expected}");
    assert_eq!(printed("cache-aware-sticky", &alike), expected);
}

#[test]
fn round_robin_takes_each_pod_in_turn() {
    let mut town = Town::new("round-robin", FLEET);
    let mut first: Vec<_> = (0..6).map(|seed| town.chosen(request(seed))).collect();
    let second: Vec<_> = (0..6).map(|seed| town.chosen(request(seed))).collect();
    assert_eq!(first, second);
    first.sort();
    assert_eq!(first, ["p0", "p1", "p2", "p3", "p4", "p5"]);
}

#[test]
fn least_load_spreads_what_is_in_flight() {
    let mut town = Town::new("least-load", FLEET);
    let plans: Vec<_> = (0..12).map(|seed| town.send(request(seed))).collect();
    for pod in town.built.fleet.pods() {
        assert_eq!(pod.vitals().requests(), 2);
    }
    drop(plans);
}

#[test]
fn consistent_hash_keeps_a_user_on_a_pod_until_it_is_full_and_moves_only_its_users_when_it_goes() {
    let user = |name: u32| {
        let mut request = request(0);
        request.fields.insert("user".to_owned(), format!("user-{name}").into());
        request
    };
    let mut town = Town::new("consistent-hash", FLEET);
    let before: Vec<_> = (0..60).map(|name| town.chosen(user(name))).collect();
    assert_eq!(before, (0..60).map(|name| town.chosen(user(name))).collect::<Vec<_>>());
    town.built.fleet.pods()[3].vitals().set_health(Health::Down);
    for (name, pod) in (0..60).zip(&before) {
        let now = town.chosen(user(name));
        assert!(now == *pod || pod == "p3", "user {name} moved from {pod} to {now}");
    }
    // As many as five pods may have: without the cap the user's own would get a quarter more.
    let plans: Vec<_> = (0..5 * 64).map(|_| town.send(user(0))).collect();
    let pods = town.built.fleet.pods().iter();
    let requests: Vec<_> = pods.map(|pod| pod.vitals().requests()).collect();
    assert_eq!(requests, [64, 64, 64, 0, 64, 64], "the cap holds, also for one user");
    drop(plans);
}

#[test]
fn cache_profiles_follow_the_prefix_that_was_just_sent() {
    for name in ["cache-affinity", "cache-aware", "cache-aware-sticky", "sticky-least-loaded"] {
        let mut town = Town::new(name, FLEET);
        let homes: Vec<_> = (0..12).map(|seed| town.chosen(request(seed))).collect();
        for (seed, home) in (0..12).zip(&homes) {
            assert_eq!(town.chosen(request(seed)), *home, "{name}: prompt {seed}");
        }
    }
}

#[test]
fn a_session_stays_where_it_is_although_another_pod_holds_more() {
    let mut town = Town::new("cache-aware-sticky", FLEET);
    let of_session = |seed| {
        let mut request = request(seed);
        request.headers.push(("x-session-id".to_owned(), "s".to_owned()));
        request
    };
    let home = town.chosen(of_session(1));
    let others: Vec<_> = (2..9).map(|seed| (seed, town.chosen(request(seed)))).collect();
    let (elsewhere, _) = others.iter().find(|(_, pod)| *pod != home).unwrap();
    assert_eq!(town.chosen(of_session(*elsewhere)), home);
}

#[test]
fn prefill_and_decode_stand_on_one_host() {
    let mut town = Town::new("prefill-decode", FLEET);
    let cold = town.send(request(1));
    let pods = town.pods(&cold);
    assert!(pods == ["p2", "p4"] || pods == ["p3", "p5"], "{pods:?}");
    let warm = town.send(request(1));
    assert_eq!(warm.steps.len(), 1, "both are expected to hold it now: {warm:?}");
}

#[test]
fn three_steps_come_from_yaml_alone() {
    let mut town = Town::new("preprocess-prefill-decode", FLEET);
    let plan = town.send(request(1));
    let steps: Vec<_> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["preprocess", "prefill", "decode"]);
    let pods = town.pods(&plan);
    assert!(pods == ["p0", "p2"] || pods == ["p1", "p3"], "{pods:?}");
    assert!(plan.steps[2].pod.is_none(), "decode is bound when it starts");
}

#[test]
fn geo_stays_in_the_clients_region() {
    let mut town = Town::new("geo", FLEET);
    for (region, pods) in [("eu", ["p0", "p2", "p4"]), ("us", ["p1", "p3", "p5"])] {
        for seed in 0..20 {
            let mut request = request(seed);
            request.headers.push(("x-client-region".to_owned(), region.to_owned()));
            let chosen = town.chosen(request);
            assert!(pods.contains(&chosen.as_str()), "{region}: {chosen}");
        }
    }
}

#[test]
fn lora_keeps_an_adapter_on_the_pod_that_has_it() {
    let mut town = Town::new("lora", FLEET);
    let adapted = |seed| {
        let mut request = request(seed);
        request.model.lora = Some("sql".into());
        request
    };
    let home = town.chosen(adapted(0));
    assert!(["p1", "p2"].contains(&home.as_str()), "only they can serve it: {home}");
    for seed in 1..20 {
        assert_eq!(town.chosen(adapted(seed)), home);
    }
}

#[test]
fn the_same_seed_fleet_and_requests_give_the_same_plans_byte_for_byte() {
    for name in SHIPPED {
        let plans = || -> String {
            let mut town = Town::new(name, FLEET);
            let plan = |seed: u32| {
                let plan = town.send(request(seed % 7));
                plan.to_json(|pod| town.built.name(pod)).to_string()
            };
            (0..50).map(plan).collect()
        };
        assert_eq!(plans(), plans(), "{name}");
    }
}

/// Code that knew a profile would have to name it. Names without hyphen are also words of the domain.
#[test]
fn profiles_are_only_shared_plugins_and_no_code_knows_one_by_name() {
    let registry = Registry::shipped();
    for name in SHIPPED {
        let profile = Town::new(name, FLEET).profile;
        let graph = profile.graph();
        let of_steps = graph.steps.iter().flat_map(|step| &step.plugins);
        for card in graph.prepare.iter().chain(of_steps).chain(&graph.hold) {
            assert!(registry.find(card.stage, card.plugin).is_some(), "{name}: {}", card.plugin);
        }
    }
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                for name in SHIPPED.iter().filter(|name| name.contains('-')) {
                    assert!(!line.contains(name), "{} knows {name}: {line}", path.display());
                }
            }
        }
    }
}
