//! `wornpath demo`: a fleet of simulated engines behind the gateway, in one process.
//!
//! The same traffic is routed first by `round-robin` and then, after a reset of all caches, by
//! `cache-aware`. Only the engines are simulated: sockets, cache events over ZeroMQ, the gateway
//! with its decisions, dashboard and batches are real.

mod batch;
mod client;
mod fleet;
mod gateway;
mod load;
mod report;
mod temp_folder;
mod workload;

use anyhow::{Context, bail, ensure};
use clap::Args;
use client::{DemoDelivery, chat_body};
use fleet::{DemoFleet, ENGINE, KV_TOKENS, SPEED};
use gateway::DemoGateway;
use load::{DemoLoad, DemoProgress, DemoTally, Users};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use workload::{DemoSession, cold_prompt, endless, sessions};
use wornpath_gateway::RequestSummary;

use crate::run::INTERRUPTED;
use crate::serve::Log;

const POLICIES: [&str; 2] = ["round-robin", "cache-aware"];
const SEED: u64 = 1;
/// Requests of the part in which a pod is killed.
const REQUESTS_AROUND_A_CRASH: usize = 60;
/// How often the endless load checks whether the gateway is stopping.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// Long enough to be split between a prefill and a decode pod.
const COLD_LETTERS: usize = 6_000;

/// Compare round-robin and cache-aware routing on simulated engines, then keep serving
///
/// Starts engines and a gateway on free ports of this machine, sends the same chats and questions
/// about documents under both policies, explains a decision, kills a pod, runs a batch, and then
/// keeps serving about ten requests a second until ctrl-C. The dashboard is up from the start.
#[derive(Args)]
pub(crate) struct DemoArguments {
    /// Number of simulated engines
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=32))]
    engines: u8,
    /// Requests sent under each policy
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Exit after the comparison; the exit status is not 0 if a request failed or cache-aware was
    /// no better
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(arguments: &DemoArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    // Warnings about the killed pod are expected, and the demo reports them itself.
    let logging = Box::new(Log::start(tracing::Level::ERROR));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fleet = runtime.block_on(DemoFleet::start(arguments.engines.into()))?;
    std::thread::scope(|scope| {
        let gateway = DemoGateway::start(scope, fleet.settings(POLICIES[0])?, logging)?;
        let demo = Demo { runtime: &runtime, fleet: &fleet, gateway: &gateway };
        let compared = demo.run(arguments, out);
        if gateway.is_stopping() {
            gateway.wait()?;
            writeln!(out, "\nInterrupted.")?;
            return Ok(ExitCode::from(INTERRUPTED));
        }
        if compared.is_err() || arguments.once {
            gateway.stop()?;
            return compared.map(|()| ExitCode::SUCCESS);
        }
        write_invitation(&gateway, out)?;
        demo.keep_serving();
        gateway.wait()?;
        Ok(ExitCode::SUCCESS)
    })
}

struct Demo<'a> {
    runtime: &'a Runtime,
    fleet: &'a DemoFleet,
    gateway: &'a DemoGateway<'a>,
}

