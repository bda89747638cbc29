//! Whole runs, in virtual time: engines that fail in every way, and a process that dies in between.

use crate::disk::{Cut, Death, Dice, FaultyDisk};
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
    CapacitySource, DedupGroups, EngineHealth, ExternalSort, Identical, Input, InputRules,
    LineDispatch, LineForm, LineReply, Outgoing, Prefilled, PromptHasher, Publish, ReplyError,
    ResultPaths, Results, RetryDelay, RunControl, RunProgress, RunWork, Scheduler, SortScratch,
    StoreError, run,
};
use wornpath_planner::{Plan, PlannerRates, Speeds, Window};

const LINES: usize = 40;
const PODS: usize = 3;

/// Every third line, but for those that no engine answers, asks the same.
fn is_twin(number: usize) -> bool {
    number.is_multiple_of(3) && number % 10 != 9
}

/// Documents that take turns, lines that ask the same, and one line in ten that no engine will ever answer.
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
    /// So many calls are not answered, and from then on fifty of each hundred.
    away: Option<usize>,
    /// A line that is not there any more.
    lost: Option<u32>,
    calls: AtomicUsize,
}

impl CapacitySource for Lines {
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

/// Engines whose every answer is decided by dice, and tells which it is.
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
            Ok(LineReply { status, request_id: None, body, retry_after: None })
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
        (self.roll(3) > 0).then_some(EngineHealth { vitals: None, ceiling: 6 })
    }
}

fn paths() -> ResultPaths {
    let path = |name: &str| PathBuf::from("job").join(name);
    ResultPaths { output: path("out"), errors: path("errors"), log: path("log") }
}

/// One life of a run; true if it came to its end.
async fn live(
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
    };
    let sketcher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
    // Some lives plan from disk.
    let scratch = SortScratch {
        path: std::env::temp_dir().join(format!("wornpath-{}.spill", std::process::id())),
        cure: "",
        memory: [usize::MAX, 300][dice.below(2)],
    };
    let spill = ExternalSort::to(scratch);
    let intake = Input::read_long(text.as_bytes(), &rules, &sketcher, spill).unwrap();
    let results = Results::open(disk, &paths(), intake.mark)?;
    let forest = intake.forest(|line| !results.is_done(line)).unwrap();
    let (speeds, rates) = (Speeds::equal(PODS).unwrap(), PlannerRates::flat(1.0, 1.0));
    let plan = Plan::of_forest(&intake.queue, forest, &speeds, &rates);
    let copies = DedupGroups::of(&plan);
    let patience = RetryDelay { attempts: 30, ..RetryDelay::default() };
    let conductor = Scheduler::new(plan, vec![Window::new(8, 4_096); PODS], patience);
    source.lines = text.lines().map(|line| Bytes::from(line.to_owned())).collect();
    let work = RunWork {
        source: Arc::new(source),
        name: "test".into(),
        numbers: Arc::new(|line| line + 1),
        copies,
    };
    let (wish, wishes) = watch::channel(RunControl::GoOn);
    let engines = Arc::new(Fickle(Mutex::new(Dice(dice.below(1 << 30) as u64))));
    let progress = watch::Sender::new(RunProgress::default());
    // Some lives end by a wish.
    let (after, wanted) =
        (dice.below(2_000), [RunControl::Stop, RunControl::Finish][dice.below(2)]);
    let mut stopper = tokio::task::JoinSet::new();
    stopper.spawn(async move {
        sleep(Duration::from_millis(after as u64)).await;
        if after % 3 == 0 {
            wish.send_replace(wanted);
        }
        std::future::pending::<()>().await;
    });
    let finished = run(conductor, work, engines, results, (wishes, progress)).await;
    Ok(finished?.publisher.counts().pending() == 0)
}

