//! The files of `examples/endpoint-picker`, as an outsider starts them.

use crate::envoy::{free_port, is_here, run};
use crate::picks::{COMPLETIONS, cached, prompt};
use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually, folder};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;

const EXAMPLE: &str = "examples/endpoint-picker";

/// An Envoy, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A file of the example with other ports.
fn with_ports(file: &str, ports: &[(&str, &str)]) -> String {
    let text = read(&format!("{EXAMPLE}/{file}"));
    let mut changed = String::new();
    // Each part is a number, or nothing, and the character behind it.
    for part in text.split_inclusive(|letter: char| !letter.is_ascii_digit()) {
        let number = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        let other = ports.iter().find(|(known, _)| *known == number);
        changed.push_str(other.map_or(number, |(_, port)| *port));
        changed.push_str(&part[number.len()..]);
    }
    changed
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap()
}

#[test]
fn the_example_answers_the_second_of_two_equal_prompts_from_a_cache() {
    if !is_here() {
        return;
    }
    let engines = Engines::start(&["--model", "m", "--engines", "2"]);
    let [a, b] = &engines.engines[..] else { panic!("not two engines") };
    let [picker_port, clients, picked] = [(); 3].map(|()| free_port().to_string());
    let picker = with_ports(
        "wornpath.yaml",
        &[
            ("8080", "0"),
            ("8081", "0"),
            ("9002", &picker_port),
            ("8001", port(&a.http)),
            ("8002", port(&b.http)),
            ("5557", port(&a.events)),
            ("5558", port(&b.events)),
            ("5657", port(&a.replay)),
            ("5658", port(&b.replay)),
        ],
    );
    let picker = Gateway::configured("epp-example", &picker, 2);
    let envoy = with_ports(
        "envoy.yaml",
        &[
            ("10000", &clients),
            ("10001", &picked),
            ("9002", &picker_port),
            ("8001", port(&a.http)),
            ("8002", port(&b.http)),
        ],
    );
    let path = folder("epp-example-envoy").join("envoy.yaml");
    fs::write(&path, envoy).unwrap();
    let envoy = Running(run(path.to_str().unwrap()));
    let address = format!("127.0.0.1:{clients}");
    eventually("Envoy listens", || TcpStream::connect(&address).is_ok());
    let body = prompt(1).to_string();
    let ask = || Exchange::open(&address, "POST", COMPLETIONS, &body).finish().unwrap();
    assert_eq!(cached(&ask()), 0);
    assert!(cached(&ask()) > 500, "the second one comes from a cache");
    let decision = picker.ask("GET", "/decisions?last=1", "");
    assert_eq!(decision.status, 200, "{}", decision.text);
    drop(envoy);
}

#[test]
fn the_filter_in_the_documentation_is_the_one_of_the_example() {
    let page = read("docs/endpoint-picker.md");
    let block = page.split("```\n").find(|block| block.starts_with("name: envoy.filters")).unwrap();
    let plain = |line: &str| line.split(" #").next().unwrap().trim().replace("- ", "");
    let example: Vec<_> = read(&format!("{EXAMPLE}/envoy.yaml")).lines().map(plain).collect();
    for line in block.lines().map(plain) {
        assert!(example.contains(&line), "`{line}` is not in the example");
    }
}
