//! Whole runs in virtual time: engines that fail in every way, and a process that crashes in
//! between.

use crate::disk::{Crash, Cut, Dice, FaultyDisk};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use wornpath_blocks::HashKey;
use wornpath_jobs::{
    AnswerHold, DedupGroups, DueTime, EngineHealth, ExternalSort, Identical, Input, InputRules,
    LineDispatch, LineForm, LineReply, LineSource, Outgoing, Prefilled, PromptHasher, Publish,
    ReplyError, ResultPaths, Results, RetryPolicy, RunChannels, RunControl, RunProgress, RunWork,
    Scheduler, SortScratch, StoreError, run,
};
use wornpath_planner::{Plan, PlannerRates, Speeds, Window};

const LINES: usize = 40;
const PODS: usize = 3;

/// Every third line, except those that no engine answers, is identical.
fn is_twin(number: usize) -> bool {
    number.is_multiple_of(3) && number % 10 != 9
}

/// Alternating documents, identical lines, and one line in ten that no engine will ever answer.
fn input() -> String {
    let line = |number: usize| {
        if is_twin(number) {
            return format!(
                "{{\"custom_id\":\"id-{number}\",\"url\":\"/v1/completions\",\"body\":{{\"seed\":1,\"prompt\":\"the same question\"}}}}\n"
            );
        }
        let document = format!("document {} ", number % 4).repeat(12);
        let model = if number % 10 == 9 { "none" } else { "m" };
        format!(
            "{{\"custom_id\":\"id-{number}\",\"url\":\"/v1/completions\",\"body\":{{\"model\":\"{model}\",\"prompt\":\"{document}{number}\"}}}}\n"
        )
    };
    (0..LINES).map(line).collect()
}

#[derive(Default)]
struct Lines {
    lines: Vec<Bytes>,
    /// So many reads fail at first, and from then on fifty of each hundred.
    away: Option<usize>,
    /// A line that is lost.
    lost: Option<u32>,
    calls: AtomicUsize,
}

impl LineSource for Lines {
    fn line(&self, line: u32) -> Result<Bytes, StoreError> {
        let call = self.calls.fetch_add(1, Relaxed);
        if self.away.is_some_and(|away| call < away || (call / 50).is_multiple_of(2)) {
            return Err(StoreError::Unreachable("it is away".into()));
        }
        match self.lost == Some(line) {
            true => Err(StoreError::Missing(format!("line {line}"))),
            false => Ok(self.lines[line as usize].clone()),
        }
    }
}

/// Engines whose every response is random, and unique.
struct Fickle(Mutex<Dice>);

impl Fickle {
    fn roll(&self, most: usize) -> usize {
        self.0.lock().unwrap().below(most)
    }
}

