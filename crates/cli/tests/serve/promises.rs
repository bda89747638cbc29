//! Which test shows which promise about faults, and promises that need a test of their own.
//!
//! The rows are those of all faults that a router may meet; what is about events and batches is
//! shown where those are.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

/// Each promise, and the tests that would fail without it.
const SHOWN: [(&str, &[&str]); 29] = [
    (
        "1: a pod that crashes or refuses before the first byte costs no request",
        &[
            "a_pod_that_refuses_connections_costs_no_request",
            "a_crash_before_the_first_byte_is_retried_on_another_pod",
            "pods_that_die_under_load_cost_no_request_and_no_stream",
        ],
    ),
    (
        "2: a stream that breaks goes on with another pod, or ends in an error and never looks whole",
        &[
            "a_stream_whose_engine_dies_is_the_same_for_its_client",
            "what_cannot_be_continued_ends_with_an_error_that_says_why",
            "a_crash_during_a_stream_ends_it_with_an_error",
        ],
    ),
    (
        "3: a pod that hangs is left after its timeout, before and after the first byte",
        &[
            "a_pod_that_accepts_no_connections_is_abandoned_after_the_connect_timeout",
            "a_pod_that_hangs_is_abandoned_after_the_first_byte_timeout",
            "an_answer_without_end_is_ended_after_the_total_timeout_and_frees_the_engine",
            "a_crash_during_a_stream_ends_it_with_an_error",
        ],
    ),
    (
        "4: a slow pod gets less, and nothing where the profile asks, but never half of the pods",
        &[
            "a_slow_pod_gets_fewer_requests",
            "a_pod_that_stays_slow_gets_nothing_where_the_profile_asks",
            "few_pods_eject_no_pod_and_at_most_half_are_ejected",
        ],
    ),
    (
        "5: what a gap lost is replayed or replaced, and until then the pod counts less",
        &[
            "an_engine_with_replay_snapshot_and_digest_is_exact_within_two_seconds",
            "a_stock_engine_is_exact_within_two_seconds",
            "an_engine_whose_ring_is_too_short_is_exact_within_two_seconds",
            "libzmq_is_followed_through_loss_and_restart_with_and_without_topics",
            "unanswered_replays_are_retried_with_backoff_and_then_given_up",
        ],
    ),
    (
        "6: any order and repetition within a life is one state, and an older life has no effect",
        &["any_order_and_repetition_gives_one_state_without_blocks_of_an_older_epoch"],
    ),
    (
        "7: of an engine that restarts in place nothing old counts",
        &[
            "an_engine_that_restarted_while_disconnected_is_detected",
            "another_batch_under_a_known_number_is_a_restart",
            "after_any_storm_the_index_is_exact_and_nothing_is_left_of_ended_requests",
        ],
    ),
    (
        "8: a lost tail is found by a digest, or by asking",
        &[
            "total_loss_for_half_a_minute_heals_within_a_digest_and_a_second",
            "a_digest_ahead_is_a_lost_tail_and_one_that_differs_is_repaired_by_a_snapshot",
        ],
    ),
    (
        "9: a consumer that panics is replaced",
        &["a_transport_that_panics_is_replaced_and_its_pods_recover"],
    ),
    (
        "10: a router that starts serves at once and is exact soon",
        &[
            "a_restarted_router_is_exact_after_replays_and_with_a_checkpoint_after_none",
            "a_restarted_router_restores_the_blocks_that_engines_still_hold",
        ],
    ),
    (
        "11: two routers come to the same index",
        &[
            "requests_and_routers_survive_whatever_becomes_of_nats",
            "after_any_storm_the_index_is_exact_and_nothing_is_left_of_ended_requests",
        ],
    ),
    (
        "12: a pod whose events stop fades out of cache scores and is still used",
        &[
            "a_pod_whose_events_stop_fades_out_of_cache_scoring_and_is_still_used",
            "confidence_decreases_with_silence",
        ],
    ),
    (
        "13: no decision uses the wall clock",
        &[
            "pure_crates_do_no_io_read_no_clock_and_spawn_nothing",
            "after_any_storm_the_index_is_exact_and_nothing_is_left_of_ended_requests",
        ],
    ),
    (
        "14: a flood of events or prompts stays within its caps, and clients are answered meanwhile",
        &[
            "a_flood_of_several_times_the_cap_stays_in_512_mib_and_delays_no_client",
            "memory_stays_flat_while_every_request_is_another_one",
        ],
    ),
    (
        "15: malformed events are counted as a gap, and many of them are passed over for a while",
        &[
            "mutated_payloads_do_not_panic_and_what_decodes_round_trips",
            "too_many_malformed_batches_quarantine_a_pod_for_a_while",
        ],
    ),
    (
        "16: a malicious pod can only lie about itself, and is capped",
        &[
            "a_pod_with_an_endless_answer_is_abandoned_and_others_are_not",
            "a_pod_with_its_own_token_accepts_no_other",
            "every_limit_is_enforced",
        ],
    ),
    (
        "17: malformed and deep JSON is refused in the interface's words, and no breaker counts it",
        &[
            "errors_have_the_form_of_the_clients_api",
            "a_body_that_is_not_a_json_object_is_refused_at_any_depth",
            "refusals_of_bad_requests_open_no_breaker",
        ],
    ),
    (
        "18: bodies that are too large or encoded are refused before they are read",
        &[
            "a_body_that_is_too_large_is_refused_by_its_content_length",
            "a_raw_request_is_refused_or_forwarded_as_exactly_one_request",
        ],
    ),
    (
        "19: a client that leaves takes its request with it, but not between two engines",
        &[
            "a_request_is_cancelled_when_its_client_disconnects",
            "a_client_that_disconnects_is_noticed_at_once_and_leaves_no_load",
            "a_plan_is_cancelled_when_its_client_disconnects_during_prefill",
            "a_kv_transfer_is_completed_even_if_the_client_disconnects",
            "an_expired_kv_lease_ends_the_plan_of_a_disconnected_client",
        ],
    ),
    (
        "20: a failed prefill goes to another pod, then to the decode pod, and that is said",
        &[
            "a_prefill_that_fails_twice_is_done_by_the_decode_pod_and_reported",
            "a_prefill_that_fails_beside_its_decode_is_done_by_another_pod_in_another_room",
            "if_two_prefills_fail_the_decode_pod_computes_the_prompt_and_it_is_reported",
        ],
    ),
    (
        "21: a failed decode goes to another pod within the lease, and never past it",
        &["a_decode_pod_that_fails_before_its_first_byte_is_replaced_while_the_lease_surely_holds"],
    ),
    (
        "22: SIGTERM drains requests in flight; a rolling restart refuses no request",
        &[
            "sigterm_drains_requests_in_flight_and_refuses_new_ones",
            "a_rolling_restart_refuses_no_request",
        ],
    ),
    (
        "23: a bad configuration does not start, and does not replace a good one",
        &[
            "a_bad_configuration_does_not_start",
            "sighup_reloads_the_configuration_and_an_invalid_one_changes_nothing",
            "a_valid_file_is_applied_and_an_invalid_one_changes_nothing",
        ],
    ),
    (
        "24: a full disk or a death loses nothing that was acknowledged and publishes nothing twice",
        &[
            "an_upload_without_disk_space_gets_507_and_succeeds_later",
            "a_batch_waits_for_disk_space_for_its_results",
            "a_killed_gateway_resumes_its_batches_and_publishes_each_line_once",
            "a_crash_at_any_operation_loses_and_duplicates_nothing",
        ],
    ),
    (
        "25: a broker may be away, and what it missed comes after its return",
        &[
            "requests_and_routers_survive_whatever_becomes_of_redis",
            "events_over_kafka_survive_kills_wipes_and_pauses",
        ],
    ),
    (
        "26: without any pod the answer is 503 at once, until one is back",
        &["without_any_pod_the_answer_is_503_at_once_and_service_returns_with_the_pod"],
    ),
    (
        "27: overload is 429, no pod is 503, and the wait queue is bounded in requests and bytes",
        &[
            "a_request_waits_until_the_pod_has_capacity_and_gets_429_if_the_queue_is_full",
            "a_queue_timeout_is_429_and_a_queue_without_pods_503",
            "the_bytes_of_queued_requests_are_limited",
        ],
    ),
    (
        "28: a stuck thread fails the health check and is named, and SIGTERM still ends the process",
        &[
            "a_stuck_event_thread_fails_health_and_is_named_and_sigterm_ends_the_router",
            "a_stuck_worker_fails_health_and_is_named_and_sigterm_ends_the_router",
            "sigterm_ends_a_router_whose_accepting_thread_is_stuck",
            "the_systemd_watchdog_is_fed_until_a_thread_sticks",
        ],
    ),
    (
        "29: a request that breaks engines costs other clients nothing",
        &[
            "twenty_poison_requests_a_second_cost_other_clients_nothing",
            "a_request_that_breaks_engines_reaches_two_of_them_and_is_then_refused_for_a_while",
        ],
    ),
];

