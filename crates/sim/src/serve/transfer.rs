//! The KV transfer from a prefill engine to a decode engine.
//!
//! Only the protocol is real, no vectors are sent: the decode engine requests the leased blocks
//! from the prefill engine at the address in `kv_transfer_params`. It fails as vLLM does: if the
//! prefill engine is down or another one has its address, the load fails, and with it the request
//! ([`load_failure`](super::load_failure)); if only the lease has expired, the decode engine reads
//! blocks with other content, and answers 200 with wrong text.

use super::call::Remote;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The path at which a prefill engine serves leased blocks.
pub(super) const PATH: &str = "/wornpath/kv_transfer";

/// The result of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fetched {
    /// The blocks of the prompt.
    Prompt,
    /// Blocks with other content: the lease has expired.
    Stale,
    /// No blocks: the load failed.
    Failed,
}

/// Fetches a prompt's blocks.
pub(super) async fn fetch(remote: &Remote) -> Fetched {
    match post(remote).await {
        Ok(status) if status.starts_with("HTTP/1.1 200") => Fetched::Prompt,
        Ok(status) if status.starts_with("HTTP/1.1 404") => Fetched::Stale,
        Ok(_) | Err(_) => Fetched::Failed,
    }
}

/// Sends one small request, which needs no client library.
async fn post(remote: &Remote) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((remote.host.as_str(), remote.port)).await?;
    let body = json!({"remote_request_id": remote.request, "remote_engine_id": remote.engine});
    let body = body.to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: {}:{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        remote.host,
        remote.port,
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut response = Vec::new();
    stream.take(4096).read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}
