//! Batches of a gateway whose configuration is read again.

use super::{batch, folder, input, line, text};
use crate::gateway::{Gateway, eventually};
use crate::served::Served;
use serde_json::{Value, json};

#[test]
fn a_model_that_a_reload_brings_is_one_for_batches_too() {
    let engines = Served::start(&["--model", "m"]);
    let kept = folder("reloaded");
    let path = kept.join("wornpath.yaml");
    let configure = |models: Value| {
        let config = json!({
            "pods": [{"url": format!("http://{}", engines.engines[0].http)}],
            "models": models,
            "batch": {"folder": "kept"},
            "listen": {"client": "127.0.0.1:0"},
        });
        std::fs::write(&path, config.to_string()).unwrap();
    };
    configure(json!([{"name": "other", "tokenizer": "bytes"}]));
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let of_model = |number| {
        let mut line = line(number);
        line["body"]["model"] = json!("m");
        line
    };
    let input = input(&kept, (0..4).map(of_model));
    let before = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(text(&before.stdout).contains("completed: 0 of 4 answered, 4 failed"), "{before:?}");
    configure(
        json!([{"name": "other", "tokenizer": "bytes"}, {"name": "m", "tokenizer": "bytes"}]),
    );
    gateway.signal("-HUP");
    let applied = "wornpath_config_reloads_total{result=\"applied\"}";
    eventually("the file is read again", || gateway.metric(applied) > 0.0);
    let after = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(text(&after.stdout).contains("completed: 4 of 4 answered, 0 failed"), "{after:?}");
}
