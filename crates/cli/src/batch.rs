//! `wornpath batch`: submit, list, watch, cancel and retry batches on a gateway, and check a
//! gateway's folder.

mod verify;

use crate::broken_pipe::BrokenPipe;
use crate::failures::FailureTally;
use crate::http::{Endpoint, HttpClient, HttpError, TlsArguments, is_tls_rejection};
use crate::progress::LineProgress;
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// How often the state of a watched batch is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long a poll is retried while the gateway is unreachable, as during a restart.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// Submit and follow batches on a gateway that serves them (`wornpath serve --batches`), or check
/// its folder
#[derive(Args)]
pub(crate) struct BatchArguments {
    #[command(subcommand)]
    command: BatchCommand,
    /// Address of the gateway
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    gateway: String,
    /// API key for the gateway
    #[arg(long, global = true, env = "WORNPATH_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
}

#[derive(Subcommand)]
enum BatchCommand {
    #[command(flatten)]
    OnGateway(GatewayCommand),
    /// Check the folder of a gateway that is not running; exits with 1 if anything is damaged
    ///
    /// Compares every upload and every result with the length and the checksum that were recorded
    /// when it was stored, and prints what is damaged. Changes nothing, and calls no gateway.
    Verify {
        /// Folder of `wornpath serve --batches`
        folder: PathBuf,
    },
}

#[derive(Subcommand)]
enum GatewayCommand {
    /// Upload a file of batch lines and create a batch from it
    Submit {
        /// File of batch lines, one JSON object a line
        file: PathBuf,
        /// Endpoint that the lines are requests for
        #[arg(long, default_value = "/v1/chat/completions")]
        endpoint: String,
        /// Completion window, like 24h, 30m or 7d; lines that are not done by then expire
        #[arg(long, default_value = "24h")]
        window: String,
        /// Compute lines with equal bodies once, if they are deterministic: temperature 0, a seed,
        /// or embeddings
        #[arg(long)]
        identical_once: bool,
        /// Wait until the batch has ended; exits with 1 unless all lines were answered
        #[arg(long)]
        watch: bool,
    },
    /// List batches, newest first
    List,
    /// Wait until a batch has ended; exits with 1 unless all its lines were answered
    ///
    /// Exits with 1 if a line failed, and if the batch expired or was cancelled. An unreachable
    /// gateway is retried for a minute.
    Watch {
        /// Id of the batch
        id: String,
    },
    /// Print the results so far
    Results {
        /// Id of the batch
        id: String,
    },
    /// Print the failed lines with their errors, once the batch has ended
    Errors {
        /// Id of the batch
        id: String,
    },
    /// Cancel a batch
    Cancel {
        /// Id of the batch
        id: String,
    },
    /// Retry the failed lines of a batch, as a new batch
    Retry {
        /// Id of the batch
        id: String,
    },
}

