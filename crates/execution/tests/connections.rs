//! What becomes of connections: which are kept, which are used again, and what an engine may say over them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

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

/// Somebody who listens, and the endpoint there.
async fn engine() -> (TcpListener, Arc<Endpoint>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let endpoint = Endpoint::new(&url, BreakerRules::default(), 1).unwrap();
    (listener, Arc::new(endpoint))
}

async fn ask(endpoint: &Arc<Endpoint>) -> Result<EngineResponse, CallError> {
    let request = Request::get("/").header("host", "engine").body(Full::new(Bytes::new())).unwrap();
    call(endpoint, WorkerNumber(0), request, Timeouts::default()).await
}

async fn ask_whole(endpoint: &Arc<Endpoint>) {
    let (_, body) = ask(endpoint).await.unwrap().whole(10).await.unwrap();
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

/// Lets `asked` be answered over the next connection, which is handed back.
async fn over_a_new_one(
    listener: &TcpListener,
    bytes: &[u8],
    asked: impl Future<Output = ()>,
) -> TcpStream {
    let answering = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(&mut stream, bytes).await;
        stream
    };
    tokio::join!(answering, asked).0
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

fn only_this_machine() -> Arc<EgressPolicy> {
    Arc::new(EgressPolicy { allowed: Some(vec!["127.0.0.0/8".parse().unwrap()]), tls: None })
}

#[tokio::test]
async fn a_connection_is_used_again_for_as_long_as_its_rules_hold() {
    let (listener, endpoint) = engine().await;
    let mut first = over_a_new_one(&listener, WHOLE, ask_whole(&endpoint)).await;
    tokio::join!(answer(&mut first, WHOLE), ask_whole(&endpoint));
    // Read again, and the same: nothing is opened anew.
    endpoint.set_reach(&Arc::new(EgressPolicy::default()));
    tokio::join!(answer(&mut first, WHOLE), ask_whole(&endpoint));
    endpoint.set_reach(&only_this_machine());
    assert!(is_closed(&mut first).await);
    over_a_new_one(&listener, WHOLE, ask_whole(&endpoint)).await;
}

#[tokio::test]
async fn a_connection_in_use_is_not_kept_if_its_rules_change() {
    let (listener, endpoint) = engine().await;
    let half = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n";
    let (mut stream, asked) = tokio::join!(
        async {
            let mut stream = listener.accept().await.unwrap().0;
            answer(&mut stream, half).await;
            stream
        },
        ask(&endpoint)
    );
    endpoint.set_reach(&only_this_machine());
    stream.write_all(b"1\r\nk\r\n0\r\n\r\n").await.unwrap();
    let (_, body) = asked.unwrap().whole(10).await.unwrap();
    assert_eq!(body, "ok");
    assert!(is_closed(&mut stream).await);
}

/// Lets time pass, in which nobody waits for anything.
async fn later(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn what_nobody_uses_is_closed_after_a_minute() {
    let (listener, endpoint) = engine().await;
    let mut stream = over_a_new_one(&listener, WHOLE, ask_whole(&endpoint)).await;
    later(Duration::from_secs(59)).await;
    endpoint.close_unused();
    tokio::join!(answer(&mut stream, WHOLE), ask_whole(&endpoint));
    later(Duration::from_secs(61)).await;
    endpoint.close_unused();
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn who_begins_to_speak_otherwise_is_not_heard() {
    let (listener, endpoint) = engine().await;
    let other = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    over_a_new_one(&listener, other, async {
        let told = ask(&endpoint).await.unwrap_err();
        assert!(matches!(&told, CallError::Status(status) if status.as_u16() == 101), "{told}");
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_with_its_first_bytes_has_not_begun() {
    let (listener, endpoint) = engine().await;
    let mut asking = pin!(ask(&endpoint));
    let cut = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun").await;
    };
    // The answer and its end have both come before anybody looks.
    tokio::select! {
        biased;
        told = &mut asking => panic!("{told:?}"),
        () = cut => {}
    }
    let told = asking.await;
    assert!(matches!(&told, Err(CallError::Broken(_))), "{told:?}");
}

#[tokio::test]
async fn a_chunk_wakes_whoever_waits_for_it_once() {
    const CHUNKS: usize = 20;
    let (listener, endpoint) = engine().await;
    let (heard, mut hearing) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        let mut body = ask(&endpoint).await.unwrap().body;
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            while let Some(frame) = ready!(Pin::new(&mut body).poll_frame(context)) {
                heard.send(frame.unwrap().into_data().unwrap()).unwrap();
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
        assert_eq!(hearing.recv().await.unwrap(), "ok");
    }
    // Several at once, of which one brings the end.
    stream.write_all(b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n").await.unwrap();
    let polls = reading.await.unwrap();
    assert_eq!([hearing.recv().await.unwrap(), hearing.recv().await.unwrap()], ["o", "k"]);
    assert!(hearing.recv().await.is_none());
    // The first chunk is there before it is asked for, and the last ones come together.
    assert_eq!(polls, 1 + CHUNKS);
}
