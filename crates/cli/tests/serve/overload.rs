//! Clients that mean no good, or far too much: thousands that never finish, fifty that send a
//! hundred megabytes at once, requests for hours; and secrets that must not show anywhere.
//! `WORNPATH_SOAK_SECONDS=3600` soaks for an hour.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, command, folder};
use crate::support::recorder::Recorder;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Resident memory of a process, in MiB.
fn resident(gateway: &Gateway) -> f64 {
    gateway.memory("VmRSS")
}

fn short_answer() -> Value {
    json!({"prompt": "how are you", "max_tokens": 1})
}

#[test]
fn thousands_of_clients_with_unfinished_heads_block_no_client_and_time_out() {
    let limit = getrlimit(Resource::Nofile);
    // The gateway gives clients three eighths of the descriptors.
    let allowed = limit.maximum.map_or(usize::MAX, |files| files as usize / 8 * 3);
    let count = 10_000.min(allowed.saturating_sub(100));
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let engines = Engines::start(&[]);
    let text = format!(
        "limits: {{head_time: 8s}}\npods: [{{url: \"http://{}\"}}]\n",
        engines.engines[0].http
    );
    let gateway = Gateway::configured("loris", &text, 1);
    assert_eq!(gateway.post("/v1/completions", &short_answer()).status, 200);
    let before = resident(&gateway);
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let stream = TcpStream::connect(&gateway.address);
        let mut stream = stream.unwrap_or_else(|error| panic!("client {number}: {error}"));
        stream.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ").unwrap();
        clients.push(stream);
    }
    let started = Instant::now();
    assert_eq!(gateway.post("/v1/completions", &short_answer()).status, 200);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(2), "an honest client waited {took:?}");
    let grown = resident(&gateway) - before;
    assert!(grown < 400.0, "{grown} MiB for {count} clients that said nothing");
    // A letter now and then does not keep the door open.
    for stream in &mut clients {
        let _ = stream.write_all(b"a");
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut shown_out = 0;
    for stream in &mut clients {
        stream
            .set_read_timeout(Some(
                deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
            ))
            .unwrap();
        let mut answer = [0; 256];
        // Closed, or told why and closed.
        shown_out += usize::from(stream.read(&mut answer).is_ok());
    }
    assert_eq!(shown_out, count, "within thirty seconds of a limit of eight");
    assert_eq!(gateway.post("/v1/completions", &short_answer()).status, 200);
}

#[test]
fn few_file_descriptors_delay_clients_and_fail_none_of_them() {
    const CLIENTS: usize = 120;
    let engines = [Recorder::start(), Recorder::start(), Recorder::start()];
    let mut arguments = vec!["--policy".to_owned(), "round-robin".to_owned()];
    for engine in &engines {
        engine.answer_after(Duration::from_millis(30));
        arguments.extend(["--pod".to_owned(), format!("http://{}", engine.address)]);
    }
    arguments.extend(["--workers".to_owned(), "4".to_owned()]);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let plain = command(&arguments);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 128 && exec \"$@\"", "sh"]);
    limited.arg(plain.get_program()).args(plain.get_args());
    limited.stdout(Stdio::piped()).stderr(Stdio::piped());
    let gateway = Gateway::spawn(limited, &arguments, engines.len());
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let ask = || {
            let body = json!({"model": "m", "prompt": "how are you"});
            (0..3).map(|_| gateway.post("/v1/completions", &body).status).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let failed: Vec<_> = statuses.iter().filter(|status| **status != 200).collect();
    assert!(failed.is_empty(), "{failed:?}: {}", gateway.log());
    assert!(gateway.log().contains("open-file limit allows fewer client connections"));
}

