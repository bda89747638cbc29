//! The manifests without a cluster: they are what Kubernetes takes, fit each other, and fit the
//! binary.

use super::yaml::parse;
use super::{has, read, root, takes, wornpath};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

const FOLDER: &str = "deploy/kubernetes";

fn manifest(name: &str) -> Value {
    parse(&read(&format!("{FOLDER}/{name}.yaml")))
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or_else(|| panic!("there is no {path} in {value}"))
}

fn container(deployment: &Value) -> &Value {
    at(deployment, "/spec/template/spec/containers/0")
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn every_manifest_is_in_the_list_and_the_list_has_no_other() {
    let list = manifest("kustomization");
    let mut listed: Vec<String> = at(&list, "/resources")
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().into())
        .collect();
    listed.extend(["kustomization.yaml".to_owned(), "wornpath.yaml".to_owned()]);
    listed.sort();
    let entries = fs::read_dir(root().join(FOLDER)).unwrap();
    let mut there: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    there.sort();
    assert_eq!(listed, there);
    assert_eq!(at(&list, "/configMapGenerator/0/files/0"), "wornpath.yaml");
}

#[test]
fn every_manifest_has_the_form_that_kubernetes_asks_for() {
    if !has("kubernetes-validate") {
        let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
        assert!(!required, "kubernetes-validate is missing; `./test` installs it");
        return;
    }
    for name in ["serviceaccount", "deployment", "service", "poddisruptionbudget", "networkpolicy"]
    {
        let path = root().join(FOLDER).join(format!("{name}.yaml"));
        let answer =
            Command::new("kubernetes-validate").arg("--strict").arg(path).output().unwrap();
        let said = [answer.stdout, answer.stderr].concat();
        assert!(answer.status.success(), "{name}: {}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn the_configuration_checks_and_its_ports_are_those_of_the_manifests() {
    let path = root().join(FOLDER).join("wornpath.yaml");
    let answer = wornpath(&["check", path.to_str().unwrap()]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stdout));
    let config = manifest("wornpath");
    let deployment = manifest("deployment");
    let port = at(&config, "/listen/client").as_str().unwrap().strip_prefix("0.0.0.0:").unwrap();
    let port: i64 = port.parse().unwrap();
    assert_eq!(at(container(&deployment), "/ports/0/containerPort"), port);
    assert_eq!(at(&manifest("networkpolicy"), "/spec/ingress/0/ports/0/port"), port);
    let annotated = at(&deployment, "/spec/template/metadata/annotations/prometheus.io~1port");
    assert_eq!(annotated, &port.to_string());
    assert_eq!(
        at(&manifest("service"), "/spec/ports/0/targetPort"),
        at(container(&deployment), "/ports/0/name")
    );
    assert!(at(&config, "/listen/admin").as_str().unwrap().starts_with("127.0.0.1:"));
}

#[test]
fn the_container_starts_the_binary_with_the_mounted_configuration() {
    let deployment = manifest("deployment");
    let arguments: Vec<&str> = at(container(&deployment), "/args")
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect();
    takes(&arguments);
    let mount = at(container(&deployment), "/volumeMounts/0");
    assert_eq!(
        arguments[2],
        format!("{}/wornpath.yaml", at(mount, "/mountPath").as_str().unwrap())
    );
    let volume = at(&deployment, "/spec/template/spec/volumes/0");
    assert_eq!(at(mount, "/name"), at(volume, "/name"));
    assert_eq!(
        at(volume, "/configMap/name"),
        at(&manifest("kustomization"), "/configMapGenerator/0/name")
    );
    let version = String::from_utf8(wornpath(&["--version"]).stdout).unwrap();
    assert_eq!(at(container(&deployment), "/image"), &version.trim().replace(' ', ":"));
}

#[test]
fn the_container_may_do_little_and_is_not_root() {
    let deployment = manifest("deployment");
    let pod = at(&deployment, "/spec/template/spec/securityContext");
    assert_eq!(at(pod, "/runAsNonRoot"), true);
    assert!(at(pod, "/runAsUser").as_u64().unwrap() > 0);
    let own = at(container(&deployment), "/securityContext");
    assert_eq!(at(own, "/readOnlyRootFilesystem"), true);
    assert_eq!(at(own, "/allowPrivilegeEscalation"), false);
    assert_eq!(at(own, "/capabilities/drop/0"), "ALL");
}

#[test]
fn selectors_select_the_routers() {
    let deployment = manifest("deployment");
    let labels = at(&deployment, "/spec/template/metadata/labels");
    for (name, path) in [
        ("deployment", "/spec/selector/matchLabels"),
        ("service", "/spec/selector"),
        ("poddisruptionbudget", "/spec/selector/matchLabels"),
        ("networkpolicy", "/spec/podSelector/matchLabels"),
    ] {
        assert_eq!(at(&manifest(name), path), labels, "{name}");
    }
}

#[test]
fn the_termination_grace_period_covers_lame_duck_and_draining() {
    let config = manifest("wornpath");
    let deployment = manifest("deployment");
    let drain = |key: &str| seconds(at(&config, key).as_str().unwrap());
    let lame_duck = drain("/drain/lame_duck");
    let grace = drain("/drain/grace");
    let allowed =
        at(&deployment, "/spec/template/spec/terminationGracePeriodSeconds").as_u64().unwrap();
    let longest = lame_duck + grace + 2;
    assert!(allowed > longest, "{allowed} s are too short for {longest}");
    let probe = at(container(&deployment), "/readinessProbe");
    let noticed = at(probe, "/periodSeconds").as_u64().unwrap()
        * at(probe, "/failureThreshold").as_u64().unwrap();
    assert!(
        noticed < lame_duck,
        "readiness is noticed after {noticed} s, the lame duck lasts {lame_duck}"
    );
}

/// `/health` fails once a thread has been stuck for 5 s.
#[test]
fn a_router_with_a_stuck_thread_is_restarted_within_half_a_minute_and_one_that_starts_is_not() {
    let deployment = manifest("deployment");
    let seconds = |probe: &str, key: &str| {
        at(container(&deployment), &format!("/{probe}/{key}")).as_u64().unwrap()
    };
    let lasts = |probe| seconds(probe, "periodSeconds") * seconds(probe, "failureThreshold");
    let noticed = 5 + lasts("livenessProbe") + seconds("livenessProbe", "timeoutSeconds");
    assert!(noticed <= 30, "{noticed} s");
    assert!(seconds("livenessProbe", "failureThreshold") > 1, "one late answer is no reason");
    assert!(lasts("startupProbe") >= 60, "{} s to start", lasts("startupProbe"));
    let path = |probe: &str| at(container(&deployment), &format!("/{probe}/httpGet/path"));
    assert_eq!(path("startupProbe"), path("livenessProbe"));
}

#[test]
fn the_probed_paths_are_served_and_tell_a_live_router_from_a_ready_one() {
    let deployment = manifest("deployment");
    let path = |probe: &str| at(container(&deployment), probe).as_str().unwrap().to_owned();
    let mut router = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["serve", "--pod", "http://127.0.0.1:1", "--port", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(router.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address =
        lines.find_map(|line| line.strip_prefix("listening: http://").map(str::to_owned)).unwrap();
    let status = |path: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let alive = status(&path("/livenessProbe/httpGet/path"));
    let ready = status(&path("/readinessProbe/httpGet/path"));
    router.kill().unwrap();
    router.wait().unwrap();
    assert_eq!((alive.as_str(), ready.as_str()), ("200", "503"), "no pod has answered yet");
}
