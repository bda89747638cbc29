//! A router with two plugins of its own: it prefers pods near the client.
//!
//! The client sends its coordinates in a header, and pods have theirs as a label.

use std::process::ExitCode;

use wornpath::routing::{
    Assembly, AssemblyRefused, Candidate, Decision, Make, Name, Parameter, Plugin, Prepare,
    Preparing, Reads, Registry, Rejection, Scale, Score, Slot, Takes, Writes,
};

/// The client's coordinates, in degrees.
#[derive(Default)]
struct ClientLocation {
    latitude: f64,
    longitude: f64,
}

impl Slot for ClientLocation {
    const NAME: &'static str = "ClientLocation";
}

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

fn main() -> ExitCode {
    wornpath::main_with(Registry::shipped().with(CLIENT_LOCATION).with(PROXIMITY))
}