#[test]
fn fifty_bodies_of_a_hundred_megabytes_at_once_are_refused_and_never_in_memory() {
    const BODY: usize = 100 << 20;
    let engines = Engines::start(&[]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    assert_eq!(gateway.post("/v1/completions", &short_answer()).status, 200);
    let before = resident(&gateway);
    let refused = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0.0_f64;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(resident(&gateway));
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let clients: Vec<_> = (0..50)
            .map(|number| {
                let address = &gateway.address;
                let refused = &refused;
                scope.spawn(move || {
                    // Half of them do not say how much it will be.
                    let is_chunked = number % 2 == 0;
                    refused.fetch_add(
                        usize::from(is_refused(address, is_chunked, BODY)),
                        Ordering::Relaxed,
                    );
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert_eq!(gateway.post("/v1/completions", &short_answer()).status, 200);
        is_over.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert_eq!(refused.load(Ordering::Relaxed), 50, "each with 413, or with 503 for want of room");
    // Those who do not say how much it will be are read up to the limit of 16 MiB, as long as the
    // share of their address has room: 256 MiB, and as much again while buffers grow.
    let grown = most - before;
    assert!(grown < 256.0 * 2.0, "{grown} MiB");
}

/// Sends until it is refused; whether that was with the right status.
fn is_refused(address: &str, is_chunked: bool, body: usize) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = if is_chunked {
        "transfer-encoding: chunked".to_owned()
    } else {
        format!("content-length: {body}")
    };
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let piece = vec![b'a'; 64 << 10];
    for _ in 0..body / piece.len() {
        let sent = if is_chunked {
            let size = format!("{:x}\r\n", piece.len());
            stream
                .write_all(size.as_bytes())
                .and_then(|()| stream.write_all(&piece))
                .and_then(|()| stream.write_all(b"\r\n"))
        } else {
            stream.write_all(&piece)
        };
        if sent.is_err() {
            break;
        }
    }
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 64];
    // A connection that was reset may take its answer with it; that it was closed early is refusal
    // enough.
    match stream.read(&mut answer) {
        Ok(count) if count > 0 => {
            [b"HTTP/1.1 413", b"HTTP/1.1 503"].iter().any(|status| answer.starts_with(*status))
        }
        _ => true,
    }
}

#[test]
fn no_secret_shows_in_logs_metrics_errors_or_what_operators_see() {
    let secrets = [
        "canary-key-3141",
        "canary-prompt-5926",
        "canary-header-5358",
        "canary-field-9793",
        "canary-query-2384",
        "canary-pod-6264",
    ];
    let [key, prompt, header, field, query, pod_key] = secrets;
    let key_file = folder("siege_secrets").join("key");
    std::fs::write(&key_file, pod_key).unwrap();
    let engines = Engines::start(&["--engines", "2"]);
    let gateway = Gateway::in_front_of(
        &engines,
        &[
            "--log-level",
            "trace",
            "--admin",
            "127.0.0.1:0",
            "--api-key",
            &format!("alice={key}"),
            "--pod-key-file",
            key_file.to_str().unwrap(),
        ],
    );
    let body = |stream: bool| {
        json!({"prompt": prompt, "max_tokens": 2, "stream": stream, "user": field}).to_string()
    };
    let ask = |key: &str, path: &str, body: &str| {
        let head = format!(
            "POST {path}?{query}=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nx-secret: {header}\r\ncookie: session={header}\r\n"
        );
        Exchange::send(&gateway.address, &head, body)
            .finish()
            .map(|response| (response.status, response.text))
    };
    let mut told = String::new();
    assert_eq!(ask(key, "/v1/completions", &body(false)).unwrap().0, 200);
    assert_eq!(ask(key, "/v1/completions", &body(true)).unwrap().0, 200);
    let refusals = [
        (format!("{key}-wrong"), "/v1/completions", body(false), 401),
        (key.to_owned(), "/v1/completions", format!("{{\"prompt\": \"{prompt}\", {field}"), 400),
        (key.to_owned(), "/v1/chat/completions", format!("{{\"messages\": \"{prompt}\"}}"), 400),
    ];
    for (key, path, body, status) in refusals {
        let (found, text) = ask(&key, path, &body).unwrap();
        assert_eq!(found, status, "{text}");
        told.push_str(&text);
    }
    // Engines that fail.
    engines.set_faults(0, r#"{"refuse": 500}"#);
    engines.set_faults(1, r#"{"refuse": 503}"#);
    for _ in 0..3 {
        if let Ok((status, text)) = ask(key, "/v1/completions", &body(true)) {
            assert!(status >= 200);
            told.push_str(&text);
        }
    }
    for path in ["/decisions?last=100", "/pods", "/index", "/profiles", "/config", "/openapi.json"]
    {
        told.push_str(&gateway.ask("GET", path, "").text);
    }
    told.push_str(&gateway.get("/metrics").text);
    told.push_str(&gateway.log());
    assert!(told.contains("/decisions") && told.len() > 10_000, "there was little to look at");
    for secret in secrets {
        let shown = told.lines().find(|line| line.contains(secret));
        assert_eq!(shown, None, "{secret}");
    }
}

#[test]
fn memory_stays_flat_while_every_request_is_another_one() {
    let seconds = std::env::var("WORNPATH_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds: u64 = seconds.unwrap_or(20);
    let engines = Engines::start(&["--engines", "3", "--kv-tokens", "65536"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let asked = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let started = Instant::now();
    let total = Duration::from_secs(seconds);
    let samples = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while started.elapsed() < total {
                    let number = asked.fetch_add(1, Ordering::Relaxed);
                    let prompt = format!("{number} ").repeat(200);
                    let body =
                        json!({"prompt": prompt, "max_tokens": 1, "stream": number.is_multiple_of(2)});
                    let answer = gateway.open("/v1/completions", &body).finish();
                    let is_whole = answer.is_ok_and(|answer| answer.status == 200);
                    failed.fetch_add(usize::from(!is_whole), Ordering::Relaxed);
                }
            });
        }
        let mut samples = Vec::new();
        while started.elapsed() < total {
            std::thread::sleep(total / 40);
            samples.push(resident(&gateway));
        }
        samples
    });
    let median = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part[part.len() / 2]
    };
    // The caches of what was asked fill first.
    let middle = median(&samples[15..25]);
    let end = median(&samples[30..]);
    let asked = asked.into_inner();
    let failed = failed.into_inner();
    println!(
        "soak: {seconds} s, {asked} requests, {failed} failed, {middle:.1} MiB in the middle, {end:.1} MiB at the end"
    );
    assert_eq!(failed, 0, "of {asked}");
    assert!(end < middle * 1.15 + 16.0, "from {middle} to {end} MiB: {samples:?}");
}