/// All ids, each once, the unanswerable ones among the errors. Says how many answers there are to what some lines ask alike.
fn check(disk: &FaultyDisk) -> usize {
    let (mut seen, mut alike) = (BTreeSet::new(), BTreeSet::new());
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
async fn runs_that_die_again_and_again_end_with_one_record_for_each_line() {
    let (seeds, mut deaths) = (150, 0);
    for seed in 0..seeds {
        let (disk, mut dice) = (FaultyDisk::default(), Dice(seed));
        let identical = [Identical::Each, Identical::Once][seed as usize % 2];
        let mut lives = 0;
        loop {
            lives += 1;
            assert!(lives < 100, "seed {seed} never ends");
            if dice.below(3) > 0 && lives < 20 {
                disk.die_at(
                    1 + dice.below(40),
                    [Cut::Before, Cut::Torn, Cut::After][dice.below(3)],
                );
            }
            // A dead disk looks like one that fails for now, which the writer would try again for ever.
            let death = async {
                while !disk.is_dead() {
                    sleep(Duration::from_millis(20)).await;
                }
                sleep(Duration::from_secs(1)).await;
            };
            let is_done = tokio::select! {
                ended = live(&disk, identical, &mut dice) => ended.is_ok_and(|is_done| is_done),
                () = death => false,
            };
            if is_done && !disk.is_dead() {
                break;
            }
            disk.reboot([Death::Process, Death::Machine][dice.below(2)], &mut dice);
        }
        let answers = check(&disk);
        match identical {
            Identical::Each => {
                assert_eq!(answers, (0..LINES).filter(|line| is_twin(*line)).count());
            }
            // Computed once, and once more in a life that found some of them without an answer.
            Identical::Once => assert!(answers <= lives, "seed {seed}: {answers} in {lives} lives"),
        }
        deaths += lives - 1;
    }
    println!(
        "crash: {seeds} whole runs with {deaths} deaths, half of them with equal lines computed once"
    );
    assert!(deaths >= 200, "only {deaths} deaths");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_stops_the_run_until_there_is_room() {
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
    // The dice say that this life is not ended by a wish.
    let (ended, ()) = tokio::join!(live(&disk, Identical::Each, &mut dice), making_room);
    assert!(ended.unwrap());
    check(&disk);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_while_the_disk_is_full_ends_with_what_it_has() {
    let mut stopped = 0;
    for seed in 0..60 {
        let (disk, mut dice) = (FaultyDisk::default(), Dice(seed));
        disk.set_room(Some(700));
        let life = live(&disk, Identical::Each, &mut dice);
        // A life that nobody stops waits for room.
        if let Ok(ended) = tokio::time::timeout(Duration::from_secs(60), life).await {
            assert!(!ended.unwrap(), "seed {seed}: there is no room for all");
            stopped += usize::from(disk.used() > 400);
        }
    }
    assert!(stopped > 0, "none was stopped while the disk was full");
}

#[tokio::test(start_paused = true)]
async fn lines_that_cannot_be_read_for_a_while_wait_and_none_fails() {
    for identical in [Identical::Each, Identical::Once] {
        let (disk, source) =
            (FaultyDisk::default(), Lines { away: Some(1_500), ..Lines::default() });
        // The dice say that this life is not ended by a wish.
        assert!(live_from(source, &disk, identical, &mut Dice(4)).await.unwrap());
        check(&disk);
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_gone_for_good_fails_alone_and_at_once() {
    let (disk, source) = (FaultyDisk::default(), Lines { lost: Some(1), ..Lines::default() });
    assert!(live_from(source, &disk, Identical::Each, &mut Dice(4)).await.unwrap());
    let content = String::from_utf8(disk.content(&paths().errors).unwrap()).unwrap();
    let nameless: Vec<_> = content.lines().filter(|line| line.contains("_id\":null,")).collect();
    assert_eq!(nameless.len(), 1, "{content}");
    assert!(nameless[0].contains(r#""code":"unreadable","message":"there is no line 1""#));
}

/// Engines that take a minute for every answer, and say nothing before.
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
        Ok(LineReply { status: 200, request_id: None, body, retry_after: None })
    }

    async fn health(&self, _: usize) -> Option<EngineHealth> {
        Some(EngineHealth { vitals: None, ceiling: usize::MAX })
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_being_decoded_leave_room_for_the_prompts_of_others() {
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
    };
    let sketcher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(16).unwrap(), None);
    let intake = Input::read(&lines.join(&b'\n')[..], &rules, &sketcher).unwrap();
    let results = Results::open(&FaultyDisk::default(), &paths(), intake.mark).unwrap();
    let plan = Plan::new(&intake.queue, &Speeds::equal(1).unwrap(), &PlannerRates::flat(1.0, 1.0));
    // Four prompts are more than it computes at once.
    let conductor = Scheduler::new(plan, vec![Window::new(128, 2_000)], RetryDelay::default());
    let work = RunWork {
        source: Arc::new(Lines { lines, ..Lines::default() }),
        name: "test".into(),
        numbers: Arc::new(|line| line + 1),
        copies: DedupGroups::default(),
    };
    let engines = Arc::new(Slow { now: AtomicUsize::new(0), most: AtomicUsize::new(0) });
    let (_wish, wishes) = watch::channel(RunControl::GoOn);
    let telling = (wishes, watch::Sender::new(RunProgress::default()));
    let finished = run(conductor, work, Arc::clone(&engines), results, telling).await.unwrap();
    assert_eq!(finished.publisher.counts().completed, 50);
    assert_eq!(engines.most.load(Relaxed), 50);
}
