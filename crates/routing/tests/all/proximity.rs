//! The worked example of `docs/plugins/writing-one.md`: a scorer that prefers pods near the client.
//!
//! The page shows the parts between `// page:` marks; a test here fails when it is out of date.

use std::fs;
use std::path::Path;
use wornpath_index::Moment;

use wornpath_routing::fleet_spec::FleetSpec;
use wornpath_routing::{
    Assembly, AssemblyRefused, Candidate, Decision, DecisionEnv, DecisionState, Make, Name,
    Parameter, Plugin, Prepare, Preparing, Profile, ProfileEnv, Reads, Recorder, Registry,
    Rejection, Request, Rng, Scale, Score, Slot, Takes, Writes,
};

// page: slot
/// The client's coordinates, in degrees.
#[derive(Default)]
struct ClientLocation {
    latitude: f64,
    longitude: f64,
}

impl Slot for ClientLocation {
    const NAME: &'static str = "ClientLocation";
}
// page: end

// page: prepare
struct ReadLocation {
    header: String,
    location: Writes<ClientLocation>,
}

fn read_location(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(ReadLocation { header: assembly.get("header"), location: assembly.writes() }))
}

impl Prepare for ReadLocation {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        // A request without the header leaves the slot empty.
        if let Some(location) = preparing.request().header(&self.header).and_then(parse_location) {
            *preparing.write(&self.location) = location;
        }
        Ok(())
    }
}
// page: end

// page: score
struct Proximity {
    location: Reads<ClientLocation>,
    label: Name,
    reach_km: f64,
}

fn proximity(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let reach_km = assembly.get("reach_km");
    Ok(Box::new(Proximity { location: assembly.reads(), label: "location".into(), reach_km }))
}

impl Score for Proximity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(client) = decision.read(&self.location) else { return };
        for (candidate, score) in candidates.iter().zip(scores) {
            let label = decision.pod(*candidate).facts().label(&self.label);
            if let Some(pod) = label.and_then(|label| parse_location(label.as_str())) {
                *score = (1.0 - kilometres(client, &pod) / self.reach_km).max(0.0);
            }
        }
    }
}
// page: end

/// Parses `52.5,13.4`.
fn parse_location(text: &str) -> Option<ClientLocation> {
    let (latitude, longitude) = text.split_once(',')?;
    Some(ClientLocation {
        latitude: latitude.trim().parse().ok()?,
        longitude: longitude.trim().parse().ok()?,
    })
}

/// The great-circle distance.
fn kilometres(from: &ClientLocation, to: &ClientLocation) -> f64 {
    let start = from.latitude.to_radians();
    let end = to.latitude.to_radians();
    let along = (from.longitude - to.longitude).to_radians();
    let cosine = start.sin() * end.sin() + start.cos() * end.cos() * along.cos();
    6_371.0 * cosine.clamp(-1.0, 1.0).acos()
}

// page: register
const CLIENT_LOCATION: Plugin = Plugin {
    name: "client_location",
    summary: "Reads the client's coordinates from a header.",
    parameters: &[Parameter::with_default(
        "header",
        Takes::Text,
        "x-client-location",
        "The header, as `latitude,longitude` in degrees.",
    )],
    needs: &[],
    conflicts: &[],
    example: "client_location",
    make: Make::Prepare(read_location),
};

const PROXIMITY: Plugin = Plugin {
    name: "proximity",
    summary: "1 for a pod at the client's location, falling to 0 at `reach_km`.",
    parameters: &[Parameter::with_default(
        "reach_km",
        Takes::Number(1.0, 20_100.0),
        "5000",
        "The distance at which a pod scores 0.",
    )],
    needs: &[],
    conflicts: &[],
    example: "proximity: {reach_km: 8000, weight: 2}",
    make: Make::Score(proximity),
};

fn registry() -> Registry {
    Registry::shipped().with(CLIENT_LOCATION).with(PROXIMITY)
}
// page: end

const PROFILE: &str = "\
prepare:
  - client_location: {header: x-client-location}
filter: [healthy]
score:
  - proximity: {weight: 2}
  - least_load
pick: max_score";

const FLEET: &str = "
pods:
  - {name: berlin, labels: {location: '52.5,13.4'}, requests: 3}
  - {name: paris, labels: {location: '48.9,2.4'}, requests: 4}
  - {name: virginia, labels: {location: '38.9,-77.4'}}
";

/// The explanation of a request from Hamburg.
fn explained() -> String {
    let spec = FleetSpec::read("fleet.yaml", FLEET).unwrap();
    let built = spec.build(Moment::ZERO, |_| None).unwrap();
    let profile_env = ProfileEnv { registry: registry(), ..ProfileEnv::default() };
    let profile = Profile::check("near.yaml", PROFILE, &profile_env).unwrap();
    let headers = vec![("x-client-location".to_owned(), "53.6,10.0".to_owned())];
    let clock = || Moment::ZERO;
    let mut recorder = Recorder::new(&clock);
    let mut context = profile.context(Request { headers, ..Request::default() });
    profile.prepare_explained(&mut context, &mut recorder).unwrap();
    let mut state = DecisionState::new(&built.index);
    let mut rng = Rng::new(1);
    let fleet = &built.fleet;
    let now = Moment::ZERO;
    let mut env = DecisionEnv { fleet, state: &mut state, now, rng: &mut rng };
    profile.decide_explained(&mut context, &mut env, &mut recorder);
    let shown = recorder.finish().to_string();
    shown.lines().filter(|line| !line.contains("µs")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_near_pod_wins_although_it_has_more_load() {
    let shown = explained();
    let winner = shown.lines().find(|line| line.contains('→')).unwrap();
    assert!(winner.contains("berlin"), "{shown}");
}

#[test]
fn a_profile_without_the_preparer_is_refused_with_the_cure() {
    let profile_env = ProfileEnv { registry: registry(), ..ProfileEnv::default() };
    let text = PROFILE.replace("  - client_location: {header: x-client-location}\n", "");
    let problems = Profile::check("near.yaml", &text, &profile_env).unwrap_err().to_string();
    assert!(problems.contains("add `client_location` to `prepare`"), "{problems}");
}

#[test]
fn the_page_shows_the_code_of_this_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string(here.join("tests/all/proximity.rs")).unwrap();
    let page = fs::read_to_string(here.join("../../docs/plugins/writing-one.md")).unwrap();
    let mut parts: Vec<(String, String)> = ["slot", "prepare", "score", "register"]
        .map(|name| (name.to_owned(), part(&source, name)))
        .to_vec();
    parts.push(("profile".to_owned(), PROFILE.to_owned()));
    parts.push(("explained".to_owned(), explained().trim().to_owned()));
    for (name, text) in &parts {
        assert!(page.contains(text.as_str()), "part `{name}` of the page is out of date:\n{text}");
    }
}

fn part(source: &str, name: &str) -> String {
    let (_, after) = source.split_once(&format!("// page: {name}\n")).unwrap();
    after.split_once("// page: end").unwrap().0.trim_end().to_owned()
}
