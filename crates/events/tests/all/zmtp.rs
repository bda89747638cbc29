//! Our side of ZeroMQ against libzmq, and against peers that are not what they should be.

use crate::peer::{self, Peer};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wornpath_events::zmtp::{SocketKind, ZmtpConnection, ZmtpError, ZmtpListener, ZmtpPublisher};

#[tokio::test]
async fn libzmq_publishes_and_replays_to_us() {
    if !peer::zmq_is_here() {
        return;
    }
    for (form, frames) in [("topic", 4), ("bare", 3)] {
        let mut engine = Peer::start("publisher.py", &["0", "0", "kv@pod", form]);
        let ports = engine.line();
        let (publish, replay) = ports.split_once(' ').unwrap();
        let connect = async |port: &str, own| {
            ZmtpConnection::connect(format!("127.0.0.1:{port}"), own).await.unwrap()
        };
        let mut stream = connect(publish, SocketKind::Sub).await;
        stream.subscribe(b"").await.unwrap();
        // The subscription takes its way to libzmq's thread; what is published before is lost to
        // us.
        let mut asked = connect(replay, SocketKind::Dealer).await;
        let large = vec![7; 100_000];
        let first = loop {
            engine.say("send", b"first");
            let wait = Duration::from_millis(20);
            if let Ok(frames) = tokio::time::timeout(wait, stream.receive()).await {
                break frames.unwrap();
            }
        };
        assert_eq!((&first[0][..], &first[2][..]), (&b"kv@pod"[..], &b"first"[..]));
        engine.say("send", &large);
        // On a slow machine the first was said more than once.
        let mut firsts = 1;
        let second = loop {
            let frames = stream.receive().await.unwrap();
            if frames[2] != b"first"[..] {
                break frames;
            }
            firsts += 1;
        };
        assert!(second[2] == large);

        assert!(!stream.ping().await.unwrap(), "no ping was sent before");
        let answered = async {
            while !stream.ping().await.unwrap() {
                let wait = Duration::from_millis(20);
                let received = tokio::time::timeout(wait, stream.receive()).await;
                assert!(received.is_err(), "the answer to a ping is not a message");
            }
        };
        let answered = tokio::time::timeout(Duration::from_secs(5), answered).await;
        assert!(answered.is_ok(), "libzmq answers pings");

        let number = u64::from_be_bytes((&first[1][..]).try_into().unwrap());
        asked.send(&[&[][..], &number.to_be_bytes()]).await.unwrap();
        let firsts = std::iter::repeat_n(&b"first"[..], firsts);
        for payload in firsts.chain([&large[..], b""]) {
            let answer = asked.receive().await.unwrap();
            assert_eq!((answer.len(), &answer[frames - 1][..]), (frames, payload));
        }
    }
}

#[tokio::test]
async fn libzmq_subscribes_to_us_and_asks_us() {
    if !peer::zmq_is_here() {
        return;
    }
    let publisher = ZmtpPublisher::bind("127.0.0.1:0").await.unwrap();
    let mut router = ZmtpListener::bind("127.0.0.1:0", SocketKind::Router).await.unwrap();
    let ports = [publisher.address().port(), router.address().port()].map(|port| port.to_string());
    let mut consumer = Peer::start("consumer.py", &[&ports[0], &ports[1]]);
    publisher.subscribed(1).await;
    publisher.send(&[&b"other"[..], b"not for it"]);
    publisher.send(&[&b"kv@pod"[..], &vec![0; 70_000]]);
    let mut asking = router.accept().await.unwrap();
    assert_eq!(asking.receive().await.unwrap(), [&[][..], &7_u64.to_be_bytes()]);
    asking.send(&["", "answer"]).await.unwrap();
    let lines = tokio::task::spawn_blocking(move || [(); 3].map(|()| consumer.line()));
    assert_eq!(lines.await.unwrap(), ["2 70000 kv@pod", "still connected", "b'' b'answer'"]);
}

#[tokio::test]
async fn messages_to_a_subscriber_that_does_not_read_are_dropped_and_block_no_other() {
    let publisher = ZmtpPublisher::bind("127.0.0.1:0").await.unwrap();
    let connect = || ZmtpConnection::connect(publisher.address(), SocketKind::Sub);
    let mut idle = connect().await.unwrap();
    let mut busy = connect().await.unwrap();
    idle.subscribe(b"").await.unwrap();
    busy.subscribe(b"").await.unwrap();
    publisher.subscribed(2).await;
    let payload = vec![0; 16 << 10];
    for number in 0..4000_u64 {
        publisher.send(&[&number.to_be_bytes()[..], &payload]);
        assert_eq!(busy.receive().await.unwrap()[0][..], number.to_be_bytes());
    }
    assert!(publisher.dropped() > 0, "64 MB waited for a subscriber that does not read");
}

#[tokio::test]
async fn a_socket_of_the_wrong_type_is_named() {
    let publisher = ZmtpPublisher::bind("127.0.0.1:0").await.unwrap();
    let refusal =
        ZmtpConnection::connect(publisher.address(), SocketKind::Dealer).await.err().unwrap();
    assert_eq!(
        refusal.to_string(),
        "the peer is a PUB socket, which does not talk to DEALER; check the port"
    );
}

#[tokio::test]
async fn a_server_that_does_not_speak_zeromq_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async |bytes: &[u8]| {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    };
    let mut http = b"HTTP/1.1 400 Bad Request\r\n".to_vec();
    http.resize(64, b'-');
    let (refused, _) =
        tokio::join!(ZmtpConnection::connect(address, SocketKind::Sub), answer(&http));
    let refusal = refused.err().unwrap().to_string();
    assert!(refusal.starts_with("greeting: found \"HTTP/1.1 400"), "{refusal}");
    let (refused, _) = tokio::join!(ZmtpConnection::connect(address, SocketKind::Sub), async {
        drop(answer(b"").await);
    });
    assert!(matches!(refused, Err(ZmtpError::Closed | ZmtpError::Io(_))));
}

#[tokio::test(start_paused = true)]
async fn a_handshake_with_a_silent_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = ZmtpConnection::connect(listener.local_addr().unwrap(), SocketKind::Sub).await;
    assert!(matches!(refused, Err(ZmtpError::Timeout { seconds: 5 })));
}

/// How long a subscriber takes, in virtual time, to read the messages that it charges for, and
/// whether it was paused.
async fn time_to_read(messages: u64, charge: u64) -> (Duration, bool) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (subscriber, publisher) = tokio::join!(
        ZmtpConnection::handshake(near, SocketKind::Sub),
        ZmtpConnection::handshake(far, SocketKind::Pub),
    );
    let mut subscriber = subscriber.unwrap();
    let mut publisher = publisher.unwrap();
    let writing = tokio::spawn(async move {
        for _ in 0..messages {
            publisher.send(&["topic", "payload"]).await.unwrap();
        }
        publisher
    });
    let start = tokio::time::Instant::now();
    for _ in 0..messages {
        subscriber.receive().await.unwrap();
        subscriber.charge(charge);
    }
    drop(writing.await.unwrap());
    (start.elapsed(), subscriber.take_paused())
}

#[tokio::test(start_paused = true)]
async fn a_peer_is_read_no_faster_than_its_limit_on_useless_messages() {
    let (time, was_paused) = time_to_read(60_000, 1).await;
    assert!(was_paused);
    // 20,000 at once, then 10,000 per second.
    assert!(
        (Duration::from_millis(3_900)..Duration::from_millis(4_200)).contains(&time),
        "{time:?}"
    );
    assert_eq!(time_to_read(60_000, 0).await, (Duration::ZERO, false), "useful messages");
}
