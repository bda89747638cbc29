//! Clients that send large bodies and stall, or trickle: the memory of the gateway stays bounded,
//! and other clients are served.

use crate::queue::digest;
use crate::support::engines::{Exchange, Response};
use crate::support::gateway::{Gateway, eventually, eventually_within};
use crate::support::recorder::Recorder;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::runtime::Builder;

const ASK: &str = "/v1/completions";
const MIB: usize = 1 << 20;
const HELD: &str = "wornpath_body_bytes ";

fn gateway(pod: &Recorder, test: &str, more: &str) -> Gateway {
    let text = format!("pods: [{{url: \"http://{}\", model: m}}]\n{more}", pod.address);
    Gateway::configured(test, &text, 1)
}

fn tenants(of_a: &str) -> String {
    format!(
        "tenants:\n  - {{name: a, key_digest: \"{}\"{of_a}}}\n  - {{name: b, key_digest: \"{}\"}}\n",
        digest("a"),
        digest("b")
    )
}

/// The head of a request with `length` bytes of body; `headers` end with a line break.
fn head(headers: &str, length: usize) -> String {
    format!(
        "POST {ASK} HTTP/1.1\r\nhost: x\r\n{headers}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    )
}

/// A connection from an address of this machine.
fn connect_from(source: [u8; 4], gateway: &Gateway) -> TcpStream {
    let to: SocketAddr = gateway.address.parse().unwrap();
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends `sent` of the `length` bytes of a body, and no more. If the gateway refuses it meanwhile,
/// the rest is lost.
fn stall(gateway: &Gateway, headers: &str, length: usize, sent: usize) -> TcpStream {
    let mut stream = connect_from([127, 0, 0, 1], gateway);
    let body = format!("{{\"model\": \"m\", \"prompt\": \"{}", "x".repeat(sent));
    let _ = stream.write_all(head(headers, length).as_bytes());
    let _ = stream.write_all(&body.as_bytes()[..sent]);
    stream
}

/// What comes until the gateway closes the connection or is silent.
fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..count]);
        // Errors of the gateway are JSON objects.
        if text.ends_with(b"}") {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A complete request with about so many bytes of body.
fn post(gateway: &Gateway, key: &str, bytes: usize) -> Response {
    let body = json!({"model": "m", "prompt": "x".repeat(bytes)});
    let authorization = format!("Bearer {key}");
    let headers = [("authorization", authorization.as_str())];
    Exchange::open_with(&gateway.address, ASK, &headers, &body).finish().unwrap()
}

#[test]
fn eighty_large_bodies_that_stall_leave_memory_bounded_and_other_clients_served() {
    const CLIENTS: usize = 80;
    let pod = Recorder::start();
    let gateway = gateway(&pod, "stalled_memory", "limits: {body: 4MiB, bodies: 16MiB}\n");
    assert_eq!(post(&gateway, "", 100).status, 200);
    let before = gateway.memory("VmHWM");
    let mut stalled: Vec<_> = std::thread::scope(|scope| {
        let stall = || stall(&gateway, "", 4 * MIB, 4 * MIB - 1000);
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(stall)).collect();
        // Ordinary requests need no room, and another address finds some.
        assert_eq!(post(&gateway, "", 30_000).status, 200);
        let mut other = connect_from([127, 0, 0, 2], &gateway);
        let body = json!({"model": "m", "prompt": "x".repeat(2 * MIB)}).to_string();
        let all = head("connection: close\r\n", body.len()) + &body;
        other.write_all(all.as_bytes()).unwrap();
        let served = answer(&mut other);
        assert!(served.starts_with("HTTP/1.1 200"), "{served}");
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let refused = || gateway.metric("wornpath_bodies_refused_total{reason=\"share\"}") as usize;
    // Two bodies fit into the share of one address.
    eventually_within(Duration::from_secs(15), "those without room are refused", || {
        refused() >= CLIENTS - 2
    });
    assert!(gateway.metric(HELD) as usize <= 8 * MIB);
    let grown = gateway.memory("VmHWM") - before;
    println!("{CLIENTS} bodies of 4 MiB: {grown:.0} MiB, {} refused", refused());
    // Beside the share: two buffers of each connection, and what the allocator keeps.
    assert!(grown < 80.0, "{grown} MiB");
    // Those that were not refused hear nothing.
    let mut told = stalled.iter_mut().map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        answer(stream)
    });
    let first = told.find(|text| text.starts_with("HTTP/1.1 503"));
    let first = first.expect("some client reads its response");
    assert!(first.contains("\r\nretry-after: 1\r\n"), "{first}");
    assert!(first.contains("its share of 16777216 bytes (`limits.bodies`)"), "{first}");
    drop(stalled);
    eventually("all is given back", || gateway.metric(HELD) as usize == 0);
    assert_eq!(post(&gateway, "", 3 * MIB).status, 200);
}

