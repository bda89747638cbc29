//! Closed-loop load: clients that send the next request when they have an answer, and the CPU time
//! that this costs the router.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::LocalSet;

use crate::contestant::Contestant;
use crate::http_client::Client;
use crate::process_tree;
use crate::prompts::Prompts;
use crate::stats::quantile;

/// The times of a measurement: warm-up, then measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) warm: Duration,
    pub(crate) measured: Duration,
}

/// One measurement. Times are in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) requests: usize,
    pub(crate) failures: usize,
    /// The first failure.
    pub(crate) failure: Option<String>,
    /// CPU time of the router per request.
    pub(crate) cpu: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Until the first byte of the body.
    pub(crate) first_p50: f64,
    pub(crate) first_p99: f64,
    pub(crate) per_second: f64,
    /// The steal share during the measurement, if the caller measures it.
    pub(crate) stolen: f64,
}

#[derive(Default)]
struct Counts {
    totals: Vec<f64>,
    firsts: Vec<f64>,
    failures: usize,
    failure: Option<String>,
}

struct Run {
    counted: RefCell<Counts>,
    is_measured: Cell<bool>,
    is_over: Cell<bool>,
    next: Cell<u64>,
}

/// Sends requests over `connections` connections. Request numbers begin at `first`, so that no
/// prompt is sent twice. Returns the next unused number.
pub(crate) async fn measure(
    contestant: &Contestant,
    prompts: &Rc<Prompts>,
    connections: usize,
    window: Window,
    first: u64,
) -> anyhow::Result<(Sample, u64)> {
    let run = Rc::new(Run {
        counted: RefCell::default(),
        is_measured: Cell::new(false),
        is_over: Cell::new(false),
        next: Cell::new(first),
    });
    let local = LocalSet::new();
    for number in 0..connections {
        let address = contestant.addresses[number % contestant.addresses.len()];
        let run = Rc::clone(&run);
        let prompts = Rc::clone(prompts);
        local.spawn_local(async move {
            let mut request = Vec::new();
            while !run.is_over.get() {
                match Client::connect(address).await {
                    Ok(client) => send_until_over(client, &run, &prompts, &mut request).await,
                    Err(error) => {
                        run.failed(&error);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        });
    }
    let used = || contestant.process.as_ref().map(|process| process_tree::cpu_times(process.id()));
    let cpu = local
        .run_until(async {
            tokio::time::sleep(window.warm).await;
            let before = used();
            run.is_measured.set(true);
            tokio::time::sleep(window.measured).await;
            run.is_measured.set(false);
            let after = used();
            run.is_over.set(true);
            before.zip(after).map_or(f64::NAN, |(before, after)| {
                process_tree::cpu_between(&before, &after) as f64
            })
        })
        .await;
    local.await;
    let mut counted = run.counted.take();
    let requests = counted.totals.len();
    let sample = Sample {
        requests,
        failures: counted.failures,
        failure: counted.failure,
        cpu: cpu / 1e3 / requests as f64,
        p50: quantile(&mut counted.totals, 0.5),
        p99: quantile(&mut counted.totals, 0.99),
        first_p50: quantile(&mut counted.firsts, 0.5),
        first_p99: quantile(&mut counted.firsts, 0.99),
        per_second: requests as f64 / window.measured.as_secs_f64(),
        stolen: 0.0,
    };
    Ok((sample, run.next.get()))
}

/// Sends requests until the measurement is over or the connection breaks.
async fn send_until_over(mut client: Client, run: &Run, prompts: &Prompts, request: &mut Vec<u8>) {
    while !run.is_over.get() {
        prompts.write(run.next.replace(run.next.get() + 1), request);
        match client.request(request).await {
            Ok(times) if run.is_measured.get() => {
                let mut counted = run.counted.borrow_mut();
                counted.totals.push(times.total.as_secs_f64() * 1e6);
                counted.firsts.push(times.first.as_secs_f64() * 1e6);
            }
            Ok(_) => {}
            Err(error) => {
                run.failed(&error);
                return;
            }
        }
    }
}

impl Run {
    fn failed(&self, error: &anyhow::Error) {
        let mut counted = self.counted.borrow_mut();
        counted.failures += 1;
        counted.failure.get_or_insert_with(|| format!("{error:#}"));
    }
}
