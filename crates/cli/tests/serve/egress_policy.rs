//! Egress policy: a client that can name a pod must not be able to point the router at any other
//! host.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::fs;

/// Ways to write addresses that no pod has, with what is said of them.
const NEVER: [(&str, &str); 12] = [
    ("http://169.254.169.254/latest/meta-data", "a link-local address"),
    ("http://[::ffff:169.254.169.254]", "a link-local address"),
    ("http://[::ffff:a9fe:a9fe]", "a link-local address"),
    ("http://[fe80::1]:80", "a link-local address"),
    ("http://0.0.0.0:22", "the unspecified address"),
    ("http://[::]:22", "the unspecified address"),
    ("http://[::ffff:0.0.0.0]:22", "the unspecified address"),
    ("http://224.0.0.1", "a multicast address"),
    ("http://255.255.255.255", "the broadcast address"),
    ("http://user:password@10.0.0.5", "it must not contain a user or a password"),
    ("file:///etc/passwd", "it does not start with"),
    ("gopher://10.0.0.5", "it does not start with"),
];

#[test]
fn addresses_that_no_pod_has_are_refused_wherever_they_come_from() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    let admin = gateway.admin.clone().unwrap();
    for (url, why) in NEVER {
        let body = json!({ "url": url, "name": "x" }).to_string();
        let answer = Exchange::open(&admin, "POST", "/pods", &body).finish().unwrap();
        assert_eq!(answer.status, 422, "{url}: {}", answer.text);
        assert!(answer.text.contains(why), "{url}: {}", answer.text);
        let path = folder("reach_static").join("wornpath.yaml");
        fs::write(&path, format!("pods: [{{url: \"{url}\"}}]\n")).unwrap();
        let (code, told) = crate::support::gateway::refused(&["-c", path.to_str().unwrap()]);
        assert!(code == Some(78) && told.contains(why), "{url}: {told}");
    }
}

#[test]
fn host_names_and_odd_addresses_are_checked_when_they_are_connected() {
    let pod = Recorder::start();
    let port = pod.address.port();
    // All of these are 127.0.0.1 to the system that resolves them.
    for host in ["localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"] {
        let path = folder("reach_resolved").join("wornpath.yaml");
        let text =
            format!("pod_addresses: [10.0.0.0/8]\npods: [{{url: \"http://{host}:{port}\"}}]\n");
        fs::write(&path, text).unwrap();
        let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 0);
        eventually("it was tried", || gateway.log().contains("pod_addresses"));
        let refused = gateway.log().contains("127.0.0.1 is in none of `pod_addresses`: 10.0.0.0/8")
            || gateway.log().contains("::1 is in none of `pod_addresses`");
        assert!(refused, "{host}: {}", gateway.log());
        assert!(pod.posted().is_empty());
    }
}

#[test]
fn a_list_of_addresses_holds_for_files_names_operators_and_the_list_itself() {
    let engines = Engines::start(&["--model", "m"]);
    let http = &engines.engines[0].http;
    let folder = folder("reach_listed");
    let path = folder.join("wornpath.yaml");
    let pods = folder.join("pods.yaml");
    let text = |allowed: &str| {
        format!(
            "pod_addresses: [{allowed}]\npods: [{{url: \"http://{http}\", name: good}}]\n\
             discovery:\n  - {{file: pods.yaml, every: 50ms}}\n  - {{dns: localhost, port: 9, every: 50ms}}\n"
        )
    };
    fs::write(&path, text("127.0.0.1/32")).unwrap();
    fs::write(&pods, "pods: [{url: \"http://10.9.9.9:1\", name: from_file}]\n").unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let admin = gateway.admin.clone().unwrap();
    let names = || -> Vec<String> {
        let listed: Value = Exchange::open(&admin, "GET", "/pods", "").finish().unwrap().json();
        let pods = listed["pods"].as_array().unwrap();
        pods.iter().map(|pod| pod["name"].as_str().unwrap().to_owned()).collect()
    };
    eventually("the file is refused", || gateway.log().contains("10.9.9.9 is in none of"));
    eventually("the name's good address has come", || names().contains(&"127.0.0.1:9".to_owned()));
    let body = json!({"url": "http://192.168.7.7:1", "name": "by_operator"}).to_string();
    let answer = Exchange::open(&admin, "POST", "/pods", &body).finish().unwrap();
    assert!(
        answer.status == 422 && answer.text.contains("192.168.7.7 is in none of"),
        "{}",
        answer.text
    );
    assert_eq!(names(), ["good", "127.0.0.1:9"]);
    // A list that leaves out a pod that is listed changes nothing at all.
    fs::write(&path, text("10.0.0.0/8")).unwrap();
    let answer = Exchange::open(&admin, "POST", "/config/reload", "").finish().unwrap();
    assert_eq!(answer.status, 422, "{}", answer.text);
    assert_eq!(gateway.post("/v1/completions", &json!({"prompt": "a"})).status, 200);
}

#[test]
fn a_redirect_of_a_pod_is_passed_to_the_client_and_not_followed() {
    let pod = Recorder::start();
    let elsewhere = Recorder::start();
    let gateway = Gateway::start(&["--pod", &format!("http://{}", pod.address)], 1);
    let url = format!("http://{}/v1/completions", elsewhere.address);
    pod.redirect(&url);
    let answer = gateway.post("/v1/completions", &json!({"prompt": "hello", "max_tokens": 1}));
    assert_eq!((answer.status, answer.header("location")), (307, Some(url.as_str())));
    assert_eq!(pod.posted().len(), 1, "and it is no failure that another attempt could cure");
    assert!(elsewhere.posted().is_empty(), "the redirect was not followed");
}