#[test]
fn a_tenant_whose_bodies_stall_takes_no_room_of_another_tenant() {
    let pod = Recorder::start();
    let more = format!("limits: {{body: 8MiB, bodies: 16MiB}}\n{}", tenants(""));
    let gateway = gateway(&pod, "stalled_tenant", &more);
    let key = "authorization: Bearer a\r\n";
    let stalled: Vec<_> = (0..3).map(|_| stall(&gateway, key, 3 * MIB, 2 * MIB)).collect();
    eventually("they are received", || gateway.metric(HELD) as usize >= 6 * MIB);
    std::thread::scope(|scope| {
        let own = scope.spawn(|| post(&gateway, "a", 3 * MIB));
        for _ in 0..3 {
            assert_eq!(post(&gateway, "b", 3 * MIB).status, 200);
        }
        let own = own.join().unwrap();
        assert_eq!((own.status, own.header("retry-after")), (503, Some("1")), "{}", own.text);
        assert!(own.text.contains("send fewer large requests at a time"), "{}", own.text);
    });
    assert_eq!(post(&gateway, "a", 50_000).status, 200, "a short body needs no room");
    drop(stalled);
    eventually("it is given back", || gateway.metric(HELD) as usize == 0);
    assert_eq!(post(&gateway, "a", 3 * MIB).status, 200);
}

#[test]
fn a_tenant_over_its_quota_or_without_a_key_is_refused_before_its_body() {
    let pod = Recorder::start();
    let gateway = gateway(&pod, "stalled_quota", &tenants(", quota: 1"));
    let key = "authorization: Bearer a\r\n";
    let stalled = stall(&gateway, key, 3 * MIB, 2 * MIB);
    eventually("it is received", || gateway.metric(HELD) as usize >= 2 * MIB);
    // Neither of these sends a byte of its body.
    let refused = answer(&mut stall(&gateway, key, MIB, 0));
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("tenant quota exceeded: 1 requests in flight"), "{refused}");
    let unknown = answer(&mut stall(&gateway, "authorization: Bearer x\r\n", MIB, 0));
    assert!(unknown.starts_with("HTTP/1.1 401"), "{unknown}");
    // A client that sends all of its body before it reads gets the response too.
    let whole = post(&gateway, "a", 4 * MIB);
    assert_eq!(whole.status, 429, "{}", whole.text);
    drop(stalled);
    eventually("the quota is free", || post(&gateway, "a", 100).status == 200);
    assert_eq!(gateway.metric(HELD) as usize, 0);
}

#[test]
fn a_body_that_trickles_is_ended_although_no_byte_is_late() {
    let pod = Recorder::start();
    let gateway = gateway(&pod, "stalled_trickle", "limits: {body_grace: 1s}\n");
    let mut slow = stall(&gateway, "", 10_000, 10);
    slow.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 1024];
    let mut sent = 0;
    let read = loop {
        slow.write_all(b"x").unwrap();
        sent += 1;
        assert!(sent < 100, "it goes on and on");
        // Waits for the answer until the next byte is due.
        if let Ok(read) = slow.read(&mut buffer) {
            break read;
        }
    };
    let told = String::from_utf8_lossy(&buffer[..read]);
    assert!(told.starts_with("HTTP/1.1 408"), "{told}");
    assert!(told.contains("less than 1024 bytes per second for longer than 1s"), "{told}");
    assert_eq!(gateway.metric("wornpath_bodies_refused_total{reason=\"slow\"}") as usize, 1);
    assert!(pod.posted().is_empty());
}

#[test]
fn a_large_body_is_held_until_its_response_begins_or_its_client_disconnects() {
    let pod = Recorder::start();
    let gateway = gateway(&pod, "stalled_held", "");
    pod.answer_after(Duration::from_millis(300));
    let body = json!({"model": "m", "prompt": "x".repeat(MIB)});
    let waits = gateway.open(ASK, &body);
    let length = body.to_string().len();
    eventually("the engine works on it", || gateway.metric(HELD) as usize == length);
    assert_eq!(waits.finish().unwrap().status, 200);
    assert_eq!(gateway.metric(HELD) as usize, 0);
    for _ in 0..3 {
        let left: Vec<_> = (0..4).map(|_| stall(&gateway, "", 3 * MIB, 2 * MIB)).collect();
        eventually("they are received", || gateway.metric(HELD) as usize >= 8 * MIB);
        drop(left);
        eventually("they are given back", || gateway.metric(HELD) as usize == 0);
    }
}
