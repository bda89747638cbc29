//! Two routers of the same pods decide as one.

use crate::queue::digest;
use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, eventually, eventually_within, folder};
use crate::tls::{authority, signed};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

/// Two ports that nothing listens at.
fn ports() -> [u16; 2] {
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    taken.map(|listener| listener.local_addr().unwrap().port())
}

/// A router in front of all engines, which exchanges with the one at another port.
fn router(test: &str, engines: &Engines, [own, other]: [u16; 2], more: &str) -> Gateway {
    let pod = |address: &String| format!("{{url: \"http://{address}\", events: []}}");
    let pods: Vec<_> = engines.engines.iter().map(|at| pod(&at.http)).collect();
    let text = format!(
        "pods: [{}]\nexchange:\n  listen: 127.0.0.1:{own}\n  peers: [\"127.0.0.1:{other}\"]\n{more}",
        pods.join(", ")
    );
    Gateway::configured(&format!("exchange_{test}_{own}"), &text, engines.engines.len())
}

fn known(router: &Gateway) -> u64 {
    router.metric("wornpath_exchange_routers") as u64
}

/// Two routers that know each other.
fn pair(test: &str, engines: &Engines, more: &str) -> [Gateway; 2] {
    let [one, other] = ports();
    let routers = [[one, other], [other, one]].map(|ports| router(test, engines, ports, more));
    eventually("they know each other", || routers.iter().all(|router| known(router) == 1));
    routers
}

const LEAST_LOAD: &str =
    "profiles: {load: {filter: [healthy, model], score: [least_load], pick: max_score}}\n";

fn long() -> Value {
    json!({"model": "m", "prompt": "long", "max_tokens": 100_000, "ignore_eos": true, "stream": true})
}

/// The pods of some short requests, one after another.
fn pods(router: &Gateway) -> Vec<String> {
    let short = json!({"model": "m", "prompt": "short", "max_tokens": 1});
    (0..12).map(|_| router.post(ASK, &short).pod().to_owned()).collect()
}

#[test]
fn a_stream_at_one_router_is_load_for_the_other_until_its_router_is_killed() {
    let engines = Engines::start_at("2", &["--model", "m", "--engines", "2"]);
    let [mut one, other] = pair("load", &engines, LEAST_LOAD);
    let mut stream = one.open(ASK, &long());
    let head = stream.read_past("data: ");
    let busy = head.lines().find_map(|line| line.strip_prefix("x-wornpath-pod: ")).unwrap();
    let uses = |router: &Gateway| pods(router).iter().any(|pod| *pod == *busy.trim());
    assert!(!uses(&other), "all go to the idle pod");
    // A killed router does not say that it leaves.
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    let limit = Duration::from_secs(2);
    eventually_within(limit, "it is forgotten", || known(&other) == 0);
    eventually_within(limit, "its load too", || uses(&other));
    let log = other.log();
    assert_eq!(log.matches("router joined").count(), 1, "{log}");
    assert!(log.contains("router left") && log.contains("connection closed"), "{log}");
}

#[test]
fn a_router_that_hangs_is_forgotten_within_two_seconds_and_heard_again() {
    let engines = Engines::start(&["--model", "m", "--engines", "1"]);
    let [one, other] = pair("hangs", &engines, "");
    one.signal("-STOP");
    eventually_within(Duration::from_millis(2500), "it is forgotten", || known(&other) == 0);
    assert!(other.log().contains("reason=\"silent\""), "{}", other.log());
    one.signal("-CONT");
    eventually("it is heard again", || known(&other) == 1 && known(&one) == 1);
}

#[test]
fn a_prompt_that_one_router_has_sent_is_expected_on_its_pod_by_the_other() {
    let engines = Engines::start_at("2", &["--model", "m", "--engines", "4"]);
    let [one, other] = pair("prompts", &engines, "");
    for number in 0..8 {
        let prompt = format!("{number} is the beginning of a prompt. ").repeat(200);
        let ask = |router: &Gateway| {
            router.post(ASK, &json!({"model": "m", "prompt": prompt, "max_tokens": 1}))
        };
        let first = ask(&one).pod().to_owned();
        assert_eq!(ask(&other).pod(), first, "prompt {number}");
    }
}

