//! How the prompt's key/value vectors come from a prefill engine to a decode engine.
//!
//! Only the agreement is real, the vectors are not: the decode engine asks the prefill engine, at the
//! address that came with the request, for the blocks it leased. As unkind as vLLM: if the prefill engine is dead or another
//! one by now, the load fails, and with it the request ([`unloaded`](super::unloaded)); if only the lease has ended, it
//! reads blocks that hold something else by now, and answers 200 with wrong text.

use super::call::Remote;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where a prefill engine is asked for leased blocks.
pub(super) const PATH: &str = "/wornpath/kv_transfer";

/// What a decode engine got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fetched {
    /// The blocks of the prompt.
    Prompt,
    /// Blocks that hold something else by now.
    SomethingElse,
    /// Nothing: the load failed.
    Nothing,
}

/// Fetches a prompt's blocks.
pub(super) async fn fetch(remote: &Remote) -> Fetched {
    match ask(remote).await {
        Ok(status) if status.starts_with("HTTP/1.1 200") => Fetched::Prompt,
        Ok(status) if status.starts_with("HTTP/1.1 404") => Fetched::SomethingElse,
        Ok(_) | Err(_) => Fetched::Nothing,
    }
}

/// One small exchange, which needs no client library.
async fn ask(remote: &Remote) -> std::io::Result<String> {
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
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
