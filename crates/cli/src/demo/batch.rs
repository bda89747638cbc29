//! The batch of the demo, submitted through OpenAI's Files and Batches API.

use super::client::chat_body;
use super::fleet::ENGINE;
use super::gateway::DemoGateway;
use super::workload::sessions;
use crate::http::{Endpoint, HttpClient};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const LINES: usize = 240;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the batch, and prints its plan and its results.
pub(super) async fn run(
    gateway: &DemoGateway<'_>,
    folder: &Path,
    seed: u64,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let client = HttpClient::new(Endpoint::plain("the gateway", gateway.client), None)?;
    let input = folder.join("requests.jsonl");
    std::fs::write(&input, lines(seed))?;
    let file = client.upload(&input).await?;
    let new = json!({
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
    });
    let batch = client.post("/v1/batches", &new).await?;
    let path = format!("/v1/batches/{}", batch["id"].as_str().context("the batch has no id")?);
    let plan = client.get(&format!("{path}/plan")).await?;
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
        let batch = client.get(&path).await?;
        let status = batch["status"].as_str().unwrap_or_default();
        if ["completed", "failed", "expired", "cancelled"].contains(&status) {
            break batch;
        }
        ensure!(!gateway.is_stopping(), "interrupted");
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let counts = &ended["request_counts"];
    let usage = &ended["usage"];
    let cached = usage["input_tokens_details"]["cached_tokens"].as_f64().unwrap_or(0.0);
    let hits = cached / usage["input_tokens"].as_f64().unwrap_or(0.0).max(1.0);
    writeln!(
        out,
        "  result: {} of {} answered, {} failed, {:.0}% from caches",
        counts["completed"],
        counts["total"],
        counts["failed"],
        hits * 100.0,
    )?;
    ensure!(counts["completed"] == LINES, "lines of the batch are missing: {ended}");
    Ok(())
}

/// Questions about documents and to assistants, one a line.
fn lines(seed: u64) -> String {
    let sessions = sessions(LINES, seed);
    let questions = sessions.iter().flat_map(|session| {
        let body = |turn: &String| {
            let mut messages = session.opening.clone();
            messages.push(json!({"role": "user", "content": turn}));
            chat_body(ENGINE, &messages)
        };
        session.turns.iter().map(body)
    });
    let line = |(number, body)| {
        let id = format!("question-{number}");
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
            .to_string()
    };
    questions.enumerate().map(line).collect::<Vec<_>>().join("\n")
}
