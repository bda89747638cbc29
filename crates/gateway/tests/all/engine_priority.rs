//! The priority that engines schedule by, as clients send it and as it arrives.

use crate::served::Served;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

/// The header and the body's field as an engine gets them.
fn arrived(served: &Served, header: Option<&str>, body: &Value) -> [Option<String>; 2] {
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(header.map(|value| ("x-vllm-priority", value)));
    let answer = served.send("key-a", PATH, &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text);
    let arrived = served.arrived();
    let field = arrived.json().get("priority").map(Value::to_string);
    [arrived.header("x-vllm-priority").map(str::to_owned), field]
}

#[test]
fn a_tenant_without_a_range_has_no_priority_of_its_own() {
    let served = Served::with_tenants("");
    for header in [None, Some("-100"), Some("x")] {
        let body = json!({"prompt": "hi", "priority": -100});
        assert_eq!(arrived(&served, header, &body), [None, None], "{header:?}");
    }
    let headers = [("content-type", "application/json"), ("x-override-priority", "9")];
    assert_eq!(served.send("key-a", PATH, &headers, br#"{"prompt":"hi"}"#).status, 200);
    assert_eq!(served.arrived().header("x-override-priority"), None);
}

#[test]
fn a_priority_is_clamped_to_the_range_of_its_tenant() {
    let served = Served::with_tenants(", engine_priority: 2..8");
    for (header, field, expected) in [
        (None, json!(5), "5"),
        (None, json!(-100), "2"),
        (None, json!(100), "8"),
        (None, json!(null), "2"),
        (Some("6"), json!(3), "6"),
        (Some("-9"), json!(7), "2"),
        (Some("x"), json!(7), "7"),
    ] {
        let body = json!({"prompt": "hi", "priority": field});
        let expected = [None, Some(expected.to_owned())];
        assert_eq!(arrived(&served, header, &body), expected, "{header:?} {field}");
    }
    assert_eq!(arrived(&served, None, &json!({"prompt": "hi"})), [None, Some("2".to_owned())]);
    let escaped = br#"{"prompt":"hi","\u0070riority":-9,"priority":-8}"#;
    let headers = [("content-type", "application/json")];
    assert_eq!(served.send("key-a", PATH, &headers, escaped).status, 200);
    assert_eq!(served.arrived().body, br#"{"prompt":"hi","priority":2}"#);
}

#[test]
fn a_priority_that_is_no_whole_number_is_refused() {
    let served = Served::with_tenants(", engine_priority: 2..8");
    for field in [json!("1"), json!(1.5), json!(true), json!([1]), json!(1e30)] {
        let body = json!({"prompt": "hi", "priority": field}).to_string();
        let message = served.refused(PATH, &[], body.as_bytes());
        assert!(message.contains("`priority`"), "{message}");
    }
}

#[test]
fn without_tenants_a_priority_passes_and_a_header_that_is_no_number_does_not() {
    let served = Served::start("");
    let body = json!({"prompt": "hi", "priority": -100});
    let field = Some("-100".to_owned());
    assert_eq!(arrived(&served, Some("-5"), &body), [Some("-5".to_owned()), field.clone()]);
    for malformed in ["x", "1.5", "1_0", ""] {
        assert_eq!(arrived(&served, Some(malformed), &body), [None, field.clone()], "{malformed}");
    }
}