pub(crate) fn run(arguments: &BatchArguments, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let command = match &arguments.command {
        BatchCommand::OnGateway(command) => command,
        BatchCommand::Verify { folder } => return verify::run(folder, &mut BrokenPipe(out)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let endpoint = Endpoint::new("the gateway", "--gateway", &arguments.gateway, &arguments.tls)?;
    let gateway = HttpClient::new(endpoint, arguments.api_key.as_deref())?;
    runtime.block_on(run_command(command, &gateway, out))
}

async fn run_command(
    command: &GatewayCommand,
    gateway: &HttpClient,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    match command {
        GatewayCommand::Submit { file, endpoint, window, identical_once, watch: is_watched } => {
            let out = &mut BrokenPipe(out);
            let uploaded = gateway.upload(file).await?;
            let mut batch = json!({
                "input_file_id": uploaded["id"],
                "endpoint": endpoint,
                "completion_window": window,
            });
            if *identical_once {
                batch["identical_once"] = true.into();
            }
            let batch = match gateway.post("/v1/batches", &batch).await {
                Ok(batch) => batch,
                Err(error) => {
                    if is_permanent(&error) {
                        delete_upload(gateway, &uploaded).await;
                    }
                    return Err(error);
                }
            };
            print_summary(&batch, out)?;
            if *is_watched {
                let id = batch["id"].as_str().unwrap_or_default();
                let shown = batch["status"].as_str().unwrap_or_default();
                return watch(gateway, id, shown, out).await;
            }
        }
        GatewayCommand::List => {
            let mut after = String::new();
            loop {
                let page = gateway.get(&format!("/v1/batches?limit=100{after}")).await?;
                for batch in page["data"].as_array().into_iter().flatten() {
                    print_summary(batch, out)?;
                }
                let Some(last) = page["last_id"].as_str().filter(|_| page["has_more"] == true)
                else {
                    break;
                };
                after = format!("&after={last}");
            }
        }
        GatewayCommand::Watch { id } => return watch(gateway, checked_id(id)?, "", out).await,
        GatewayCommand::Results { id } => {
            let id = checked_id(id)?;
            gateway.download(&format!("/v1/batches/{id}/results"), out).await?;
        }
        GatewayCommand::Errors { id } => {
            let batch = gateway.get(&format!("/v1/batches/{}", checked_id(id)?)).await?;
            if let Some(file) = batch["error_file_id"].as_str() {
                gateway.download(&format!("/v1/files/{file}/content"), out).await?;
            } else {
                // Standard output is for the lines.
                let err = &mut std::io::stderr();
                let _ = print_summary(&batch, err).and_then(|()| print_errors(&batch, err));
                ensure!(
                    is_ended(&batch),
                    "the batch has not ended; its failed lines can be read when it has"
                );
            }
        }
        GatewayCommand::Cancel { id } => {
            let id = checked_id(id)?;
            print_summary(
                &gateway.post(&format!("/v1/batches/{id}/cancel"), &Value::Null).await?,
                out,
            )?;
        }
        GatewayCommand::Retry { id } => {
            let id = checked_id(id)?;
            print_summary(
                &gateway.post(&format!("/v1/batches/{id}/retry"), &Value::Null).await?,
                out,
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses an id that would change the path of the request.
fn checked_id(id: &str) -> anyhow::Result<&str> {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_".contains(&letter);
    ensure!(
        !id.is_empty() && id.bytes().all(is_plain),
        "`{id}` is not a batch id; `wornpath batch list` shows them"
    );
    Ok(id)
}

/// Whether a retry would fail alike, and the gateway has created nothing.
fn is_permanent(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(HttpError::is_client_error) || is_tls_rejection(error)
}

/// Deletes a file from which no batch was created.
async fn delete_upload(gateway: &HttpClient, uploaded: &Value) {
    let id = uploaded["id"].as_str().unwrap_or_default();
    if let Err(error) = gateway.delete(&format!("/v1/files/{id}")).await {
        // The caller returns the error of the batch, which matters more.
        let _ = writeln!(std::io::stderr(), "cannot delete the uploaded file {id}: {error}");
    }
}

fn is_ended(batch: &Value) -> bool {
    let status = batch["status"].as_str().unwrap_or_default();
    ["completed", "failed", "expired", "cancelled"].contains(&status)
}

/// Reads the state of a batch, and retries while the gateway is unreachable.
async fn poll(gateway: &HttpClient, id: &str) -> anyhow::Result<Value> {
    let started = Instant::now();
    let mut is_reported = false;
    loop {
        match gateway.get(&format!("/v1/batches/{id}")).await {
            Ok(batch) => return Ok(batch),
            Err(error) if is_permanent(&error) || started.elapsed() > RETRY_TIMEOUT => {
                return Err(error);
            }
            Err(error) => {
                if !is_reported {
                    let seconds = RETRY_TIMEOUT.as_secs();
                    let _ = writeln!(std::io::stderr(), "{error:#}; retrying for {seconds} s");
                }
                is_reported = true;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// Polls a batch until it has ended, and shows its progress. `shown` is the status that its user
/// knows already.
async fn watch(
    gateway: &HttpClient,
    id: &str,
    shown: &str,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let out = &mut BrokenPipe(out);
    let mut lines = LineProgress::start();
    let mut last_status = shown.to_owned();
    loop {
        let batch = poll(gateway, id).await?;
        let status = batch["status"].as_str().context("the gateway reports no status")?;
        if is_ended(&batch) {
            lines.erase();
            print_summary(&batch, out)?;
            print_errors(&batch, out)?;
            print_failures(gateway, &batch, out).await?;
            ensure!(status != "failed", "the batch failed: nothing was computed");
            let is_answered = status == "completed" && batch["request_counts"]["failed"] == 0;
            return Ok(if is_answered { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if status != last_status {
            lines.print(&status.replace('_', " "));
            status.clone_into(&mut last_status);
        }
        let count = |name: &str| batch["request_counts"][name].as_u64().unwrap_or(0);
        let failed = match count("failed") {
            0 => String::new(),
            failed => format!("  failed {failed}"),
        };
        lines.show(count("completed") + count("failed"), count("total"), failed);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Prints why lines of a batch failed, the first of each kind.
async fn print_failures(
    gateway: &HttpClient,
    batch: &Value,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Some(file) = batch["error_file_id"].as_str() else { return Ok(()) };
    let mut tally = FailureTally::default();
    gateway.download(&format!("/v1/files/{file}/content"), &mut tally).await?;
    tally.report(out)?;
    if !tally.is_empty() {
        let id = batch["id"].as_str().unwrap_or_default();
        writeln!(out, "failed lines: wornpath batch errors {id}")?;
    }
    Ok(())
}

/// Prints why a batch failed as a whole.
fn print_errors(batch: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    for problem in batch["errors"]["data"].as_array().into_iter().flatten() {
        let message = problem["message"].as_str().unwrap_or_default();
        match problem["line"].as_u64() {
            Some(line) => writeln!(out, "  line {line}: {message}")?,
            None => writeln!(out, "  {message}")?,
        }
    }
    Ok(())
}

fn print_summary(batch: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let text = |field: &str| batch[field].as_str().unwrap_or_default();
    let id = text("id");
    let status = text("status");
    let counts = &batch["request_counts"];
    // Until the lines are validated, there is nothing to count.
    if counts["total"] == 0 {
        return Ok(writeln!(out, "{id}  {status}")?);
    }
    let completed = &counts["completed"];
    let total = &counts["total"];
    let failed = &counts["failed"];
    Ok(writeln!(out, "{id}  {status}: {completed} of {total} answered, {failed} failed")?)
}
