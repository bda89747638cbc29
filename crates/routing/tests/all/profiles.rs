//! Every shipped profile is loaded, checked and run, and does what its first comment says.

use std::fs;
use std::path::Path;
use wornpath_index::Moment;

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

/// Six pods that all serve, of which two have each special role, on two hosts in two regions; two
/// have the adapter.
const FLEET: &str = "
models: [{name: m, block_size: 16}]
pods:
  - {name: p0, role: [serve, preprocess], host: h0, region: eu}
  - {name: p1, role: [serve, preprocess], host: h1, region: us, loras: [sql]}
  - {name: p2, role: [serve, prefill], host: h0, region: eu, loras: [sql]}
  - {name: p3, role: [serve, prefill], host: h1, region: us}
  - {name: p4, role: [serve, decode], host: h0, region: eu}
  - {name: p5, role: [serve, decode], host: h1, region: us}
";

struct Cluster {
    built: BuiltFleet,
    state: DecisionState,
    rng: Rng,
    profile: Profile,
}

impl Cluster {
    fn new(profile: &str, fleet: &str) -> Self {
        let spec = FleetSpec::read("fleet.yaml", fleet).unwrap();
        let built = spec.build(Moment::from_secs(100), |_| None).unwrap();
        let env = ProfileEnv {
            models: built.models.clone(),
            roles: Some(spec.roles()),
            ..ProfileEnv::default()
        };
        let profile = Profile::check(profile, &read(profile), &env)
            .unwrap_or_else(|problems| panic!("{problems}"));
        Self { state: DecisionState::new(&built.index), rng: Rng::new(5), profile, built }
    }

