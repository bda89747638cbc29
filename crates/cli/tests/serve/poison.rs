//! Requests that break whatever engine reads them: they cost other clients nothing.

use crate::support::gateway::Gateway;
use crate::support::recorder::{Poison, Recorder};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

/// Three engines that cannot stand the word `poison`.
fn engines(poison: Poison) -> [Recorder; 3] {
    let engines = [(); 3].map(|()| Recorder::start());
    engines.iter().for_each(|engine| engine.poison_with(poison));
    engines
}

fn gateway(name: &str, engines: &[Recorder]) -> Gateway {
    let pod = |engine: &Recorder| format!("  - {{url: \"http://{}\", model: m}}\n", engine.address);
    let pods: String = engines.iter().map(pod).collect();
    Gateway::configured(name, &format!("pods:\n{pods}"), 3)
}

/// Other clients' requests that failed, and all of them, while 20 poison requests a second come in.
fn failures_beside(gateway: &Gateway, are_distinct: bool) -> (usize, usize) {
    let is_over = AtomicBool::new(false);
    let client = &|name: usize| {
        let mut failed = 0;
        let mut all = 0;
        while !is_over.load(Relaxed) {
            let prompt = format!("question {all} of {name}");
            let answer = gateway.post(ASK, &json!({"model": "m", "prompt": prompt}));
            failed += usize::from(answer.status != 200);
            all += 1;
            std::thread::sleep(Duration::from_millis(40));
        }
        (failed, all)
    };
    let mut statuses = Vec::new();
    let counted = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2).map(|name| scope.spawn(move || client(name))).collect();
        for number in 0..40 {
            let started = Instant::now();
            let text = if are_distinct { number } else { 0 };
            let prompt = format!("poison {text}");
            let answer = gateway.post(ASK, &json!({"model": "m", "prompt": prompt}));
            statuses.push(answer.status);
            std::thread::sleep(Duration::from_millis(50).saturating_sub(started.elapsed()));
        }
        is_over.store(true, Relaxed);
        let counted = clients.into_iter().map(|client| client.join().unwrap());
        counted.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 500..=503)), "{statuses:?}");
    counted
}

#[test]
fn twenty_poison_requests_a_second_cost_other_clients_nothing() {
    let cases = [
        ("closes", Poison::Closes),
        ("closes_late", Poison::ClosesLate),
        ("says_500", Poison::Says("500 Internal Server Error")),
        ("says_503", Poison::Says("503 Service Unavailable")),
        ("says_503_for_long", Poison::Says("503 Service Unavailable\r\nretry-after: 10")),
    ];
    std::thread::scope(|scope| {
        for (name, poison) in cases {
            for are_distinct in [false, true] {
                scope.spawn(move || {
                    let engines = engines(poison);
                    let name = format!("poison_{name}_{are_distinct}");
                    let gateway = gateway(&name, &engines);
                    let (failed, all) = failures_beside(&gateway, are_distinct);
                    assert!(all > 20, "{name}: only {all} requests");
                    assert_eq!(failed, 0, "{name}: of {all} requests");
                });
            }
        }
    });
}

#[test]
fn a_request_that_breaks_engines_reaches_two_of_them_and_is_then_refused_for_a_while() {
    let engines = engines(Poison::Closes);
    let gateway = gateway("poison_refused", &engines);
    let poison = json!({"model": "m", "prompt": "poison"});
    for attempt in 0..5 {
        let answer = gateway.post(ASK, &poison);
        assert_eq!(answer.status, 502, "{}", answer.text);
        let is_refused = answer.text.contains("broke the connections to two pods");
        assert_eq!(is_refused, attempt > 0, "{}", answer.text);
        assert_eq!(answer.header("retry-after").is_some(), is_refused);
    }
    let reached: usize = engines.iter().map(|engine| engine.posted().len()).sum();
    assert_eq!(reached, 2);
    assert_eq!(gateway.metric("wornpath_poison_requests_refused_total") as u64, 4);
    let other = json!({"model": "m", "prompt": "another one"});
    assert_eq!(gateway.post(ASK, &other).status, 200);
}
