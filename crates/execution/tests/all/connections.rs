//! The connection pool: which connections are kept and reused, and which bytes of an engine are
//! accepted.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Body;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wornpath_execution::{
    BreakerRules, CallError, EgressPolicy, Endpoint, EngineResponse, Timeouts, WorkerNumber, call,
};

const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A listener, and the endpoint at its address.
async fn engine() -> (TcpListener, Arc<Endpoint>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).unwrap();
    (listener, Arc::new(endpoint))
}

async fn send(endpoint: &Arc<Endpoint>) -> Result<EngineResponse, CallError> {
    let request = Request::get("/").header("host", "engine").body(Full::new(Bytes::new())).unwrap();
    call(endpoint, WorkerNumber(0), request, Timeouts::default()).await
}

async fn exchange(endpoint: &Arc<Endpoint>) {
    let (_, body) = send(endpoint).await.unwrap().whole(10).await.unwrap();
    assert_eq!(body, "ok");
}

/// Reads a request.
async fn read_request(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}

/// Answers one request.
async fn answer(stream: &mut TcpStream, bytes: &[u8]) {
    read_request(stream).await;
    stream.write_all(bytes).await.unwrap();
}

/// Responds to `request` over the next new connection, and returns that.
async fn over_new_connection(
    listener: &TcpListener,
    bytes: &[u8],
    request: impl Future<Output = ()>,
) -> TcpStream {
    let answering = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(&mut stream, bytes).await;
        stream
    };
    tokio::join!(answering, request).0
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

fn only_localhost() -> Arc<EgressPolicy> {
    Arc::new(EgressPolicy { allowed: Some(vec!["127.0.0.0/8".parse().unwrap()]), tls: None })
}

#[tokio::test]
async fn a_connection_is_reused_until_the_egress_policy_changes() {
    let (listener, endpoint) = engine().await;
    let mut first = over_new_connection(&listener, WHOLE, exchange(&endpoint)).await;
    tokio::join!(answer(&mut first, WHOLE), exchange(&endpoint));
    // The same policy, loaded again: the connection stays open.
    endpoint.set_egress_policy(&Arc::new(EgressPolicy::default()));
    tokio::join!(answer(&mut first, WHOLE), exchange(&endpoint));
    endpoint.set_egress_policy(&only_localhost());
    assert!(is_closed(&mut first).await);
    over_new_connection(&listener, WHOLE, exchange(&endpoint)).await;
}

#[tokio::test]
async fn a_connection_in_use_is_closed_after_a_change_of_the_egress_policy() {
    let (listener, endpoint) = engine().await;
    let half = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n";
    let (mut stream, response) = tokio::join!(
        async {
            let mut stream = listener.accept().await.unwrap().0;
            answer(&mut stream, half).await;
            stream
        },
        send(&endpoint)
    );
    endpoint.set_egress_policy(&only_localhost());
    stream.write_all(b"1\r\nk\r\n0\r\n\r\n").await.unwrap();
    let (_, body) = response.unwrap().whole(10).await.unwrap();
    assert_eq!(body, "ok");
    assert!(is_closed(&mut stream).await);
}

/// Advances the time while no timer is set.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_a_minute() {
    let (listener, endpoint) = engine().await;
    let mut stream = over_new_connection(&listener, WHOLE, exchange(&endpoint)).await;
    advance(Duration::from_secs(59)).await;
    endpoint.close_unused();
    tokio::join!(answer(&mut stream, WHOLE), exchange(&endpoint));
    advance(Duration::from_secs(61)).await;
    endpoint.close_unused();
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_protocol_switch_is_an_error() {
    let (listener, endpoint) = engine().await;
    let other = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    over_new_connection(&listener, other, async {
        let error = send(&endpoint).await.unwrap_err();
        assert!(matches!(&error, CallError::Status(status) if status.as_u16() == 101), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_response_that_is_cut_with_its_first_bytes_is_an_error() {
    let (listener, endpoint) = engine().await;
    let mut sending = pin!(send(&endpoint));
    let cut = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun").await;
    };
    // The response and its end have both come before the next poll.
    tokio::select! {
        biased;
        result = &mut sending => panic!("{result:?}"),
        () = cut => {}
    }
    let result = sending.await;
    assert!(matches!(&result, Err(CallError::Broken(_))), "{result:?}");
}

#[tokio::test]
async fn a_chunk_wakes_its_reader_once() {
    const CHUNKS: usize = 20;
    let (listener, endpoint) = engine().await;
    let (sender, mut chunks) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        let mut body = send(&endpoint).await.unwrap().body;
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            while let Some(frame) = ready!(Pin::new(&mut body).poll_frame(context)) {
                sender.send(frame.unwrap().into_data().unwrap()).unwrap();
            }
            Poll::Ready(())
        })
        .await;
        polls
    });
    let mut stream = listener.accept().await.unwrap().0;
    answer(&mut stream, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for _ in 0..CHUNKS {
        stream.write_all(b"2\r\nok\r\n").await.unwrap();
        assert_eq!(chunks.recv().await.unwrap(), "ok");
    }
    // Several at once, with the end of the body.
    stream.write_all(b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n").await.unwrap();
    let polls = reading.await.unwrap();
    assert_eq!([chunks.recv().await.unwrap(), chunks.recv().await.unwrap()], ["o", "k"]);
    assert!(chunks.recv().await.is_none());
    // The first chunk is there before the first poll, and the last ones come together.
    assert_eq!(polls, 1 + CHUNKS);
}
