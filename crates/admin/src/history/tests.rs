//! Chart history: its figures, its changes and its bounds.

use super::*;

impl ChartHistory {
    fn add(&self, seen: Observation) {
        self.sample(|_| seen);
    }
}

fn at(second: u64, requests: u64) -> Observation {
    let figures = Figures { requests, ..Figures::default() };
    Observation { at: second, figures, ..Observation::default() }
}

fn with_pods(second: u64, pods: &[(&str, &'static str)]) -> Observation {
    let health = pods.iter().map(|(name, health)| ((*name).to_owned(), *health)).collect();
    Observation { health, ..at(second, 0) }
}

fn hour() -> Duration {
    Duration::from_secs(3600)
}

fn changes(history: &ChartHistory) -> Vec<String> {
    let told = history.json(100_000, Duration::from_secs(86_400), None);
    let changes = told["changes"].as_array().unwrap().iter();
    let shown = changes.map(|change| {
        let pod = change["pod"].as_str().or(change["detail"].as_str()).unwrap_or("-");
        format!("{} {} {pod}", change["at"], change["kind"].as_str().unwrap())
    });
    shown.collect()
}

#[test]
fn a_second_has_the_rate_of_the_last_seconds_and_a_gap_is_null() {
    let history = ChartHistory::default();
    (0..8).for_each(|second| history.add(at(1000 + second, 10 * second)));
    // Two seconds were missed.
    history.add(at(1010, 100));
    let told = history.json(1010, Duration::from_secs(12), None);
    assert_eq!((&told["from"], &told["step"]), (&json!(998), &json!(1)));
    assert_eq!(told["started"], 1000, "what is null before was before the start");
    let rates: Vec<_> = told["series"]["requests"].as_array().unwrap().clone();
    let expected: Vec<_> = [None, None].into_iter().chain([Some(10.0); 7]).collect();
    assert_eq!(rates[..9], expected.iter().map(|it| json!(it)).collect::<Vec<_>>());
    assert_eq!((&rates[9], &rates[10], &rates[11]), (&Value::Null, &Value::Null, &json!(10.0)));
    assert_eq!(told["series"]["hit_rate"][11], Value::Null, "nothing was reported");
}

#[test]
fn a_minute_has_the_rate_of_the_whole_minute() {
    let history = ChartHistory::default();
    for second in 0..=180 {
        // A burst in the second minute only.
        history.add(at(60_000 + second, if second < 90 { 0 } else { 600 }));
    }
    let told = history.json(60_180, Duration::from_secs(7200), None);
    assert_eq!(told["step"], 60);
    let rates = told["series"]["requests"].as_array().unwrap();
    assert_eq!(rates.len(), 120);
    assert_eq!(rates[117..], [json!(0.0), json!(10.0), json!(0.0)]);
}

#[test]
fn what_changed_is_listed_once_with_its_time() {
    let history = ChartHistory::default();
    history.add(with_pods(100_000 - 50, &[("a", "down")]));
    history.add(with_pods(100_000 - 49, &[("a", "up"), ("b", "down")]));
    history.add(with_pods(100_000 - 48, &[("a", "up"), ("b", "up")]));
    history.add(with_pods(100_000 - 47, &[("a", "down"), ("b", "draining")]));
    let reloads = [1, 0];
    history.add(Observation { reloads, ..with_pods(100_000 - 46, &[("a", "down")]) });
    let restarts = |count| BTreeMap::from([("a".to_owned(), count)]);
    for (second, count) in [(45, 0), (44, 1)] {
        let seen = with_pods(100_000 - second, &[("a", "down")]);
        history.add(Observation { reloads, restarts: restarts(count), ..seen });
    }
    assert_eq!(
        changes(&history),
        [
            "99950 router_started -",
            "99951 pod_up a",
            "99951 pod_added b",
            "99952 pod_up b",
            "99953 pod_down a",
            "99953 pod_draining b",
            "99954 reload_applied -",
            "99954 pod_removed b",
            "99956 pod_restarted a",
        ]
    );
}

#[test]
fn what_happens_between_two_samples_is_told_at_once_and_only_once() {
    let history = ChartHistory::default();
    history.add(with_pods(99_000, &[("a", "up")]));
    history.look(|| with_pods(99_000, &[("a", "down")]));
    let last = history.changes(1);
    assert_eq!((&last[0]["kind"], &last[0]["pod"]), (&json!("pod_down"), &json!("a")));
    history.look(|| with_pods(98_000, &[("a", "up")]));
    history.add(with_pods(99_001, &[("a", "down")]));
    history.look(|| with_pods(99_002, &[("a", "up")]));
    history.add(with_pods(99_002, &[("a", "up")]));
    let expected = ["99000 router_started -", "99000 pod_down a", "99002 pod_up a"];
    assert_eq!(changes(&history), expected);
    let told = history.json(99_002, Duration::from_secs(2), None);
    assert_eq!(told["series"]["waiting"], json!([0.0, 0.0]), "no sample is missing");
}

#[test]
fn a_reload_is_listed_with_what_it_changed_and_two_of_one_second_are_two() {
    let history = ChartHistory::default();
    history.add(at(99_000, 0));
    let changed = BTreeMap::from([(1, "explained: 1 → 5".to_owned()), (2, "x".to_owned())]);
    history.add(Observation { reloads: [1, 1], changed: changed.clone(), ..at(99_001, 0) });
    history.add(Observation { reloads: [3, 1], changed, ..at(99_002, 0) });
    assert_eq!(
        changes(&history)[1..],
        [
            "99001 reload_applied explained: 1 → 5",
            "99001 reload_refused -",
            "99002 reload_applied x",
            "99002 reload_applied -",
        ]
    );
}

#[test]
fn a_day_and_any_number_of_changes_take_less_than_half_a_mebibyte() {
    let history = ChartHistory::default();
    for second in 0..90_000 {
        let health = if second % 2 == 0 { "up" } else { "down" };
        let reloads = [second, 0];
        let changed = BTreeMap::from([(second, "c".repeat(260))]);
        let seen = with_pods(second, &[(&"p".repeat(100), health)]);
        history.add(Observation { reloads, changed, ..seen });
    }
    let state = history.state();
    assert_eq!((state.seconds.samples.len(), state.minutes.samples.len()), (SECONDS, MINUTES));
    let samples = state.seconds.samples.capacity() + state.minutes.samples.capacity();
    let texts = state.changes.iter().flat_map(|it| [&it.pod, &it.detail]).flatten();
    let names: usize = texts.map(String::len).sum();
    let bytes = samples * size_of::<ChartSample>()
        + state.changes.capacity() * size_of::<Change>()
        + names
        + state.window.capacity() * size_of::<(u64, Figures)>();
    assert!(bytes < 512 << 10, "{bytes}");
    assert_eq!(state.changes.len(), MAX_CHANGES);
    drop(state);
    let told = history.json(89_999, hour(), None);
    let known = told["series"]["requests"].as_array().unwrap().iter();
    assert_eq!(known.filter(|value| !value.is_null()).count(), SECONDS);
}

#[test]
fn a_clock_that_was_set_back_starts_anew_and_one_that_stands_still_adds_nothing() {
    let history = ChartHistory::default();
    (0..9).for_each(|second| history.add(at(5000 + second, second)));
    history.add(at(5008, 900));
    assert_eq!(history.json(5008, hour(), None)["series"]["requests"][3599], json!(1.0));
    (0..3).for_each(|second| history.add(at(100 + second, 0)));
    let told = history.json(102, hour(), None);
    let known = told["series"]["requests"].as_array().unwrap().iter();
    assert_eq!(known.filter(|value| !value.is_null()).count(), 2);
}
