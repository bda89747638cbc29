//! The lifecycle of a prefix, end to end: in no cache, on one pod, evicted, on another pod; and a
//! pod whose events stop.

mod fleet;

use crate::support::gateway::eventually;
use fleet::{Fleet, Prompt};
use serde_json::json;

const POLICIES: [&str; 2] = ["sticky-least-loaded", "cache-aware"];

#[test]
fn twenty_requests_of_a_new_prefix_that_come_at_once_land_on_one_pod() {
    for policy in POLICIES {
        let fleet = Fleet::start(policy, &[], "");
        let pods: Vec<String> = std::thread::scope(|scope| {
            let ask = |tail| {
                let fleet = &fleet;
                scope.spawn(move || fleet.ask(&Prompt::new("cold").then(tail)).pod)
            };
            let asked: Vec<_> = (0..20).map(ask).collect();
            asked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(pods.iter().all(|pod| *pod == pods[0]), "{policy}: {pods:?}");
        // By the engine's own count the prefix was computed once or shared, and nowhere else.
        let held: Vec<_> = fleet.held(&Prompt::new("cold").then(0));
        assert_eq!(held.iter().filter(|(_, blocks)| *blocks > 0).count(), 1, "{policy}: {held:?}");
    }
}

#[test]
fn a_prefix_stays_with_its_pod_although_another_one_has_less_to_do() {
    let fleet = Fleet::start("sticky-least-loaded", &[], "");
    let prompt = Prompt::new("sticky");
    let home = fleet.ask(&prompt.then(0)).pod;
    let _busy: Vec<_> = (1..5).map(|tail| fleet.occupy(&home, &prompt.then(tail))).collect();
    eventually("the load is seen", || fleet.requests(&home) >= 4);
    let answer = fleet.ask(&prompt.then(9));
    assert_eq!(answer.pod, home);
    assert!(answer.cached_tokens >= Prompt::TOKENS - 16, "{}", answer.cached_tokens);
}

#[test]
fn a_prefix_that_its_pod_evicted_goes_elsewhere_and_stays_there() {
    for policy in POLICIES {
        let fleet = Fleet::start(policy, &["--kv-tokens", "16384"], "");
        let prompt = Prompt::new("evicted");
        let other = Prompt::new("other");
        let home = fleet.ask(&prompt.then(0)).pod;
        eventually("its events came", || fleet.feed(&home)["last_sequence"].is_u64());
        // A long answer keeps the pod busy, so that only its cache favours it.
        let _busy = fleet.occupy(&home, &other.then(0));
        assert_eq!(fleet.would_go(&prompt.then(2)), home, "{policy}: it is still warm");
        for filler in ["one", "two", "three"] {
            let body = json!({"prompt": filler.repeat(2000), "max_tokens": 1});
            fleet.straight_to(&home, &body);
        }
        eventually("the eviction is heard of", || fleet.believed(&prompt.then(3), &home) == 0);
        let next = fleet.ask(&prompt.then(4));
        assert_ne!(next.pod, home, "{policy}");
        assert_eq!(next.cached_tokens, 0, "{policy}");
        eventually("the new place is known", || fleet.believed(&prompt.then(5), &next.pod) > 0);
        let after = fleet.ask(&prompt.then(6));
        assert_eq!(after.pod, next.pod, "{policy}");
        assert!(after.cached_tokens >= Prompt::TOKENS - 16, "{policy}: {}", after.cached_tokens);
    }
}

#[test]
fn a_pod_whose_events_stop_fades_out_of_cache_scoring_and_is_still_used() {
    for policy in POLICIES {
        let fleet = Fleet::start(policy, &[], "stale_after: 500ms\n");
        let prompt = Prompt::new("fading");
        let other = Prompt::new("other");
        let home = fleet.ask(&prompt.then(0)).pod;
        eventually("its events came", || fleet.feed(&home)["last_sequence"].is_u64());
        let _busy = fleet.occupy(&home, &other.then(0));
        assert_eq!(fleet.would_go(&prompt.then(2)), home, "{policy}: its events count");
        fleet.set_faults(&home, r#"{"lose_tail": true, "no_replay": true}"#);
        eventually("silence is noticed", || fleet.feed(&home)["state"] == "stale");
        eventually("its cache counts for nothing", || fleet.believed(&prompt.then(3), &home) == 0);
        assert_ne!(fleet.would_go(&prompt.then(4)), home, "{policy}");
        fleet.others_leave(&home);
        assert_eq!(fleet.ask(&prompt.then(5)).pod, home, "{policy}: by load it is as good as any");
        fleet.set_faults(&home, "{}");
        eventually("it is trusted again", || fleet.feed(&home)["state"] == "live");
        eventually("and what it holds counts", || fleet.believed(&prompt.then(6), &home) > 0);
    }
}

#[test]
fn the_cache_of_a_pod_without_events_is_approximated_within_its_size_and_reported_so() {
    let fleet = Fleet::silent("cache-aware", 8000);
    let prompts = ["one", "two", "three"].map(Prompt::new);
    let homes = prompts.each_ref().map(|prompt| fleet.ask(&prompt.then(0)).pod);
    for (prompt, home) in prompts.iter().zip(&homes) {
        assert_eq!(fleet.would_go(&prompt.then(1)), *home, "it is remembered where it went");
        assert_eq!(fleet.events(home)["trust"], "guessed");
        assert_eq!(fleet.events(home)["guess"]["capacity_tokens"], 8000);
    }
    // Room for two and a half prompts each: with three more on every pod, the first has been
    // forgotten.
    let home = homes[0].clone();
    fleet.others_leave(&home);
    for name in ["four", "five", "six"] {
        fleet.ask(&Prompt::new(name).then(0));
    }
    assert_eq!(fleet.believed(&prompts[0].then(2), &home), 0);
    assert!(fleet.believed(&Prompt::new("six").then(1), &home) >= 200);
    assert_eq!(fleet.events(&home)["guess"]["blocks"], 500);
}

#[test]
fn a_restarted_router_restores_the_blocks_that_engines_still_hold() {
    let file = std::env::temp_dir().join(format!("wornpath-checkpoint-{}", std::process::id()));
    let more = format!("checkpoint: {{file: \"{}\"}}\ndrain: {{lame_duck: 0s}}\n", file.display());
    let mut fleet = Fleet::start("cache-aware", &[], &more);
    let prompts = ["one", "two", "three"].map(Prompt::new);
    for pod in ["p0", "p1", "p2"] {
        for prompt in &prompts {
            fleet.straight_to(pod, &prompt.then(0));
        }
    }
    let all_held = |fleet: &Fleet| {
        let held = prompts.iter().map(|prompt| fleet.held(&prompt.then(1)));
        held.flatten().all(|(_, blocks)| blocks >= Prompt::TOKENS / 16)
    };
    eventually("all is known", || all_held(&fleet));
    let before = fleet.digests();

    // Engines replay nothing now, but for the one batch that confirms: what is known then, the file
    // knew.
    fleet.start_again(|_| ());
    eventually("all pods are confirmed", || {
        ["p0", "p1", "p2"].iter().all(|pod| fleet.feed(pod)["checkpoint"] == "confirmed")
    });
    assert_eq!(fleet.digests(), before);
    for pod in ["p0", "p1", "p2"] {
        assert_eq!(fleet.feed(pod)["batches"]["applied"], 0, "{pod}: nothing was said since");
    }
    eventually("and it counts", || all_held(&fleet));

    fleet.start_again(|engines| {
        assert_eq!(engines.control("POST", "/engines/0/restart", "").status, 200);
    });
    eventually("the one that restarted is found out", || {
        fleet.feed("p0")["checkpoint"] == "dropped" && fleet.feed("p0")["state"] == "live"
    });
    assert_eq!(fleet.digests()[0], format!("0:{:016x}", 0));
    assert_eq!(fleet.digests()[1..], before[1..]);

    fleet.start_again(|_| std::fs::write(&file, "WORNPATH, but not really").unwrap());
    eventually("without it, all is heard again", || fleet.digests()[1..] == before[1..]);
    assert!(fleet.feed("p1")["checkpoint"].is_null());
    drop(fleet);
    std::fs::remove_file(&file).unwrap();
}
