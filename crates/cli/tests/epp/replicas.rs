//! Several pickers behind Envoy: each follows the engines by itself.

use crate::envoy::{Envoy, Failure, Picker, Trust, free_port, is_here, listed};
use crate::picks::{COMPLETIONS, cached, is_idle, picker, prompt};
use crate::support::engines::Engines;
use crate::support::gateway::eventually;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Longer than Envoy takes to see that a picker is about to end.
const LAME_DUCK: [&str; 2] = ["--lame-duck", "3"];

/// As a rollout does it: one replica at a time, and the next when Envoy sees the new one.
#[test]
fn pickers_that_are_replaced_one_after_the_other_cost_no_request() {
    if !is_here() {
        return;
    }
    let engines = Engines::start(&["--model", "m", "--engines", "4"]);
    let ports = [free_port(), free_port()];
    let mut pickers = ports.map(|port| picker(&engines, port, &LAME_DUCK));
    let replicas = Picker { ports: ports.to_vec(), trust: Trust::Plain, is_checked: true };
    let envoy = Envoy::start("replicas", replicas, &listed(&engines), Failure::Close);
    let served = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let envoy = &envoy;
            let served = &served;
            let failed = &failed;
            let over = &over;
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    let answer = envoy.post(COMPLETIONS, &prompt(client));
                    if answer.status == 200 {
                        served.fetch_add(1, Relaxed);
                    } else {
                        failed.lock().unwrap().push(answer.head + &answer.text);
                    }
                }
            });
        }
        for (at, port) in ports.into_iter().enumerate() {
            eventually("both pickers serve", || envoy.healthy_pickers() == 2);
            let before = served.load(Relaxed);
            eventually("clients are served", || served.load(Relaxed) > before + 20);
            pickers[at].signal("-TERM");
            eventually("it has ended", || pickers[at].child.try_wait().unwrap().is_some());
            assert!(pickers[at].child.wait().unwrap().success());
            pickers[at] = picker(&engines, port, &LAME_DUCK);
        }
        eventually("both pickers serve", || envoy.healthy_pickers() == 2);
        over.store(true, Relaxed);
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {served:?} failed: {}", failed.len(), failed[0]);
    pickers.iter().for_each(is_idle);
}

/// Nothing is shared, and still the answer is the same: both follow the same events.
#[test]
fn a_second_picker_knows_the_caches_that_the_requests_of_the_first_one_filled() {
    if !is_here() {
        return;
    }
    let engines = Engines::start(&["--model", "m", "--engines", "4"]);
    let ports = [free_port(), free_port()];
    let pickers = ports.map(|port| picker(&engines, port, &[]));
    let [first, second] = ports.map(|port| {
        Envoy::start(&format!("replicas-{port}"), port, &listed(&engines), Failure::Close)
    });
    for number in 0..6 {
        let filled = first.post(COMPLETIONS, &prompt(number));
        assert_eq!(cached(&filled), 0);
        let holds = || {
            let asked = second.post_with(&[("prefer", "if-available")], &prompt(number));
            asked.status == 200 && asked.pod() == filled.pod() && cached(&asked) > 500
        };
        eventually("the second picker knows it", holds);
    }
    pickers.iter().for_each(is_idle);
}
