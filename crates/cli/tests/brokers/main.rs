//! Brokers through the whole of it: engines, a relay, a real broker and two routers, all as
//! processes. Whatever becomes of the broker, requests are answered as if nothing had happened; and
//! within five seconds of its return both routers know exactly what a third one knows that listens
//! to the engines themselves.
#![cfg(any(feature = "nats", feature = "redis"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod fleet;
#[path = "../../../events/tests/server/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of transports, which use the rest")]
mod server;
#[path = "../support/mod.rs"]
mod support;

use fleet::Fleet;
use server::Server;
use std::time::Duration;

fn requests_and_routers_survive(kind: &'static str, mut broker: Server) {
    let fleet = Fleet::start(kind, &broker.url());
    let traffic = fleet.begin_traffic();
    fleet.go_on_without_broker();
    broker.start();
    fleet.agree("away at the start");

    broker.kill();
    fleet.go_on_without_broker();
    broker.start();
    fleet.agree("killed");

    broker.pause();
    fleet.go_on_in_silence(Duration::from_secs(4));
    broker.resume();
    fleet.agree("paused");

    broker.kill();
    broker.wipe();
    fleet.go_on_without_broker();
    broker.start();
    fleet.agree("wiped");

    let (answered, longest) = traffic.end();
    eprintln!("{kind}: {answered} requests answered, the longest took {longest:?}");
    assert!(answered > 100, "only {answered} requests");
    assert!(longest < Duration::from_secs(5), "a request took {longest:?}");
}

#[cfg(feature = "nats")]
#[test]
fn requests_and_routers_survive_whatever_becomes_of_nats() {
    let Some(broker) = Server::nats() else { return };
    requests_and_routers_survive("nats", broker);
}

#[cfg(feature = "redis")]
#[test]
fn requests_and_routers_survive_whatever_becomes_of_redis() {
    let Some(broker) = Server::redis() else { return };
    requests_and_routers_survive("redis", broker);
}