#[test]
fn every_promise_is_shown_by_tests_that_exist() {
    let sources = sources();
    for (promise, tests) in SHOWN {
        for test in tests {
            assert!(has_test(&sources, test), "{promise}: there is no test `{test}`");
        }
    }
}

#[test]
fn every_symptom_of_the_troubleshooting_page_is_reproduced_by_a_test_that_exists() {
    let page = include_str!("../../../../docs/troubleshooting.md");
    let sources = sources();
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains("_"));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 25, "{}", rows.len());
    for row in rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for test in tests.split('`').filter(|word| word.len() > 2) {
            assert!(has_test(&sources, test), "there is no test `{test}`: {row}");
        }
    }
}

fn sources() -> Vec<String> {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    ["cli/tests", "admin", "batch", "gateway", "events", "jobs/tests", "routing", "execution"]
        .iter()
        .flat_map(|folder| read(&format!("{crates}/{folder}")))
        .collect()
}

fn has_test(sources: &[String], test: &str) -> bool {
    sources.iter().any(|source| source.contains(&format!("fn {test}(")))
}

/// Every Rust file below a folder.
fn read(folder: &str) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_str().unwrap().to_owned();
        if path.is_dir() {
            all.extend(read(&name));
        } else if name.ends_with(".rs") {
            all.push(std::fs::read_to_string(path).unwrap());
        }
    }
    all
}

