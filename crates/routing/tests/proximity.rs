//! The worked example of `docs/plugins/writing-one.md`: pods near the client are better.
//!
//! The page shows the parts between `// page:` marks; a test here says when it no longer does.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use wornpath_routing::fleet_spec::FleetSpec;
use wornpath_routing::{
    Assembly, AssemblyRefused, Candidate, Decision, DecisionEnv, DecisionState, Make, Name,
    Parameter, Plugin, Prepare, Preparing, Profile, ProfileEnv, Reads, Recorder, Registry,
    Rejection, Request, Rng, Scale, Score, Slot, Takes, Writes,
};

// page: slot
/// Where the client is, in degrees.
#[derive(Default)]
struct ClientPlace(f64, f64);

impl Slot for ClientPlace {
    const NAME: &'static str = "ClientPlace";
}
// page: end

// page: prepare
struct ReadPlace {
    header: String,
    place: Writes<ClientPlace>,
}

fn read_place(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(ReadPlace { header: assembly.get("header"), place: assembly.writes() }))
}

impl Prepare for ReadPlace {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        // A request that does not say where it comes from leaves the slot empty.
        if let Some(place) = scene.request().header(&self.header).and_then(degrees) {
            *scene.write(&self.place) = place;
        }
        Ok(())
    }
}
// page: end

// page: score
struct Proximity {
    place: Reads<ClientPlace>,
    label: Name,
    reach_km: f64,
}

fn proximity(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let reach_km = assembly.get("reach_km");
    Ok(Box::new(Proximity { place: assembly.reads(), label: "place".into(), reach_km }))
}

impl Score for Proximity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(client) = scene.read(&self.place) else { return };
        for (candidate, score) in candidates.iter().zip(scores) {
            let label = scene.pod(*candidate).facts().label(&self.label);
            if let Some(pod) = label.and_then(|label| degrees(label.as_str())) {
                *score = (1.0 - kilometres(client, &pod) / self.reach_km).max(0.0);
            }
        }
    }
}
// page: end

/// `52.5,13.4`.
fn degrees(text: &str) -> Option<ClientPlace> {
    let (north, east) = text.split_once(',')?;
    Some(ClientPlace(north.trim().parse().ok()?, east.trim().parse().ok()?))
}

/// Along the great circle.
fn kilometres(from: &ClientPlace, to: &ClientPlace) -> f64 {
    let (north, south) = (from.0.to_radians(), to.0.to_radians());
    let east = (from.1 - to.1).to_radians();
    let cosine = north.sin() * south.sin() + north.cos() * south.cos() * east.cos();
    6_371.0 * cosine.clamp(-1.0, 1.0).acos()
}

// page: register
const CLIENT_PLACE: Plugin = Plugin {
    name: "client_place",
    summary: "Reads where the client is from a header.",
    parameters: &[Parameter::with_default(
        "header",
        Takes::Text,
        "x-client-place",
        "The header, as `north,east` in degrees.",
    )],
    needs: &[],
    conflicts: &[],
    example: "client_place",
    make: Make::Prepare(read_place),
};

const PROXIMITY: Plugin = Plugin {
    name: "proximity",
    summary: "1 for a pod where the client is, falling to 0 at `reach_km`.",
    parameters: &[Parameter::with_default(
        "reach_km",
        Takes::Number(1.0, 20_100.0),
        "5000",
        "How far away a pod is worth nothing.",
    )],
    needs: &[],
    conflicts: &[],
    example: "proximity: {reach_km: 8000, weight: 2}",
    make: Make::Score(proximity),
};

fn registry() -> Registry {
    Registry::shipped().with(CLIENT_PLACE).with(PROXIMITY)
}
// page: end

const PROFILE: &str = "\
prepare:
  - client_place: {header: x-client-place}
filter: [healthy]
score:
  - proximity: {weight: 2}
  - least_load
pick: max_score";

const FLEET: &str = "
pods:
  - {name: berlin, labels: {place: '52.5,13.4'}, requests: 3}
  - {name: paris, labels: {place: '48.9,2.4'}, requests: 4}
  - {name: virginia, labels: {place: '38.9,-77.4'}}
";

/// The explanation of a request from Hamburg.
fn explained() -> String {
    let described = FleetSpec::read("fleet.yaml", FLEET).unwrap();
    let built = described.build(Duration::ZERO, |_| None).unwrap();
    let surroundings = ProfileEnv { registry: registry(), ..ProfileEnv::default() };
    let profile = Profile::check("near.yaml", PROFILE, &surroundings).unwrap();
    let headers = vec![("x-client-place".to_owned(), "53.6,10.0".to_owned())];
    let clock = || Duration::ZERO;
    let mut recorder = Recorder::new(&clock);
    let mut context = profile.context(Request { headers, ..Request::default() });
    profile.prepare_explained(&mut context, &mut recorder).unwrap();
    let (mut state, mut rng) = (DecisionState::new(&built.index), Rng::new(1));
    let (fleet, now) = (&built.fleet, Duration::ZERO);
    let mut world = DecisionEnv { fleet, state: &mut state, now, rng: &mut rng };
    profile.decide_explained(&mut context, &mut world, &mut recorder);
    let shown = recorder.finish().to_string();
    shown.lines().filter(|line| !line.contains("µs")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_near_pod_wins_although_it_has_more_to_do() {
    let shown = explained();
    let winner = shown.lines().find(|line| line.contains('→')).unwrap();
    assert!(winner.contains("berlin"), "{shown}");
}

#[test]
fn without_the_preparer_the_profile_is_refused_and_the_cure_names_it() {
    let surroundings = ProfileEnv { registry: registry(), ..ProfileEnv::default() };
    let text = PROFILE.replace("  - client_place: {header: x-client-place}\n", "");
    let problems = Profile::check("near.yaml", &text, &surroundings).unwrap_err().to_string();
    assert!(problems.contains("add `client_place` to `prepare`"), "{problems}");
}

#[test]
fn the_page_shows_this_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string(here.join("tests/proximity.rs")).unwrap();
    let page = fs::read_to_string(here.join("../../docs/plugins/writing-one.md")).unwrap();
    let mut parts: Vec<(String, String)> = ["slot", "prepare", "score", "register"]
        .map(|name| (name.to_owned(), part(&source, name)))
        .to_vec();
    parts.push(("profile".to_owned(), PROFILE.to_owned()));
    parts.push(("explained".to_owned(), explained().trim().to_owned()));
    for (name, text) in &parts {
        assert!(page.contains(text.as_str()), "part `{name}` of the page is not current:\n{text}");
    }
}

fn part(source: &str, name: &str) -> String {
    let (_, after) = source.split_once(&format!("// page: {name}\n")).unwrap();
    after.split_once("// page: end").unwrap().0.trim_end().to_owned()
}
