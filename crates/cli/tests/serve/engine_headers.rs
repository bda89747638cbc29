//! Headers of engines that clients must not get.

use crate::support::gateway::Gateway;
use crate::support::recorder::Recorder;
use serde_json::json;

fn in_front_of(engine: &Recorder) -> Gateway {
    Gateway::start(&["--pod", &format!("http://{}", engine.address)], 1)
}

#[test]
fn an_engine_sets_no_cookies_and_no_rules_for_browsers() {
    let engine = Recorder::start();
    let gateway = in_front_of(&engine);
    engine.refuse(
        "200 OK\r\nset-cookie: a=b\r\nset-cookie: c=d\r\nalt-svc: h3=\":443\"\r\n\
         strict-transport-security: max-age=1\r\nclear-site-data: \"*\"\r\n\
         access-control-allow-origin: *\r\naccess-control-expose-headers: x\r\nx-engine: kept",
    );
    let answer = gateway.post("/v1/completions", &json!({"model": "m", "prompt": "a"}));
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert_eq!(answer.header("x-engine"), Some("kept"));
    for removed in ["set-cookie", "alt-svc", "strict-transport", "clear-site", "access-control"] {
        assert!(!answer.head.contains(removed), "{}", answer.head);
    }
}

#[test]
fn a_length_that_an_engine_gives_twice_or_as_a_list_is_not_relayed() {
    let engine = Recorder::start();
    let gateway = in_front_of(&engine);
    let ask = || gateway.post("/v1/completions", &json!({"model": "m", "prompt": "a"}));
    let good = ask();
    let length = good.header("content-length").unwrap();
    // The recorder adds a plain length of its own.
    for invalid in [length.to_owned(), format!("{length}, {length}")] {
        engine.refuse(format!("200 OK\r\ncontent-length: {invalid}").leak());
        let answer = ask();
        assert_eq!(answer.status, 502, "{}", answer.head);
        assert_eq!(answer.head.matches("content-length").count(), 1, "{}", answer.head);
    }
}