#[test]
fn a_slow_pod_gets_fewer_requests() {
    let engines = Engines::start_at("10", &["--engines", "2", "--model", "m"]);
    engines.set_faults(0, "{\"slow\": 40}");
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for client in 0..4 {
            let gateway = &gateway;
            let counts = &counts;
            let engines = &engines;
            scope.spawn(move || {
                for turn in 0..8 {
                    let prompt = format!("{client} {turn} ").repeat(100);
                    let body = json!({"prompt": prompt, "max_tokens": 30, "stream": true});
                    let answer = gateway.post(ASK, &body);
                    let at = usize::from(answer.pod() == engines.engines[1].http);
                    counts[at].fetch_add(1, Relaxed);
                }
            });
        }
    });
    let [slow, fast] = counts.map(|count| count.load(Relaxed));
    assert!(slow * 2 < fast, "{slow} to the slow pod, {fast} to the fast one");
}

#[test]
fn a_pod_that_stays_slow_gets_at_most_five_of_eighty_requests_of_an_idle_fleet() {
    for tokenizer in ["none", "bytes"] {
        let engines = Engines::start_at("1", &["--engines", "4", "--model", "m"]);
        engines.set_faults(2, "{\"slow\": 20}");
        let pods: Vec<_> =
            engines.engines.iter().map(|at| format!("{{url: \"http://{}\"}}", at.http)).collect();
        let text =
            format!("pods: [{}]\nmodels: [{{name: m, tokenizer: {tokenizer}}}]\n", pods.join(", "));
        let gateway = Gateway::configured(&format!("promises_slow_{tokenizer}"), &text, 4);
        let slow = &engines.engines[2].http;
        let to_slow = (0..80).filter(|turn| {
            let prompt = format!("{turn} of nothing in common ").repeat(60);
            let body = json!({"prompt": prompt, "max_tokens": 2, "stream": true});
            gateway.post(ASK, &body).pod() == *slow
        });
        let to_slow = to_slow.count();
        println!("{to_slow} of 80 to a pod that is 20 times slower, tokenizer {tokenizer}");
        assert!(to_slow <= 5, "{to_slow} with the tokenizer {tokenizer}");
    }
}

#[test]
fn a_pod_that_stays_slow_gets_nothing_where_the_profile_asks() {
    let engines = Engines::start_at("20", &["--engines", "4", "--model", "m"]);
    // So slow that no hiccup of the machine makes another pod look like it.
    engines.set_faults(2, "{\"slow\": 3000}");
    let pods: Vec<_> =
        engines.engines.iter().map(|at| format!("{{url: \"http://{}\"}}", at.http)).collect();
    let text = format!(
        "pods: [{}]\nprofiles:\n  even:\n    filter: [healthy, model, steady: {{factor: 4, answers: 3, pause: 60s}}]\n    pick: round_robin\n",
        pods.join(", ")
    );
    let gateway = Gateway::configured("promises_steady", &text, 4);
    let slow = engines.engines[2].http.clone();
    let ask = || {
        let body = json!({"prompt": "a", "max_tokens": 2, "stream": true});
        gateway.post(ASK, &body).pod().to_owned()
    };
    let warming: Vec<_> = (0..16).map(|_| ask()).collect();
    assert!(warming.contains(&slow), "it was tried");
    let later: Vec<_> = (0..12).map(|_| ask()).collect();
    assert!(!later.contains(&slow), "{later:?}");
}

