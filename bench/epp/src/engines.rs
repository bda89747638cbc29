//! Engines that answer at once: listeners of one thread, which read the body and nothing of it.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

const MODELS: &str = r#"{"object":"list","data":[{"id":"bench-model","object":"model"}]}"#;
const ANSWER: &str = r#"{"id":"c","object":"text_completion","choices":[{"index":0,"text":" An answer of a few words.","finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":16,"total_tokens":216}}"#;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let text = if request.uri().path() == "/v1/models" { MODELS } else { ANSWER };
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        drop(frame?);
    }
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Starts engines at free ports.
pub(crate) fn start(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    let addresses =
        listeners.iter().map(|listener| listener.local_addr()).collect::<Result<_, _>>()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            for listener in listeners {
                tokio::spawn(accept(listener));
            }
            std::future::pending::<()>().await;
        });
    });
    Ok(addresses)
}

async fn accept(listener: std::net::TcpListener) -> anyhow::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let served =
            http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(served);
    }
}
