//! What watching costs requests: measured in turns, with and without viewers, in one run.

use crate::{configured, engines_at};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TURNS: usize = 24;
const TURN: Duration = Duration::from_secs(3);
const VIEWERS: usize = 8;

/// An open dashboard: reads the stream until dropped.
fn viewer(admin: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET /live HTTP/1.1\r\nhost: {admin}\r\n\r\n").unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    // Ends when the connection does.
    let read = move || reader.lines().take_while(Result::is_ok).for_each(drop);
    let _reader = std::thread::Builder::new().spawn(read).unwrap();
    stream
}

/// The share of `times` that lies at `share` of the way.
fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * share) as usize]
}

/// Engines that answer at once, so that what is left is the router's own time.
#[test]
#[ignore = "takes over a minute and wants a quiet machine; `./test long` runs it"]
fn watching_costs_requests_nothing_that_can_be_measured() {
    let engines = engines_at("1000");
    let gateway = configured("dashboard_cost", &engines, "");
    let admin = gateway.admin.clone().unwrap();
    let body =
        json!({"model": "m", "max_tokens": 1, "prompt": "a prompt of some length ".repeat(40)});
    let ask = || {
        let began = Instant::now();
        assert_eq!(gateway.post("/v1/completions", &body).status, 200);
        began.elapsed().as_secs_f64() * 1e6
    };
    for _ in 0..200 {
        ask();
    }
    let mut times = [Vec::new(), Vec::new()];
    let mut ratios = Vec::new();
    for turn in 0..TURNS {
        let mut medians = [0.0; 2];
        // Alternates, so that the order gives no advantage.
        for watched in [turn % 2, 1 - turn % 2] {
            let viewers: Vec<_> = (0..watched * VIEWERS).map(|_| viewer(&admin)).collect();
            let began = Instant::now();
            let mut own = Vec::new();
            while began.elapsed() < TURN / 2 {
                own.push(ask());
            }
            for stream in viewers {
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            }
            medians[watched] = quantile(&mut own, 0.5);
            times[watched].append(&mut own);
        }
        ratios.push(medians[1] / medians[0]);
    }
    let [alone, watched] = &mut times;
    let median = quantile(&mut ratios, 0.5);
    let middle = (ratios[TURNS / 4], ratios[TURNS * 3 / 4]);
    println!(
        "dashboard: {TURNS} turns, {} requests alone and {} with {VIEWERS} viewers; ratio of medians {median:.3} (half of the turns within {:.3} and {:.3}), of p99 {:.3}; alone p50 {:.0} us, p99 {:.0} us",
        alone.len(),
        watched.len(),
        middle.0,
        middle.1,
        quantile(watched, 0.99) / quantile(alone, 0.99),
        quantile(alone, 0.5),
        quantile(alone, 0.99),
    );
    assert!(median < 1.05, "requests are slower while the dashboard is open");
}
