//! `wornpath demo`: a fleet of simulated engines behind the gateway, in one process.
//!
//! The same traffic goes first by `round-robin`, then by `cache-aware` with caches emptied before. All of it is
//! real but the engines: sockets, cache events over ZeroMQ, the gateway and its decisions, its dashboard and batches.

mod batch;
mod client;
mod decision;
mod fleet;
mod folder;
mod gateway;
mod load;
mod table;
mod workload;

use anyhow::{Context, bail, ensure};
use clap::Args;
use client::{DemoDelivery, chat, chat_body};
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

use crate::serve::logging::LogLevel;

const POLICIES: [&str; 2] = ["round-robin", "cache-aware"];
const SEED: u64 = 1;
/// A pod is killed in the middle of so many requests.
const REQUESTS_AROUND_A_CRASH: usize = 60;
/// How often it is looked for ctrl-C while nothing else happens.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Long enough to be worth two pods.
const COLD_LETTERS: usize = 6_000;

/// Compare round-robin and cache-aware routing on simulated engines, then keep serving
///
/// Starts engines and the gateway on free ports of this machine, sends them the same chats and questions about
/// documents under both policies, explains a decision, kills a pod, runs a batch, and then serves some requests a
/// second until ctrl-C. The dashboard is open from the first moment.
#[derive(Args)]
pub(crate) struct DemoArguments {
    /// Number of simulated engines
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=32))]
    engines: u8,
    /// Requests sent under each policy
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// End after the show; the status is not 0 if a request failed or cache-aware was no better
    #[arg(long)]
    once: bool,
}