#[test]
fn a_router_with_another_key_is_not_heard() {
    let engines = Engines::start(&["--model", "m", "--engines", "1"]);
    let folder = folder("exchange_keys");
    let [one, other] = ports();
    let key = |secret: &str| {
        let path = folder.join(secret);
        std::fs::write(&path, secret.repeat(16)).unwrap();
        format!("  key_file: {}\n", path.display())
    };
    let first = router("keys", &engines, [one, other], &key("a"));
    let second = router("keys", &engines, [other, one], &key("b"));
    let refused = |router: &Gateway| router.log().contains("give all routers the same");
    eventually("both refuse", || refused(&first) && refused(&second));
    assert_eq!((known(&first), known(&second)), (0, 0));
    drop(second);
    let second = router("keys", &engines, [other, one], &key("a"));
    eventually("with the same key", || known(&first) == 1 && known(&second) == 1);
}

#[test]
fn routers_with_certificates_of_one_authority_exchange_over_tls_and_no_others() {
    let engines = Engines::start(&["--model", "m", "--engines", "1"]);
    let folder = folder("exchange_tls");
    let [ours, theirs] = ["ours", "theirs"].map(authority);
    std::fs::write(folder.join("ca.pem"), ours.pem()).unwrap();
    signed(&ours, "router", 2050).write(&folder, "good");
    signed(&theirs, "router", 2050).write(&folder, "bad");
    let tls = |pair: &str| {
        let path = |file: &str| folder.join(file).display().to_string();
        format!(
            "  tls: {{ca: {}, certificate: {}, key: {}, server_name: router}}\n",
            path("ca.pem"),
            path(&format!("{pair}.pem")),
            path(&format!("{pair}.key"))
        )
    };
    let [one, other] = ports();
    let first = router("tls", &engines, [one, other], &tls("good"));
    let second = router("tls", &engines, [other, one], &tls("bad"));
    eventually("it is refused", || first.log().contains("TLS handshake failed"));
    assert_eq!((known(&first), known(&second)), (0, 0));
    drop(second);
    let second = router("tls", &engines, [other, one], &tls("good"));
    eventually("with the right one", || known(&first) == 1 && known(&second) == 1);
}

fn as_tenant(router: &Gateway, body: &Value) -> Exchange {
    Exchange::open_with(&router.address, ASK, &[("authorization", "Bearer a")], body)
}

#[test]
fn a_quota_holds_over_two_routers() {
    let engines = Engines::start_at("2", &["--model", "m", "--engines", "2"]);
    let tenants = format!("tenants: [{{name: a, key_digest: \"{}\", quota: 20}}]\n", digest("a"));
    let routers = pair("quota", &engines, &tenants);
    let mut admitted = Vec::new();
    for request in 0..50 {
        let mut stream = as_tenant(&routers[request % 2], &long());
        let head = stream.read_past("\r\n");
        if head.contains(" 200 ") {
            stream.read_past("data: ");
            admitted.push(stream);
        } else {
            assert!(head.contains(" 429 "), "{head}");
        }
    }
    // Within a tenth of the quota.
    assert!((20..=22).contains(&admitted.len()), "{} of 20", admitted.len());
    drop(admitted);
    let short = json!({"model": "m", "prompt": "short", "max_tokens": 1});
    let answers = || as_tenant(&routers[1], &short).finish().is_ok_and(|it| it.status == 200);
    eventually("the quota is free again", answers);
}

#[test]
fn rates_hold_over_two_routers() {
    let engines = Engines::start(&["--model", "m", "--engines", "2"]);
    let limit = 60;
    let tenants = format!(
        "tenants: [{{name: a, key_digest: \"{}\", requests_per_minute: {limit}}}]\n",
        digest("a")
    );
    let routers = pair("rates", &engines, &tenants);
    let short = json!({"model": "m", "prompt": "short", "max_tokens": 1});
    let start = Instant::now();
    let ask = |request: usize| as_tenant(&routers[request % 2], &short).finish().unwrap();
    let answers: Vec<Response> = (0..150).map(ask).collect();
    let admitted = answers.iter().filter(|answer| answer.status == 200).count() as f64;
    // One comes back every second.
    let allowed = f64::from(limit) + start.elapsed().as_secs_f64();
    let most = 1.1 * allowed;
    assert!((f64::from(limit)..=most).contains(&admitted), "{admitted} of {allowed}");
}