impl LineDispatch for Fickle {
    async fn send(
        &self,
        _: usize,
        request: Outgoing,
        prefilled: Prefilled,
    ) -> Result<LineReply, ReplyError> {
        sleep(Duration::from_millis(self.roll(50) as u64)).await;
        let answer = |status, body: &str| {
            let body = Bytes::copy_from_slice(body.as_bytes());
            let held = AnswerHold::default();
            Ok(LineReply { status, request_id: None, body, retry_after: None, held })
        };
        if self.roll(4) > 0 {
            prefilled();
        }
        if request.body.windows(6).any(|window| window == b"\"none\"") {
            return answer(404, r#"{"error":"no such model"}"#);
        }
        match self.roll(12) {
            0 => Err(ReplyError::Unreachable("refused".into())),
            1 => Err(ReplyError::Broken("cut".into())),
            2 => answer(429, "{}"),
            3 => answer(500, "oh\nno"),
            _ => {
                sleep(Duration::from_millis(self.roll(400) as u64)).await;
                let usage = r#"{"prompt_tokens":5,"completion_tokens":1}"#;
                answer(200, &format!("{{\"answer\":{},\"usage\":{usage}}}", self.roll(1 << 40)))
            }
        }
    }

    async fn health(&self, _: usize) -> Option<EngineHealth> {
        (self.roll(3) > 0).then_some(EngineHealth { pod_state: None, ceiling: 6 })
    }
}

fn paths() -> ResultPaths {
    let path = |name: &str| PathBuf::from("job").join(name);
    ResultPaths { output: path("out"), errors: path("errors"), log: path("log") }
}

/// One process of a run. Returns whether the run ended.
async fn run_until_done(
    disk: &FaultyDisk,
    identical: Identical,
    dice: &mut Dice,
) -> Result<bool, StoreError> {
    live_from(Lines::default(), disk, identical, dice).await
}

/// The same with a source that may fail.
async fn live_from(
    mut source: Lines,
    disk: &FaultyDisk,
    identical: Identical,
    dice: &mut Dice,
) -> Result<bool, StoreError> {
    let text = input();
    let rules = InputRules {
        form: LineForm::Free,
        most_lines: 1_000,
        output_tokens: 8,
        most_problems: 1,
        identical,
        due: DueTime::OPEN,
    };
    let hasher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
    // Some processes sort on disk.
    let scratch = SortScratch {
        path: std::env::temp_dir().join(format!("wornpath-{}.spill", std::process::id())),
        cure: "",
        memory: [usize::MAX, 300][dice.below(2)],
    };
    let chains = ExternalSort::to(scratch);
    let input = Input::read_long(text.as_bytes(), &rules, &hasher, chains).unwrap();
    let results = Results::open(disk, &paths(), input.mark)?;
    let forest = input.forest(|line| !results.is_done(line)).unwrap();
    let speeds = Speeds::equal(PODS).unwrap();
    let rates = PlannerRates::flat(1.0, 1.0);
    let plan = Plan::of_forest(&input.queue, forest, &speeds, &rates);
    let copies = DedupGroups::of(&plan);
    let policy = RetryPolicy { attempts: 30, ..RetryPolicy::default() };
    let scheduler = Scheduler::new(plan, vec![Window::new(8, 4_096); PODS], policy);
    source.lines = text.lines().map(|line| Bytes::from(line.to_owned())).collect();
    let work = RunWork {
        source: Arc::new(source),
        name: "test".into(),
        numbers: Arc::new(|line| line + 1),
        copies,
    };
    let (stop, control) = watch::channel(RunControl::GoOn);
    let engines = Arc::new(Fickle(Mutex::new(Dice(dice.below(1 << 30) as u64))));
    let progress = watch::Sender::new(RunProgress::default());
    // Some processes are stopped.
    let after = dice.below(2_000);
    let wanted = [RunControl::Stop, RunControl::Finish][dice.below(2)];
    let mut stopper = tokio::task::JoinSet::new();
    stopper.spawn(async move {
        sleep(Duration::from_millis(after as u64)).await;
        if after.is_multiple_of(3) {
            stop.send_replace(wanted);
        }
        std::future::pending::<()>().await;
    });
    let finished = run(scheduler, work, engines, results, RunChannels { control, progress }).await;
    Ok(finished?.publisher.counts().pending() == 0)
}

/// Checks that every id occurs once, the unanswerable ones among the errors. Returns how many
/// different responses the identical lines have.
fn check(disk: &FaultyDisk) -> usize {
    let mut seen = BTreeSet::new();
    let mut alike = BTreeSet::new();
    for (path, is_error) in [(paths().output, false), (paths().errors, true)] {
        let content = String::from_utf8(disk.content(&path).unwrap()).unwrap();
        for line in content.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = value["custom_id"].as_str().unwrap();
            assert_eq!(id.ends_with('9'), is_error, "{line}");
            assert!(seen.insert(id.to_owned()), "{id} is there twice");
            if is_twin(id[3..].parse().unwrap()) {
                alike.insert(value["response"]["body"]["answer"].to_string());
            }
        }
    }
    assert_eq!(seen.len(), LINES);
    alike.len()
}