#[test]
fn a_pod_with_an_endless_answer_is_abandoned_and_others_are_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let evil = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap_or(0);
            if request[..read].starts_with(b"GET") {
                let models = r#"{"data": [{"id": "m"}]}"#;
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    models.len()
                );
                let _ = stream.write_all(format!("{head}{models}").as_bytes());
                continue;
            }
            // A head that never ends.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            while stream.write_all(format!("x-more: {}\r\n", "y".repeat(1000)).as_bytes()).is_ok() {
            }
        }
    };
    let _detached = std::thread::Builder::new().spawn(serve).unwrap();
    let engines = Engines::start(&["--model", "m"]);
    let good = format!("http://{}", engines.engines[0].http);
    let gateway = Gateway::start(&["--pod", &evil, "--pod", &good, "--policy", "round-robin"], 2);
    for _ in 0..6 {
        let answer = gateway.post(ASK, &json!({"prompt": "a"}));
        assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[0].http));
    }
}

#[test]
fn refusals_of_bad_requests_open_no_breaker() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    for _ in 0..20 {
        let refused = gateway.post(ASK, &json!({"prompt": "a", "max_tokens": 0}));
        assert_eq!(refused.status, 400);
    }
    let name = &engines.engines[0].http;
    let closed = format!("wornpath_pod_breaker{{pod=\"{name}\",breaker=\"closed\"}}");
    assert_eq!(gateway.metric(&closed) as u64, 1);
    assert_eq!(gateway.post(ASK, &json!({"prompt": "a"})).status, 200);
}

#[test]
fn a_body_that_is_too_large_is_refused_by_its_content_length() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let promised = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 104857600\r\n\r\n{";
    let started = Instant::now();
    let answer = crate::sockets::exchange(&gateway.address, promised.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(3), "without waiting for it");
    let zipped = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 9\r\n\r\n123456789";
    let answer = crate::sockets::exchange(&gateway.address, zipped.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 415"), "{answer}");
}

#[test]
fn a_client_that_disconnects_is_noticed_at_once_and_leaves_no_load() {
    let engines = Engines::start_at("1", &["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let load = format!("wornpath_pod_requests{{pod=\"{}\"}}", engines.engines[0].http);
    for stream in [true, false] {
        let body =
            json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true, "stream": stream});
        let client = gateway.open(ASK, &body);
        eventually("the engine works", || {
            engines.metric(0, "vllm:num_requests_running") as u64 == 1
        });
        let left = Instant::now();
        drop(client);
        eventually("the engine stopped", || engines.metric(0, "vllm:num_requests_running") < 1.0);
        // A hundred milliseconds, and what it takes to ask.
        assert!(left.elapsed() < Duration::from_millis(600), "{:?}", left.elapsed());
        eventually("no load is left", || gateway.metric(&load) as u64 == 0);
    }
}

#[test]
fn a_rolling_restart_refuses_no_request() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let slowly = ["--lame-duck", "1"];
    let mut gateways =
        [Gateway::in_front_of(&engines, &slowly), Gateway::in_front_of(&engines, &slowly)];
    let addresses = [gateways[0].address.clone(), gateways[1].address.clone()];
    let over = AtomicBool::new(false);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let over = &over;
            let asked = &asked;
            let addresses = &addresses;
            scope.spawn(move || {
                let mut turn = client;
                while !over.load(Relaxed) {
                    turn += 1;
                    // A balancer: asks who is ready, and sends there.
                    let address = &addresses[turn % 2];
                    let is_ready = std::panic::catch_unwind(|| {
                        Exchange::open(address, "GET", "/ready", "").finish().unwrap().status == 200
                    });
                    if !is_ready.unwrap_or(false) {
                        continue;
                    }
                    let body = json!({"prompt": "a", "max_tokens": 2}).to_string();
                    let answer = Exchange::open(address, "POST", ASK, &body).finish().unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    asked.fetch_add(1, Relaxed);
                }
            });
        }
        eventually("clients are served", || asked.load(Relaxed) > 20);
        gateways[0].signal("-TERM");
        eventually("it ended", || gateways[0].child.try_wait().unwrap().is_some());
        let before = asked.load(Relaxed);
        eventually("the other one serves on", || asked.load(Relaxed) > before + 10);
        over.store(true, Relaxed);
    });
    assert!(gateways[0].child.wait().unwrap().success());
}
