//! `wornpath batch`: batches on a gateway, from the command line.

mod call;

use crate::broken_pipe::BrokenPipe;
use crate::server::{CertificateArguments, Server, is_distrust};
use anyhow::{Context, ensure};
pub(crate) use call::Service;
use call::ServiceRefused;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// How often a batch is looked at while it is watched.
const LOOK: Duration = Duration::from_millis(250);
/// A gateway on which a batch is watched may be away for so long.
const AWAY: Duration = Duration::from_secs(60);

/// Submit and follow batches on a gateway that serves them (`wornpath serve --batches`)
#[derive(Args)]
pub(crate) struct BatchArguments {
    #[command(subcommand)]
    command: BatchCommand,
    /// Address of the gateway
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    gateway: String,
    /// Key to show it
    #[arg(long, global = true, env = "WORNPATH_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    certificates: CertificateArguments,
}

#[derive(Subcommand)]
enum BatchCommand {
    /// Upload a file of batch lines and have it computed
    Submit {
        /// The lines
        file: PathBuf,
        /// What they are for
        #[arg(long, default_value = "/v1/chat/completions")]
        endpoint: String,
        /// How long it may take, like 24h, 30m or 7d
        #[arg(long, default_value = "24h")]
        window: String,
        /// Compute lines with equal bodies once, if they are deterministic: temperature 0, a seed, or embeddings
        #[arg(long)]
        identical_once: bool,
        /// Wait until it has ended; exits with 1 unless all lines were answered
        #[arg(long)]
        watch: bool,
    },
    /// List batches, newest first
    List,
    /// Wait until a batch has ended; exits with 1 unless all its lines were answered
    ///
    /// Lines that failed count, and batches that expired or were cancelled. While the gateway cannot be reached it is asked
    /// again, for a minute.
    Watch {
        /// Its id
        id: String,
    },
    /// Print what has been answered so far
    Results {
        /// Its id
        id: String,
    },
    /// Print the lines that failed, each with why, once the batch has ended
    Errors {
        /// Its id
        id: String,
    },
    /// Cancel a batch
    Cancel {
        /// Its id
        id: String,
    },
    /// Compute the failed lines of a batch again, as a new batch
    Retry {
        /// Its id
        id: String,
    },
}

/// Does what is asked.
pub(crate) fn run(arguments: &BatchArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let named = ("--gateway", arguments.gateway.as_str());
    let server = Server::at("the gateway", named, &arguments.certificates)?;
    let service = Service::of(server, arguments.api_key.as_deref());
    runtime.block_on(answer(&arguments.command, &service, out))
}

async fn answer(
    command: &BatchCommand,
    service: &Service,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    match command {
        BatchCommand::Submit { file, endpoint, window, identical_once, watch: is_watched } => {
            let out = &mut BrokenPipe(out);
            let uploaded = service.upload(file).await?;
            let mut new = json!({
                "input_file_id": uploaded["id"],
                "endpoint": endpoint,
                "completion_window": window,
            });
            if *identical_once {
                new["identical_once"] = true.into();
            }
            let batch = match service.post("/v1/batches", &new).await {
                Ok(batch) => batch,
                Err(error) => {
                    if is_final(&error) {
                        take_back(service, &uploaded).await;
                    }
                    return Err(error);
                }
            };
            summary(&batch, out)?;
            if *is_watched {
                let id = batch["id"].as_str().unwrap_or_default();
                return watch(service, id, out).await;
            }
        }
        BatchCommand::List => {
            let mut after = String::new();
            loop {
                let page = service.get(&format!("/v1/batches?limit=100{after}")).await?;
                for batch in page["data"].as_array().into_iter().flatten() {
                    summary(batch, out)?;
                }
                let Some(last) = page["last_id"].as_str().filter(|_| page["has_more"] == true)
                else {
                    break;
                };
                after = format!("&after={last}");
            }
        }
        BatchCommand::Watch { id } => return watch(service, named(id)?, out).await,
        BatchCommand::Results { id } => {
            let id = named(id)?;
            service.copy(&format!("/v1/batches/{id}/results"), out).await?;
        }
        BatchCommand::Errors { id } => {
            let batch = service.get(&format!("/v1/batches/{}", named(id)?)).await?;
            if let Some(file) = batch["error_file_id"].as_str() {
                service.copy(&format!("/v1/files/{file}/content"), out).await?;
            } else {
                // Standard output is for the lines.
                let told = &mut std::io::stderr();
                let _ = summary(&batch, told).and_then(|()| problems(&batch, told));
                ensure!(is_ended(&batch), "it has not ended; what failed is told then");
            }
        }
        BatchCommand::Cancel { id } => {
            let id = named(id)?;
            summary(&service.post(&format!("/v1/batches/{id}/cancel"), &Value::Null).await?, out)?;
        }
        BatchCommand::Retry { id } => {
            let id = named(id)?;
            summary(&service.post(&format!("/v1/batches/{id}/retry"), &Value::Null).await?, out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A batch by a name that can be one.
fn named(id: &str) -> anyhow::Result<&str> {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_".contains(&letter);
    ensure!(
        !id.is_empty() && id.bytes().all(is_plain),
        "`{id}` is no batch; `wornpath batch list` names them"
    );
    Ok(id)
}

fn is_final(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(ServiceRefused::is_final) || is_distrust(error)
}

/// Deletes a file that no batch has come of.
async fn take_back(service: &Service, uploaded: &Value) {
    let id = uploaded["id"].as_str().unwrap_or_default();
    if let Err(error) = service.delete(&format!("/v1/files/{id}")).await {
        // Why there is no batch matters more, and is told after this.
        let _ = writeln!(std::io::stderr(), "the uploaded file {id} stays there: {error}");
    }
}

fn is_ended(batch: &Value) -> bool {
    let status = batch["status"].as_str().unwrap_or_default();
    ["completed", "failed", "expired", "cancelled"].contains(&status)
}

/// Asks how a batch is. The gateway may be away for a while, as when it is started anew.
async fn look(service: &Service, id: &str) -> anyhow::Result<Value> {
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        match service.get(&format!("/v1/batches/{id}")).await {
            Ok(batch) => return Ok(batch),
            Err(error) if is_final(&error) || began.elapsed() > AWAY => return Err(error),
            Err(error) => {
                if !is_told {
                    let _ = writeln!(std::io::stderr(), "{error:#}; it is tried for a minute");
                }
                is_told = true;
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Follows a batch to its end.
async fn watch(service: &Service, id: &str, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let out = &mut BrokenPipe(out);
    loop {
        let batch = look(service, id).await?;
        let status = batch["status"].as_str().context("the gateway tells no status")?;
        if is_ended(&batch) {
            summary(&batch, out)?;
            problems(&batch, out)?;
            ensure!(status != "failed", "nothing was computed");
            let is_answered = status == "completed" && batch["request_counts"]["failed"] == 0;
            return Ok(if is_answered { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Why nothing of a batch could be computed.
fn problems(batch: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    for problem in batch["errors"]["data"].as_array().into_iter().flatten() {
        let message = problem["message"].as_str().unwrap_or_default();
        match problem["line"].as_u64() {
            Some(line) => writeln!(out, "  line {line}: {message}")?,
            None => writeln!(out, "  {message}")?,
        }
    }
    Ok(())
}

fn summary(batch: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let text = |field: &str| batch[field].as_str().unwrap_or_default().to_owned();
    let counts = &batch["request_counts"];
    writeln!(
        out,
        "{}  {}: {} of {} answered, {} failed",
        text("id"),
        text("status"),
        counts["completed"],
        counts["total"],
        counts["failed"]
    )?;
    Ok(())
}
