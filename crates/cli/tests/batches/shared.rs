//! Batches in a database that is away for a while.

use super::{batch, folder, input, line, text};
use crate::gateway::{Gateway, eventually};
use crate::served::Served;
use crate::server::Database;
use std::time::Duration;

fn address(database: &Database) -> String {
    format!("postgres://wornpath@127.0.0.1:{}/postgres?sslmode=disable", database.port)
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

#[test]
fn a_database_that_is_away_for_a_while_fails_no_line() {
    let Some(mut database) = Database::start() else { return };
    let engines = Served::start_at("20", &["--engines", "2"]);
    let gateway = Gateway::before(&engines, &["--batches", &address(&database)]);
    let id = submit(&gateway, &input(&folder("away"), (0..1_500).map(line)));
    eventually("some lines are there", || done(&gateway, &id) >= 50);
    database.crash();
    std::thread::sleep(Duration::from_secs(3));
    database.run();
    let watched = batch(&gateway, &["watch", &id]);
    let told = text(&watched.stdout);
    assert!(told.contains("completed: 1500 of 1500 answered, 0 failed"), "{watched:?}");
}