#[tokio::test(start_paused = true)]
async fn runs_that_crash_again_and_again_end_with_one_record_for_each_line() {
    let seeds = 150;
    let mut crashes = 0;
    for seed in 0..seeds {
        let disk = FaultyDisk::default();
        let mut dice = Dice(seed);
        let identical = [Identical::Each, Identical::Once][seed as usize % 2];
        let mut lives = 0;
        loop {
            lives += 1;
            assert!(lives < 100, "seed {seed} never ends");
            if dice.below(3) > 0 && lives < 20 {
                disk.crash_at(
                    1 + dice.below(40),
                    [Cut::Before, Cut::Torn, Cut::After][dice.below(3)],
                );
            }
            // A crashed disk looks like a passing failure, which the writer would retry for ever.
            let crash = async {
                while !disk.is_dead() {
                    sleep(Duration::from_millis(20)).await;
                }
                sleep(Duration::from_secs(1)).await;
            };
            let is_done = tokio::select! {
                ended = run_until_done(&disk, identical, &mut dice) => ended.is_ok_and(|is_done| is_done),
                () = crash => false,
            };
            if is_done && !disk.is_dead() {
                break;
            }
            disk.reboot([Crash::Process, Crash::Machine][dice.below(2)], &mut dice);
        }
        let answers = check(&disk);
        match identical {
            Identical::Each => {
                assert_eq!(answers, (0..LINES).filter(|line| is_twin(*line)).count());
            }
            // Computed once, and once more by a process that found some of them without a record.
            Identical::Once => assert!(answers <= lives, "seed {seed}: {answers} in {lives} lives"),
        }
        crashes += lives - 1;
    }
    println!(
        "crash: {seeds} whole runs with {crashes} crashes, half of them with equal lines computed once"
    );
    assert!(crashes >= 200, "only {crashes} crashes");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_pauses_the_run_until_there_is_space() {
    let disk = FaultyDisk::default();
    let mut dice = Dice(4);
    disk.set_room(Some(700));
    let making_room = async {
        while disk.used() < 400 {
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_secs(60)).await;
        let stuck = disk.used();
        sleep(Duration::from_secs(60)).await;
        assert!(disk.used() <= 700 && stuck <= 700);
        disk.set_room(None);
    };
    // With this seed the process is not stopped.
    let (ended, ()) = tokio::join!(run_until_done(&disk, Identical::Each, &mut dice), making_room);
    assert!(ended.unwrap());
    check(&disk);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_while_the_disk_is_full_keeps_its_published_records() {
    let mut stopped = 0;
    for seed in 0..60 {
        let disk = FaultyDisk::default();
        let mut dice = Dice(seed);
        disk.set_room(Some(700));
        let process = run_until_done(&disk, Identical::Each, &mut dice);
        // A process that is not stopped waits for space.
        if let Ok(ended) = tokio::time::timeout(Duration::from_secs(60), process).await {
            assert!(!ended.unwrap(), "seed {seed}: there is no room for all");
            stopped += usize::from(disk.used() > 400);
        }
    }
    assert!(stopped > 0, "none was stopped while the disk was full");
}

#[tokio::test(start_paused = true)]
async fn lines_of_an_unreachable_store_wait_and_none_fails() {
    for identical in [Identical::Each, Identical::Once] {
        let disk = FaultyDisk::default();
        let source = Lines { away: Some(1_500), ..Lines::default() };
        // With this seed the process is not stopped.
        assert!(live_from(source, &disk, identical, &mut Dice(4)).await.unwrap());
        check(&disk);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_line_fails_alone_and_at_once() {
    let disk = FaultyDisk::default();
    let source = Lines { lost: Some(1), ..Lines::default() };
    assert!(live_from(source, &disk, Identical::Each, &mut Dice(4)).await.unwrap());
    let content = String::from_utf8(disk.content(&paths().errors).unwrap()).unwrap();
    let nameless: Vec<_> = content.lines().filter(|line| line.contains("_id\":null,")).collect();
    assert_eq!(nameless.len(), 1, "{content}");
    assert!(nameless[0].contains(r#""code":"unreadable","message":"there is no line 1""#));
}

/// Engines that take a minute for every response, without streaming.
struct Slow {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl LineDispatch for Slow {
    async fn send(
        &self,
        _: usize,
        _: Outgoing,
        prefilled: Prefilled,
    ) -> Result<LineReply, ReplyError> {
        self.most.fetch_max(1 + self.now.fetch_add(1, Relaxed), Relaxed);
        sleep(Duration::from_secs(60)).await;
        self.now.fetch_sub(1, Relaxed);
        prefilled();
        let body = Bytes::from_static(b"{}");
        let held = AnswerHold::default();
        Ok(LineReply { status: 200, request_id: None, body, retry_after: None, held })
    }

    async fn health(&self, _: usize) -> Option<EngineHealth> {
        Some(EngineHealth { pod_state: None, ceiling: usize::MAX })
    }
}

#[tokio::test(start_paused = true)]
async fn decoding_requests_do_not_count_against_the_prefill_window() {
    let line = |number: usize| {
        let prompt = format!("{number} ").repeat(1_000);
        format!(
            "{{\"custom_id\":\"{number}\",\"url\":\"/v1/completions\",\"body\":{{\"prompt\":\"{prompt}\"}}}}"
        )
    };
    let lines: Vec<_> = (100..150).map(|number| Bytes::from(line(number))).collect();
    let rules = InputRules {
        form: LineForm::Free,
        most_lines: 1_000,
        output_tokens: 8,
        most_problems: 1,
        identical: Identical::Each,
        due: DueTime::OPEN,
    };
    let hasher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(16).unwrap(), None);
    let input = Input::read(&lines.join(&b'\n')[..], &rules, &hasher).unwrap();
    let results = Results::open(&FaultyDisk::default(), &paths(), input.mark).unwrap();
    let plan = Plan::new(&input.queue, &Speeds::equal(1).unwrap(), &PlannerRates::flat(1.0, 1.0));
    // Four prompts exceed the prefill window.
    let scheduler = Scheduler::new(plan, vec![Window::new(128, 2_000)], RetryPolicy::default());
    let work = RunWork {
        source: Arc::new(Lines { lines, ..Lines::default() }),
        name: "test".into(),
        numbers: Arc::new(|line| line + 1),
        copies: DedupGroups::default(),
    };
    let engines = Arc::new(Slow { now: AtomicUsize::new(0), most: AtomicUsize::new(0) });
    let (_stop, control) = watch::channel(RunControl::GoOn);
    let progress = watch::Sender::new(RunProgress::default());
    let channels = RunChannels { control, progress };
    let finished = run(scheduler, work, Arc::clone(&engines), results, channels).await.unwrap();
    assert_eq!(finished.publisher.counts().completed, 50);
    assert_eq!(engines.most.load(Relaxed), 50);
}
