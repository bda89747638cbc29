//! The dashboard in a real browser, and `wornpath top`: both in front of the real binary under
//! traffic.
//!
//! With `WORNPATH_SCREENSHOTS=1` the pictures under `docs/images/` are made anew.
#![allow(clippy::print_stdout, reason = "what the browser saw is worth knowing")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod cost;
mod demo;
#[path = "../support/mod.rs"]
mod support;
mod top;

use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use std::fs;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard/dashboard.py");
const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
/// What `echo -n secret | sha256sum` says.
const DIGEST: &str = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
/// The same of `acme-key` and of `flood-key`.
const ACME: &str = "afacab3575137afa4e00d9cbcafcb14c9ae25f779d964eb0ea5b2c4eb5dfd163";
const FLOOD: &str = "3d7c16cbe3677e6b84bb5d93b2230db6987b17e2c0b41b24af89256767ba368f";

/// Whether there is a browser to drive. `./test` installs one and says that it must be there.
fn have_browser() -> bool {
    let folder = Path::new(SCRIPT).parent().unwrap();
    let found = Command::new("python3")
        .args(["-B", "-c", "import browser, sys; sys.exit(not browser.find())"])
        .current_dir(folder)
        .output();
    if found.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let is_required = std::env::var_os("WORNPATH_PEERS").is_some_and(|word| word == "required");
    assert!(
        !is_required,
        "no Chromium, or no `websocket` for python3, and WORNPATH_PEERS=required"
    );
    eprintln!(
        "NOT SHOWN: the dashboard, because there is no Chromium, or no `websocket` for python3"
    );
    false
}

/// Engines that publish what they cache.
fn engines() -> Engines {
    engines_at("2")
}

/// The same, so many times faster than real ones.
fn engines_at(speed: &str) -> Engines {
    started(speed, "4")
}

fn started(speed: &str, count: &str) -> Engines {
    Engines::start_at(
        speed,
        &["--engines", count, "--model", "m", "--answer-tokens", "24", "--kv-tokens", "60000"],
    )
}

/// A gateway before them, by a file that begins so.
fn configured(test: &str, engines: &Engines, admin: &str) -> Gateway {
    let mut text =
        format!("{admin}\nexplained: 20\nmodels: [{{name: m, tokenizer: bytes}}]\npods:\n");
    for (number, at) in engines.engines.iter().enumerate() {
        let http = &at.http;
        let events = &at.events;
        let replay = &at.replay;
        text.push_str(&format!(
            "  - {{url: \"http://{http}\", name: pod-{number}, model: m, engine: vllm, events: \"zmq://{events}?replay={replay}\"}}\n"
        ));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("wornpath.yaml");
    fs::write(&path, text).unwrap();
    let batches = folder.join("batches");
    let path = path.to_str().unwrap();
    let batches = batches.to_str().unwrap();
    Gateway::start(
        &["-c", path, "--batches", batches, "--admin", "127.0.0.1:0"],
        engines.engines.len(),
    )
}

fn run(arguments: &[&str]) {
    let output = Command::new("python3").arg("-B").arg(SCRIPT).args(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{wrong}");
    eprint!("{told}");
}

#[test]
fn every_view_shows_live_traffic_without_browser_errors() {
    if !have_browser() {
        return;
    }
    let engines = engines();
    let gateway = configured("dashboard_views", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let control = format!("http://{}", engines.control);
    let images = std::env::var_os("WORNPATH_SCREENSHOTS").map_or("", |_| IMAGES);
    run(&["views", &admin, &client, &control, images]);
}

#[test]
fn with_a_token_nothing_is_shown_before_it_is_given() {
    if !have_browser() {
        return;
    }
    let engines = engines();
    let listen =
        format!("listen: {{admin: {{address: \"127.0.0.1:0\", token_digest: \"{DIGEST}\"}}}}");
    let gateway = configured("dashboard_token", &engines, &listen);
    run(&["token", &format!("http://{}", gateway.admin.as_ref().unwrap())]);
}

#[test]
fn the_dashboard_shows_that_the_router_does_not_answer() {
    if !have_browser() {
        return;
    }
    let engines = engines();
    let gateway = configured("dashboard_gone", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let process = gateway.child.id().to_string();
    run(&["gone", &admin, &client, &process]);
}

#[test]
fn pods_with_problems_are_drawn_first() {
    if !have_browser() {
        return;
    }
    let engines = started("5", "24");
    let gateway = configured("dashboard_many", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let control = format!("http://{}", engines.control);
    run(&["many", &admin, &client, &control]);
}

#[test]
fn an_operator_finds_why_requests_failed_and_drains_resumes_and_removes_pods() {
    if !have_browser() {
        return;
    }
    let engines = engines();
    let shadow = "shadow: {profile: round-robin, per_second: 100}";
    let gateway = configured("dashboard_operate", &engines, shadow);
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let images = std::env::var_os("WORNPATH_SCREENSHOTS").map_or("", |_| IMAGES);
    run(&["operate", &admin, &client, images]);
}

#[test]
fn a_fleet_of_256_pods_is_readable() {
    if !have_browser() {
        return;
    }
    let engines = started("2", "256");
    let gateway = configured("dashboard_256", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let control = format!("http://{}", engines.control);
    let images = std::env::var_os("WORNPATH_SCREENSHOTS").map_or("", |_| IMAGES);
    run(&["256", &admin, &client, &control, images]);
}

#[test]
fn a_pod_that_is_much_slower_than_its_peers_is_named_within_seconds() {
    if !have_browser() {
        return;
    }
    let engines = engines();
    let gateway = configured("dashboard_slow", &engines, "");
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let control = format!("http://{}", engines.control);
    let images = std::env::var_os("WORNPATH_SCREENSHOTS").map_or("", |_| IMAGES);
    run(&["slow", &admin, &client, &control, images]);
    let log = gateway.log();
    let has = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["pod slow", "pod-1", "half of its peers take"]), "{log}");
    assert!(has(&["pod no longer slow", "pod-1"]), "{log}");
}

#[test]
fn a_page_that_is_opened_after_an_incident_shows_what_happened() {
    if !have_browser() {
        return;
    }
    let engines = engines();
    let tenants = format!(
        "tenants:\n  - {{name: acme, key_digest: \"sha256:{ACME}\"}}\n  - {{name: flood, key_digest: \"sha256:{FLOOD}\", quota: 2}}"
    );
    let gateway = configured("dashboard_incident", &engines, &tenants);
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let client = format!("http://{}", gateway.address);
    let control = format!("http://{}", engines.control);
    let images = std::env::var_os("WORNPATH_SCREENSHOTS").map_or("", |_| IMAGES);
    run(&["incident", &admin, &client, &control, images]);
}