/// Plays the demo to `out`.
pub(crate) fn run(arguments: &DemoArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    // Failures are part of the show, and told by it.
    let logging = Box::new(LogLevel::start(tracing::Level::ERROR));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fleet = runtime.block_on(DemoFleet::start(arguments.engines.into()))?;
    std::thread::scope(|scope| {
        let served = DemoGateway::start(scope, fleet.settings(POLICIES[0])?, logging)?;
        let stage = DemoStage { runtime: &runtime, fleet: &fleet, served: &served };
        let played = stage.play(arguments, out);
        if served.is_told_to_end() {
            served.wait()?;
            writeln!(out, "\nEnded early.")?;
            return Ok(ExitCode::FAILURE);
        }
        if let (Err(_), _) | (Ok(()), true) = (&played, arguments.once) {
            served.end()?;
            return played.map(|()| ExitCode::SUCCESS);
        }
        invite(&served, out)?;
        stage.go_on();
        served.wait()?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Where the demo is played.
struct DemoStage<'a> {
    runtime: &'a Runtime,
    fleet: &'a DemoFleet,
    served: &'a DemoGateway<'a>,
}

impl DemoStage<'_> {
    fn play(&self, arguments: &DemoArguments, out: &mut dyn Write) -> anyhow::Result<()> {
        let requests = arguments.requests as usize;
        let admin = self.served.admin;
        writeln!(
            out,
            "The dashboard is at http://{admin}/ and shows all that follows while it happens.\n\n\
             {} simulated engines ({ENGINE}, {KV_TOKENS} tokens of KV cache each), {SPEED} times faster than real ones.\n\
             Times below are the engines': what was measured times {SPEED}, the gateway's own time included.\n\n\
             {requests} requests, chats and questions about documents, under each policy:",
            arguments.engines
        )?;
        out.flush()?;
        self.runtime.block_on(self.served.all_up())?;
        let mut tallies = Vec::new();
        for policy in POLICIES {
            tallies.push(self.compare(policy, requests, out)?);
        }
        let [before, after] = &tallies[..] else { unreachable!("there are two policies") };
        table::write([(POLICIES[0], before), (POLICIES[1], after)], out)?;
        writeln!(out, "  Saved: against computing every prompt token, by the engine's profile.")?;
        self.explain(requests, out)?;
        self.split(out)?;
        let crashed = self.crash(out)?;
        writeln!(out, "\nA batch, planned as a whole before its first request is sent:")?;
        let folder = self.fleet.folder.path();
        self.runtime.block_on(batch::play(self.served, folder, SEED + 2, out))?;
        for tally in [before, after, &crashed] {
            if let Some(failure) = tally.failures.first() {
                bail!("{} requests failed, the first by: {failure}", tally.failures.len());
            }
        }
        if let Some(reason) = table::not_better(before, after) {
            bail!("{} was no better than {}: {reason}", POLICIES[1], POLICIES[0]);
        }
        Ok(())
    }

    /// The whole workload under one policy, from empty caches.
    fn compare(
        &self,
        policy: &str,
        requests: usize,
        out: &mut dyn Write,
    ) -> anyhow::Result<DemoTally> {
        self.served.apply(self.fleet.settings(policy)?)?;
        self.runtime.block_on(async {
            self.fleet.forget().await?;
            self.served.all_forgotten().await?;
            let load = DemoLoad::start(
                self.served.client,
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
        while let Some(told) = load.next().await {
            ensure!(!self.served.is_told_to_end(), "told to end");
            tally.add(told, self.fleet.profile.step_cost());
            progress.show(&tally, out)?;
        }
        Ok(tally)
    }

    /// Why a new question about a document goes where it goes.
    fn explain(&self, requests: usize, out: &mut dyn Write) -> anyhow::Result<()> {
        let sessions = sessions(requests, SEED);
        let longest = |session: &&DemoSession| session.opening[0].to_string().len();
        let session = sessions.iter().max_by_key(longest).context("there is a session")?;
        let mut messages = session.opening.clone();
        messages.push(json!({"role": "user", "content": "Which price is named first?"}));
        let (record, told) = self.ask(POLICIES[1], &messages)?;
        writeln!(out, "\nA new question about a document, decided by {}:", POLICIES[1])?;
        decision::show_scores(&record, out)?;
        Ok(writeln!(out, "  {told}")?)
    }

    /// Sends a request by a policy; how it was decided, and what came of it.
    fn ask(
        &self,
        policy: &str,
        messages: &[Value],
    ) -> anyhow::Result<(Arc<RequestSummary>, String)> {
        // The first decision under settings that take over is taken down.
        self.served.apply(self.fleet.settings(policy)?)?;
        let body = chat_body(ENGINE, messages);
        self.runtime.block_on(async {
            let answered = chat(self.served.client, body, DemoDelivery::Stream).await;
            let answer = answered.with_context(|| format!("a request by {policy}"))?;
            let computed = answer.prompt_tokens - answer.cached_tokens;
            let told = format!(
                "carried out: {} answered; of {} prompt tokens it computed {computed}",
                answer.pod, answer.prompt_tokens
            );
            Ok((self.served.record(&answer.id).await?, told))
        })
    }

    /// A prompt computed by one pod and answered by another.
    fn split(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let (record, told) = self.ask("prefill-decode", &cold_prompt(COLD_LETTERS, SEED))?;
        writeln!(out, "\nA long prompt that nobody has cached, decided by prefill-decode:")?;
        decision::show_plan(&record, out)?;
        Ok(writeln!(out, "  {told}")?)
    }

    /// A pod goes without a word while it has work, and comes back empty.
    fn crash(&self, out: &mut dyn Write) -> anyhow::Result<DemoTally> {
        self.served.apply(self.fleet.settings(POLICIES[1])?)?;
        writeln!(
            out,
            "\nA pod is killed while it has work (answers are not streamed, so they can be asked for again):"
        )?;
        let retries_before = self.served.gateway.retries().0;
        let tally = self.runtime.block_on(async {
            let all = REQUESTS_AROUND_A_CRASH;
            let users = Users::many(DemoDelivery::Whole);
            let mut load = DemoLoad::start(self.served.client, sessions(all, SEED + 1), users);
            let mut before = DemoTally::default();
            while before.count() < all / 3 {
                let told = load.next().await.context("there are more requests")?;
                before.add(told, self.fleet.profile.step_cost());
            }
            let busiest = before.pods.iter().max_by_key(|(_, count)| *count);
            let (pod, _) = busiest.context("every request failed")?;
            let engine = self.fleet.named(pod).with_context(|| format!("no engine `{pod}`"))?;
            engine.crash().await;
            writeln!(out, "  {pod} is gone after {} of {all} requests", before.count())?;
            let mut tally = self.watch(load, DemoProgress::new("the rest", all - before.count()), out).await?;
            engine.restart().await?;
            self.served.all_up().await?;
            let retries = self.served.gateway.retries().0 - retries_before;
            writeln!(
                out,
                "  {} failed requests; {retries} calls made again on other pods; {pod} is back, with an empty cache",
                before.failures.len() + tally.failures.len()
            )?;
            tally.failures.append(&mut before.failures);
            anyhow::Ok(tally)
        })?;
        Ok(tally)
    }

    /// Some requests a second until ctrl-C. What becomes of them, the dashboard tells.
    fn go_on(&self) {
        self.runtime.block_on(async {
            let mut load = DemoLoad::start(self.served.client, endless(SEED + 3), Users::few());
            while !self.served.is_told_to_end() {
                // Whichever comes first; there is always a next request.
                let _ = tokio::time::timeout(LOOK_AGAIN, load.next()).await;
            }
        });
    }
}

fn invite(served: &DemoGateway<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let DemoGateway { client, admin, .. } = served;
    writeln!(
        out,
        "\nServing some requests a second until ctrl-C: see http://{admin}/ or `wornpath top --admin http://{admin}`. Try:\n  \
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