    fn send(&mut self, request: Request) -> RoutingPlan {
        let mut context = self.profile.context(request);
        self.profile.prepare(&mut context).unwrap_or_else(|rejection| panic!("{rejection:?}"));
        let now = Moment::from_secs(100);
        let mut env = DecisionEnv {
            fleet: &self.built.fleet,
            state: &mut self.state,
            now,
            rng: &mut self.rng,
        };
        match self.profile.decide(&mut context, &mut env) {
            Outcome::Plan(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    /// The names of the pods of a plan's bound steps.
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
fn every_shipped_profile_checks_runs_and_prints_itself() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    assert_eq!(files, SHIPPED);
    for name in SHIPPED {
        assert!(read(name).starts_with("# "), "{name} must open with a comment on its purpose");
        let mut cluster = Cluster::new(name, FLEET);
        for seed in 0..50 {
            let plan = cluster.send(request(seed % 7));
            assert!(plan.steps.iter().any(|step| step.pod.is_some()), "{name}: {plan:?}");
        }
        for pod in cluster.built.fleet.pods() {
            assert_eq!(pod.state().requests(), 0, "{name}: reservations are released");
        }
        let printed = cluster.profile.printed();
        let again = Profile::check(name, &printed, &ProfileEnv::default())
            .unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(again.printed(), printed, "{name}");
        assert_eq!(again.graph().to_json(), cluster.profile.graph().to_json(), "{name}");
    }
}

/// The printed parts of a profile under these keys.
fn printed(profile: &str, keys: &[&str]) -> String {
    let text = Cluster::new(profile, FLEET).profile.printed();
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
fn cache_aware_sticky_differs_from_cache_aware_only_in_its_sessions() {
    let shared = ["filter", "score", "hold", "speculate"];
    let expected = printed("cache-aware", &shared);
    assert!(expected.contains("predicted_ttft") && expected.contains("backlog"), "{expected}");
    assert_eq!(printed("cache-aware-sticky", &shared), expected);
}

#[test]
fn round_robin_picks_each_pod_in_turn() {
    let mut cluster = Cluster::new("round-robin", FLEET);
    let mut first: Vec<_> = (0..6).map(|seed| cluster.chosen(request(seed))).collect();
    let second: Vec<_> = (0..6).map(|seed| cluster.chosen(request(seed))).collect();
    assert_eq!(first, second);
    first.sort();
    assert_eq!(first, ["p0", "p1", "p2", "p3", "p4", "p5"]);
}

#[test]
fn least_load_spreads_requests_in_flight_evenly() {
    let mut cluster = Cluster::new("least-load", FLEET);
    let plans: Vec<_> = (0..12).map(|seed| cluster.send(request(seed))).collect();
    for pod in cluster.built.fleet.pods() {
        assert_eq!(pod.state().requests(), 2);
    }
    drop(plans);
}

#[test]
fn consistent_hash_keeps_a_user_on_a_pod_within_the_limit_and_moves_only_users_of_a_lost_pod() {
    let user = |name: u32| {
        let mut request = request(0);
        request.fields.insert("user".to_owned(), format!("user-{name}").into());
        request
    };
    let mut cluster = Cluster::new("consistent-hash", FLEET);
    let before: Vec<_> = (0..60).map(|name| cluster.chosen(user(name))).collect();
    assert_eq!(before, (0..60).map(|name| cluster.chosen(user(name))).collect::<Vec<_>>());
    cluster.built.fleet.pods()[3].state().set_health(Health::Down);
    for (name, pod) in (0..60).zip(&before) {
        let now = cluster.chosen(user(name));
        assert!(now == *pod || pod == "p3", "user {name} moved from {pod} to {now}");
    }
    // As many as the limit allows on five pods: without it the user's own pod would get a quarter
    // more.
    let plans: Vec<_> = (0..5 * 64).map(|_| cluster.send(user(0))).collect();
    let pods = cluster.built.fleet.pods().iter();
    let requests: Vec<_> = pods.map(|pod| pod.state().requests()).collect();
    assert_eq!(requests, [64, 64, 64, 0, 64, 64], "the limit also holds for one user");
    drop(plans);
}

#[test]
fn cache_profiles_follow_the_prefix_that_was_just_sent() {
    for name in ["cache-affinity", "cache-aware", "cache-aware-sticky", "sticky-least-loaded"] {
        let mut cluster = Cluster::new(name, FLEET);
        let homes: Vec<_> = (0..12).map(|seed| cluster.chosen(request(seed))).collect();
        for (seed, home) in (0..12).zip(&homes) {
            assert_eq!(cluster.chosen(request(seed)), *home, "{name}: prompt {seed}");
        }
    }
}

#[test]
fn a_session_stays_on_its_pod_although_another_holds_more() {
    let mut cluster = Cluster::new("cache-aware-sticky", FLEET);
    let of_session = |seed| {
        let mut request = request(seed);
        request.headers.push(("x-session-id".to_owned(), "s".to_owned()));
        request
    };
    let home = cluster.chosen(of_session(1));
    let others: Vec<_> = (2..9).map(|seed| (seed, cluster.chosen(request(seed)))).collect();
    let (elsewhere, _) = others.iter().find(|(_, pod)| *pod != home).unwrap();
    assert_eq!(cluster.chosen(of_session(*elsewhere)), home);
}

#[test]
fn prefill_and_decode_pods_are_on_one_host() {
    let mut cluster = Cluster::new("prefill-decode", FLEET);
    let cold = cluster.send(request(1));
    let pods = cluster.pods(&cold);
    assert!(pods == ["p2", "p4"] || pods == ["p3", "p5"], "{pods:?}");
    let warm = cluster.send(request(1));
    assert_eq!(warm.steps.len(), 1, "both pods are expected to hold the prompt now: {warm:?}");
}

#[test]
fn a_three_step_workflow_needs_only_yaml() {
    let mut cluster = Cluster::new("preprocess-prefill-decode", FLEET);
    let plan = cluster.send(request(1));
    let steps: Vec<_> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["preprocess", "prefill", "decode"]);
    let pods = cluster.pods(&plan);
    assert!(pods == ["p0", "p2"] || pods == ["p1", "p3"], "{pods:?}");
    assert!(plan.steps[2].pod.is_none(), "decode is bound when it starts");
}

#[test]
fn geo_picks_pods_in_the_clients_region() {
    let mut cluster = Cluster::new("geo", FLEET);
    for (region, pods) in [("eu", ["p0", "p2", "p4"]), ("us", ["p1", "p3", "p5"])] {
        for seed in 0..20 {
            let mut request = request(seed);
            request.headers.push(("x-client-region".to_owned(), region.to_owned()));
            let chosen = cluster.chosen(request);
            assert!(pods.contains(&chosen.as_str()), "{region}: {chosen}");
        }
    }
}

#[test]
fn lora_keeps_an_adapter_on_the_pod_that_loaded_it() {
    let mut cluster = Cluster::new("lora", FLEET);
    let adapted = |seed| {
        let mut request = request(seed);
        request.model.lora = Some("sql".into());
        request
    };
    let home = cluster.chosen(adapted(0));
    assert!(["p1", "p2"].contains(&home.as_str()), "only these pods serve the adapter: {home}");
    for seed in 1..20 {
        assert_eq!(cluster.chosen(adapted(seed)), home);
    }
}

#[test]
fn the_same_seed_fleet_and_requests_give_identical_plans() {
    for name in SHIPPED {
        let plans = || -> String {
            let mut cluster = Cluster::new(name, FLEET);
            let plan = |seed: u32| {
                let plan = cluster.send(request(seed % 7));
                plan.to_json(|pod| cluster.built.name(pod)).to_string()
            };
            (0..50).map(plan).collect()
        };
        assert_eq!(plans(), plans(), "{name}");
    }
}

/// Code that depends on a profile would have to name it. Names without a hyphen are not searched
/// for: they are also words of the domain.
#[test]
fn profiles_use_only_registered_plugins_and_no_code_names_a_profile() {
    let registry = Registry::shipped();
    for name in SHIPPED {
        let profile = Cluster::new(name, FLEET).profile;
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
                    assert!(
                        !line.contains(name),
                        "{} names the profile {name}: {line}",
                        path.display()
                    );
                }
            }
        }
    }
}
