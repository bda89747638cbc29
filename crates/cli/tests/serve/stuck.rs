//! A stuck thread: `/health` fails and names it, so does the log, and SIGTERM still
//! ends the router.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, command, eventually};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

/// Until a stuck thread is noticed, and until that is seen from outside on a busy machine.
const NOTICED: Duration = Duration::from_secs(5);
const SEEN: Duration = Duration::from_secs(9);
/// `--lame-duck` and `--grace` below, what comes on top of them, and what ending a process takes on
/// a busy machine.
const ENDED: Duration = Duration::from_millis(200 + 1000 + 2000 + 2000);
/// As the documentation says.
const STUCK: i32 = 70;

const ARGUMENTS: [&str; 6] = ["--workers", "2", "--lame-duck", "0.2", "--grace", "1"];

/// A gateway that takes faults, in front of one engine.
fn start(engines: &Engines, change: impl FnOnce(&mut Command)) -> Gateway {
    let url = format!("http://{}", engines.engines[0].http);
    let arguments = [&ARGUMENTS[..], &["--pod", &url]].concat();
    let mut command = command(&arguments);
    command.env("WORNPATH_TEST_FAULTS", "1");
    change(&mut command);
    Gateway::spawn(command, &arguments, 1)
}

/// What a supervisor sees: status and text, or nothing within a second.
fn probe(address: &str, path: &str, more: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n{more}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, text) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().unwrap(), text.to_owned()))
}

fn inject(gateway: &Gateway, fault: &str) {
    let (health, _) = probe(&gateway.address, "/health", "").expect("it answers");
    assert_eq!(health, 200, "nothing is stuck yet");
    probe(&gateway.address, "/v1/models", &format!("x-wornpath-test-fault: {fault}\r\n"));
}

/// Waits until `/health` fails, and returns why.
fn until_unhealthy(gateway: &Gateway) -> String {
    let began = Instant::now();
    loop {
        if let Some((503, text)) = probe(&gateway.address, "/health", "") {
            return text;
        }
        assert!(began.elapsed() < SEEN, "/health does not fail: {}", gateway.log());
    }
}

fn logged(gateway: &Gateway, words: &[&str]) -> bool {
    gateway.log().lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Tells it to end, and sees that it does, and says why it had to.
fn ends_in_time(gateway: &mut Gateway, thread: &str) {
    let told = Instant::now();
    gateway.signal("-TERM");
    eventually("it ended", || gateway.child.try_wait().unwrap().is_some());
    assert!(told.elapsed() < ENDED, "it took {:?}", told.elapsed());
    assert_eq!(gateway.child.wait().unwrap().code(), Some(STUCK), "{}", gateway.log());
    let why = ["shutdown deadline passed", &format!("thread={thread} task=")];
    eventually("it said why", || logged(gateway, &why));
}

#[test]
fn a_stuck_event_thread_fails_health_and_is_named_and_sigterm_ends_the_router() {
    let engines = Engines::start(&["--model", "m"]);
    let mut gateway = start(&engines, |_| ());
    let began = Instant::now();
    inject(&gateway, "stick-events");
    let why = until_unhealthy(&gateway);
    // The last heartbeat lies up to half a second before the fault.
    let least = NOTICED - Duration::from_millis(500);
    assert!(began.elapsed() >= least, "after {:?}", began.elapsed());
    assert!(why.contains("background") && why.contains("cache events"), "{why}");
    let (ready, why) = probe(&gateway.address, "/ready", "").expect("it answers");
    assert!(ready == 503 && why.contains("background"), "{ready}: {why}");
    eventually("the log names it", || {
        logged(
            &gateway,
            &["ERROR", "thread stuck thread=background task=\"cache events", "stuck_for="],
        )
    });
    // Although the ledger that the thread has locked is what most of the page would wait for.
    assert!(gateway.metric("wornpath_threads_stuck ") >= 1.0);
    ends_in_time(&mut gateway, "background");
}

#[test]
fn a_stuck_worker_fails_health_and_is_named_and_sigterm_ends_the_router() {
    let engines = Engines::start(&["--model", "m"]);
    let mut gateway = start(&engines, |_| ());
    inject(&gateway, "stick-worker");
    let why = until_unhealthy(&gateway);
    assert!(why.contains("worker-") && why.contains("client connection"), "{why}");
    eventually("the log names it", || {
        logged(
            &gateway,
            &["ERROR", "thread stuck thread=worker-", "task=\"client connection", "stuck_for="],
        )
    });
    // Connections are dealt out in turn, but no longer to the worker that would not answer them.
    for _ in 0..4 {
        assert_eq!(probe(&gateway.address, "/v1/models", "").map(|(status, _)| status), Some(200));
    }
    let worker = if why.contains("worker-0") { "worker-0" } else { "worker-1" };
    ends_in_time(&mut gateway, worker);
}

#[test]
fn sigterm_ends_a_router_whose_accepting_thread_is_stuck() {
    let engines = Engines::start(&["--model", "m"]);
    let mut gateway = start(&engines, |_| ());
    inject(&gateway, "stick-accept");
    assert_eq!(probe(&gateway.address, "/health", ""), None, "no thread accepts connections");
    let told = Instant::now();
    eventually("the log names it", || logged(&gateway, &["thread stuck thread=accept task="]));
    assert!(told.elapsed() < SEEN);
    assert_eq!(probe(&gateway.address, "/health", ""), None, "a timeout fails the probe too");
    ends_in_time(&mut gateway, "accept");
}

#[test]
fn the_systemd_watchdog_is_fed_until_a_thread_sticks() {
    let engines = Engines::start(&["--model", "m"]);
    let path = crate::support::gateway::folder("stuck_notify").join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let gateway = start(&engines, |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let heard = || {
        let mut message = [0; 64];
        let length = socket.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..length]).into_owned())
    };
    let mut told: Vec<_> = (0..8).filter_map(|_| heard()).collect();
    let ready = told.iter().position(|state| state == "READY=1").expect("it says that it listens");
    told.remove(ready);
    assert_eq!(told, ["WATCHDOG=1"; 7]);
    inject(&gateway, "stick-worker");
    until_unhealthy(&gateway);
    socket.set_nonblocking(true).unwrap();
    while heard().is_some() {}
    socket.set_nonblocking(false).unwrap();
    assert_eq!(heard(), None, "three seconds without");
}