impl Demo<'_> {
    fn run(&self, arguments: &DemoArguments, out: &mut dyn Write) -> anyhow::Result<()> {
        let requests = arguments.requests as usize;
        let admin = self.gateway.admin;
        writeln!(
            out,
            "The dashboard is at http://{admin}/ and shows everything below live.\n\n\
             {} simulated engines ({ENGINE}, {KV_TOKENS} tokens of KV cache each), {SPEED} times faster than real ones.\n\
             Times below are measured times multiplied by {SPEED}; they include the time of the gateway.\n\n\
             {requests} requests, chats and questions about documents, under each policy:",
            arguments.engines
        )?;
        out.flush()?;
        self.runtime.block_on(self.gateway.all_up())?;
        let mut tallies = Vec::new();
        for policy in POLICIES {
            tallies.push(self.compare(policy, requests, out)?);
        }
        let [before, after] = &tallies[..] else { unreachable!("there are two policies") };
        report::write_table([(POLICIES[0], before), (POLICIES[1], after)], out)?;
        writeln!(
            out,
            "  Saved: compared with computing every prompt token, by the engine's profile."
        )?;
        self.explain(requests, out)?;
        self.split(out)?;
        let crashed = self.crash(out)?;
        writeln!(out, "\nA batch, planned as a whole before its first request is sent:")?;
        let folder = self.fleet.folder.path();
        self.runtime.block_on(batch::run(self.gateway, folder, SEED + 2, out))?;
        for tally in [before, after, &crashed] {
            if let Some(failure) = tally.failures.first() {
                bail!("{} requests failed; the first error: {failure}", tally.failures.len());
            }
        }
        if let Some(reason) = report::not_better(before, after) {
            bail!("{} was no better than {}: {reason}", POLICIES[1], POLICIES[0]);
        }
        Ok(())
    }

    /// Runs the workload under one policy, from empty caches.
    fn compare(
        &self,
        policy: &str,
        requests: usize,
        out: &mut dyn Write,
    ) -> anyhow::Result<DemoTally> {
        self.gateway.apply(self.fleet.settings(policy)?)?;
        self.runtime.block_on(async {
            self.fleet.reset_caches().await?;
            self.gateway.index_empty().await?;
            let load = DemoLoad::start(
                &self.gateway.chat,
                sessions(requests, SEED),
                Users::many(DemoDelivery::Stream),
            );
            self.watch(load, DemoProgress::new(policy, requests), out).await
        })
    }

    async fn watch(
        &self,
        mut load: DemoLoad,
        mut progress: DemoProgress,
        out: &mut dyn Write,
    ) -> anyhow::Result<DemoTally> {
        let mut tally = DemoTally::default();
        while let Some(outcome) = load.next().await {
            ensure!(!self.gateway.is_stopping(), "interrupted");
            tally.add(outcome, self.fleet.profile.step_cost());
            progress.show(&tally, out)?;
        }
        Ok(tally)
    }

    /// Explains the decision about a new question to a document.
    fn explain(&self, requests: usize, out: &mut dyn Write) -> anyhow::Result<()> {
        let sessions = sessions(requests, SEED);
        let longest = |session: &&DemoSession| session.opening[0].to_string().len();
        let session = sessions.iter().max_by_key(longest).context("there is a session")?;
        let mut messages = session.opening.clone();
        messages.push(json!({"role": "user", "content": "Which price is named first?"}));
        let sent = self.send(POLICIES[1], &messages)?;
        writeln!(out, "\nA new question about a document, decided by {}:", POLICIES[1])?;
        report::write_scores(&sent.summary, out)?;
        Ok(writeln!(out, "  {}", sent.result)?)
    }

    /// Sends a request under a policy.
    fn send(&self, policy: &str, messages: &[Value]) -> anyhow::Result<Sent> {
        // The first decision after a change of settings is always explained.
        self.gateway.apply(self.fleet.settings(policy)?)?;
        let body = chat_body(ENGINE, messages);
        self.runtime.block_on(async {
            let answer = self.gateway.chat.chat(body, DemoDelivery::Stream).await;
            let answer = answer.with_context(|| format!("a request under {policy}"))?;
            let computed = answer.prompt_tokens - answer.cached_tokens;
            let result = format!(
                "result: {} answered; of {} prompt tokens it computed {computed}",
                answer.pod, answer.prompt_tokens
            );
            Ok(Sent { summary: self.gateway.record(&answer.id).await?, result })
        })
    }

    /// Shows a prompt that one pod prefills and another decodes.
    fn split(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let sent = self.send("prefill-decode", &cold_prompt(COLD_LETTERS, SEED))?;
        writeln!(out, "\nA long prompt that is in no cache, decided by prefill-decode:")?;
        report::write_plan(&sent.summary, out)?;
        Ok(writeln!(out, "  {}", sent.result)?)
    }

    /// Kills a pod with requests in flight, and restarts it with an empty cache.
    fn crash(&self, out: &mut dyn Write) -> anyhow::Result<DemoTally> {
        self.gateway.apply(self.fleet.settings(POLICIES[1])?)?;
        writeln!(
            out,
            "\nA pod is killed with requests in flight (answers are not streamed, so they can be retried):"
        )?;
        let retries_before = self.gateway.gateway.retries().0;
        let tally = self.runtime.block_on(async {
            let all = REQUESTS_AROUND_A_CRASH;
            let users = Users::many(DemoDelivery::Whole);
            let mut load = DemoLoad::start(&self.gateway.chat, sessions(all, SEED + 1), users);
            let mut before = DemoTally::default();
            while before.count() < all / 3 {
                let outcome = load.next().await.context("there are more requests")?;
                before.add(outcome, self.fleet.profile.step_cost());
            }
            let busiest = before.pods.iter().max_by_key(|(_, count)| *count);
            let (pod, _) = busiest.context("every request failed")?;
            let engine = self.fleet.engine(pod).with_context(|| format!("no engine `{pod}`"))?;
            engine.crash().await;
            writeln!(out, "  {pod} is down after {} of {all} requests", before.count())?;
            let mut tally = self.watch(load, DemoProgress::new("the rest", all - before.count()), out).await?;
            engine.restart().await?;
            self.gateway.all_up().await?;
            let retries = self.gateway.gateway.retries().0 - retries_before;
            writeln!(
                out,
                "  {} failed requests; {retries} calls retried on other pods; {pod} is up again, with an empty cache",
                before.failures.len() + tally.failures.len()
            )?;
            tally.failures.append(&mut before.failures);
            anyhow::Ok(tally)
        })?;
        Ok(tally)
    }

    /// Keeps a light load on the gateway until ctrl-C.
    fn keep_serving(&self) {
        self.runtime.block_on(async {
            let mut load = DemoLoad::start(&self.gateway.chat, endless(SEED + 3), Users::few());
            while !self.gateway.is_stopping() {
                // The dashboard shows the outcomes.
                let _ = tokio::time::timeout(STOP_CHECK, load.next()).await;
            }
        });
    }
}

/// A request that was sent, for which a report is written.
struct Sent {
    summary: Arc<RequestSummary>,
    /// Which pod answered and how much it computed, in a sentence.
    result: String,
}

fn write_invitation(gateway: &DemoGateway<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let DemoGateway { client, admin, .. } = gateway;
    writeln!(
        out,
        "\nServing about ten requests a second until ctrl-C: see http://{admin}/ or `wornpath top --admin http://{admin}`. Try:\n  \
         curl -i http://{client}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\": \"{ENGINE}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Once upon a time\"}}], \"max_tokens\": 40}}'\n  \
         curl http://{client}/metrics\n  \
         curl http://{client}/v1/batches\n  \
         curl http://{admin}/pods\n  \
         curl 'http://{admin}/decisions?last=5'\n  \
         curl http://{admin}/openapi.json"
    )?;
    out.flush()?;
    Ok(())
}
