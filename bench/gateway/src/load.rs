//! Clients that ask again as soon as they are answered, for a while, and what that cost the router.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::LocalSet;

use crate::contestant::Contestant;
use crate::exchange::Client;
use crate::prompts::Prompts;
use crate::stats::quantile;
use crate::tree;

/// How long a measurement takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) warm: Duration,
    pub(crate) measured: Duration,
}

/// What was measured. Times are in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) requests: usize,
    pub(crate) failures: usize,
    /// A failure, in words.
    pub(crate) failure: Option<String>,
    /// CPU of the router for each request.
    pub(crate) cpu: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Until the first byte of the body.
    pub(crate) first_p50: f64,
    pub(crate) first_p99: f64,
    pub(crate) per_second: f64,
    /// The share of the processors that others had meanwhile, if whoever measures looks for that.
    pub(crate) stolen: f64,
}

#[derive(Default)]
struct Counted {
    totals: Vec<f64>,
    firsts: Vec<f64>,
    failures: usize,
    failure: Option<String>,
}

struct Run {
    counted: RefCell<Counted>,
    is_measured: Cell<bool>,
    is_over: Cell<bool>,
    next: Cell<u64>,
}

/// Asks over so many connections. Numbers of requests begin at `first`, so that nobody asks twice.
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
        let (run, prompts) = (Rc::clone(&run), Rc::clone(prompts));
        local.spawn_local(async move {
            let mut request = Vec::new();
            while !run.is_over.get() {
                match Client::connect(address).await {
                    Ok(client) => ask(client, &run, &prompts, &mut request).await,
                    Err(error) => {
                        run.failed(&error);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        });
    }
    let used = || contestant.process.as_ref().map(|process| tree::used(process.id()));
    let cpu = local
        .run_until(async {
            tokio::time::sleep(window.warm).await;
            let before = used();
            run.is_measured.set(true);
            tokio::time::sleep(window.measured).await;
            run.is_measured.set(false);
            let after = used();
            run.is_over.set(true);
            before
                .zip(after)
                .map_or(f64::NAN, |(before, after)| tree::between(&before, &after) as f64)
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

/// Asks until it is over or the connection breaks.
async fn ask(mut client: Client, run: &Run, prompts: &Prompts, request: &mut Vec<u8>) {
    while !run.is_over.get() {
        prompts.write(run.next.replace(run.next.get() + 1), request);
        match client.ask(request).await {
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
