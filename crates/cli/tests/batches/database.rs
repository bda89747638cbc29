//! Batches in a database: an outage of it, and gateways that share a batch.

use super::{batch, folder, input, line, text};
use crate::server::Database;
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, eventually_within};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

fn address(database: &Database) -> String {
    format!("postgres://wornpath@127.0.0.1:{}/postgres?sslmode=disable", database.port)
}

/// Long lines, so that there are several segments.
fn long(number: usize) -> Value {
    let mut line = line(number);
    line["body"]["messages"][0]["content"] = json!(format!("{} {number}", "word ".repeat(600)));
    line
}

fn submit(gateway: &Gateway, input: &str) -> String {
    let submitted = batch(gateway, &["submit", input]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    text(&submitted.stdout).split_whitespace().next().unwrap().to_owned()
}

fn done(gateway: &Gateway, id: &str) -> u64 {
    let json = gateway.get(&format!("/v1/batches/{id}")).json();
    json["request_counts"]["completed"].as_u64().unwrap()
}

/// The requests that pods have in flight.
fn requests(gateway: &Gateway) -> u64 {
    let page = gateway.get("/metrics").text;
    let lines = page.lines().filter(|line| line.starts_with("wornpath_pod_requests{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn an_outage_of_the_database_fails_no_line() {
    let Some(mut database) = Database::start() else { return };
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let gateway = Gateway::in_front_of(&engines, &["--batches", &address(&database)]);
    let id = submit(&gateway, &input(&folder("away"), (0..1_500).map(line)));
    eventually("some lines are there", || done(&gateway, &id) >= 50);
    database.crash();
    let at = format!("/v1/batches/{id}");
    eventually("the database is away", || gateway.get(&at).status == 503);
    eventually("no engine works, as no result can be stored", || requests(&gateway) == 0);
    database.run();
    let watched = batch(&gateway, &["watch", &id]);
    let told = text(&watched.stdout);
    assert!(told.contains("completed: 1500 of 1500 answered, 0 failed"), "{watched:?}");
}

#[test]
fn a_batch_that_gateways_share_ends_soon_after_it_is_cancelled() {
    let Some(database) = Database::start() else { return };
    let engines = Engines::start_at("5", &["--engines", "2"]);
    let gateways =
        [0, 1].map(|_| Gateway::in_front_of(&engines, &["--batches", &address(&database)]));
    let [first, second] = &gateways;
    let id = submit(first, &input(&folder("shared-cancelled"), (0..4_000).map(long)));
    eventually("some lines are there", || done(second, &id) >= 20);
    let cancelled = batch(first, &["cancel", &id]);
    assert!(text(&cancelled.stdout).contains(" cancelling: "), "{cancelled:?}");
    let at = format!("/v1/batches/{id}");
    // The other gateway learns of it when it renews its lease, five seconds later at most.
    eventually_within(Duration::from_secs(15), "it ends", || {
        second.get(&at).json()["status"] == "cancelled"
    });
    let ended = second.get(&at).json();
    let lines = |file: &Value| {
        let content =
            file.as_str().map(|file| first.get(&format!("/v1/files/{file}/content")).text);
        let content = content.unwrap_or_default();
        let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["custom_id"].to_string();
        content.lines().map(id).collect::<Vec<_>>()
    };
    let ids = [lines(&ended["output_file_id"]), lines(&ended["error_file_id"])].concat();
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), distinct.len()), (4_000, 4_000), "each line once");
}

#[test]
fn a_gateway_that_reaches_no_pod_leaves_a_batch_to_others() {
    let Some(database) = Database::start() else { return };
    let address = address(&database);
    // Nothing listens there.
    let alone = Gateway::start(&["--pod", "http://127.0.0.1:9", "--batches", &address], 0);
    let id = submit(&alone, &input(&folder("unreached"), (0..40).map(long)));
    eventually("it has taken the batch", || {
        alone.get(&format!("/v1/batches/{id}")).json()["status"] == "in_progress"
    });
    let engines = Engines::start(&[]);
    let other = Gateway::in_front_of(&engines, &["--batches", &address]);
    // A lease lasts fifteen seconds.
    eventually_within(Duration::from_secs(25), "the other computes it", || done(&other, &id) == 40);
}
