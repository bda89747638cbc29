//! A batch, as a client of OpenAI's interface hands it over.

use super::client::chat_body;
use super::fleet::ENGINE;
use super::gateway::DemoGateway;
use super::workload::sessions;
use crate::batch::Service;
use crate::server::{CertificateArguments, Server};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const LINES: usize = 240;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Has it computed, and shows what was planned and what came of it.
pub(super) async fn play(
    served: &DemoGateway<'_>,
    folder: &Path,
    seed: u64,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let named = ("the demo", &*format!("http://{}", served.client));
    let server = Server::at("the gateway", named, &CertificateArguments::default())?;
    let service = Service::of(server, None);
    let input = folder.join("requests.jsonl");
    std::fs::write(&input, lines(seed))?;
    let file = service.upload(&input).await?;
    let wanted = json!({
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
    });
    let batch = service.post("/v1/batches", &wanted).await?;
    let at = format!("/v1/batches/{}", batch["id"].as_str().context("the batch has no id")?);
    let plan = service.get(&format!("{at}/plan")).await?;
    let share = |share: &Value| share.as_f64().unwrap_or(0.0) * 100.0;
    writeln!(
        out,
        "  plan: {} pods, {:.0}% of {} prompt tokens from caches",
        plan["segments"].as_array().map_or(0, Vec::len),
        share(&plan["expected_hit_rate"]),
        plan["prompt_tokens"],
    )?;
    out.flush()?;
    let ended = loop {
        let batch = service.get(&at).await?;
        let status = batch["status"].as_str().unwrap_or_default();
        if ["completed", "failed", "expired", "cancelled"].contains(&status) {
            break batch;
        }
        ensure!(!served.is_told_to_end(), "told to end");
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let (counts, usage) = (&ended["request_counts"], &ended["usage"]);
    let cached = usage["input_tokens_details"]["cached_tokens"].as_f64().unwrap_or(0.0);
    let hits = cached / usage["input_tokens"].as_f64().unwrap_or(0.0).max(1.0);
    writeln!(
        out,
        "  carried out: {} of {} answered, {} failed, {:.0}% from caches",
        counts["completed"],
        counts["total"],
        counts["failed"],
        hits * 100.0,
    )?;
    ensure!(counts["completed"] == LINES, "the batch ended so: {ended}");
    Ok(())
}

/// Questions about documents and to assistants, each a line of its own, as if they had come over a day.
fn lines(seed: u64) -> String {
    let sessions = sessions(LINES, seed);
    let questions = sessions.iter().flat_map(|session| {
        let asked = |turn: &String| {
            let mut messages = session.opening.clone();
            messages.push(json!({"role": "user", "content": turn}));
            chat_body(ENGINE, &messages)
        };
        session.turns.iter().map(asked)
    });
    let line = |(number, body)| {
        let id = format!("question-{number}");
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
            .to_string()
    };
    questions.enumerate().map(line).collect::<Vec<_>>().join("\n")
}
