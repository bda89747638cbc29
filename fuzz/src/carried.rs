//! What carries cache events: ZeroMQ's own protocol, reports over gRPC, and the list of an engine's publishers. What
//! Redis, NATS and Kafka carry is an envelope each, which `wire` has.

use crate::wire::translate;
use prost::Message as _;
use tokio::io::{join, sink};
use wornpath_events::grpc::Report;
use wornpath_events::wire::{Batch, Limits, Message, decode};
use wornpath_events::zmtp::{Connection, Socket};
use wornpath_events::{Said, ZmqAddress};

/// All bytes that a peer sends over one connection; the first says which socket we are.
pub fn zmtp_stream(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let own = [Socket::Sub, Socket::Dealer, Socket::Router, Socket::Pub][usize::from(kind % 4)];
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without timers and sockets").block_on(async {
        let stream = join(bytes, sink());
        let Ok(mut connection) = Connection::handshake(stream, own).await else { return };
        let mut batch = Batch::default();
        // Ends, since a stream that has ended is an error.
        while let Ok(frames) = connection.receive().await {
            let Ok(Message::Batch { payload, .. }) = Message::parse(&frames) else { continue };
            if decode(payload, &Limits::default(), &mut batch).is_ok() {
                translate(&batch);
            }
        }
    });
}

/// One report of a stream: what is read is written again as it was meant.
pub fn grpc_report(bytes: &[u8]) {
    let Ok(report) = Report::decode(bytes) else { return };
    let again = Report::decode(&report.encode_to_vec()[..]).expect("what we encode, we decode");
    assert_eq!(report, again);
    if let Some(Said::Batch { batch, .. } | Said::Snapshot { batch, .. }) = report.said() {
        translate(&batch);
    }
}

/// An engine's answer to `GET /kv_event_sources`: what is listed can be written down and read again.
pub fn event_sources(json: &[u8]) {
    let Ok(listed) = ZmqAddress::listed(json, "10.0.0.1") else { return };
    for address in listed.values() {
        assert!(address.publisher.contains(':'), "{address}");
    }
}
