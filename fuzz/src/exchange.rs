//! Bytes as what another router sends: a greeting, or updates one after another.

use wornpath_exchange::{Hello, Peers, RouterId, Scope, Update};
use wornpath_index::Moment;

/// Decodes the bytes as a greeting, and as updates of which each begins with its length in two
/// bytes. What is decoded is encoded to the same, and what peers say of load never overflows.
pub fn exchange_update(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode()[..], *bytes);
    }
    let mut peers = Peers::new(RouterId(0));
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (update, after) = after.split_at(length);
        rest = after;
        let Ok(update) = Update::decode(update) else { continue };
        assert_eq!(Update::decode(&update.encode()).as_ref(), Ok(&update));
        let router = update.origin.router;
        let is_full = update.scope == Scope::Full;
        peers.hear(update, Moment::ZERO);
        for change in peers.take_pods() {
            assert_eq!(change.load, peers.load(&change.pod));
        }
        peers.take_tenants();
        if is_full {
            peers.disconnected(router, Moment::ZERO);
        }
    }
    peers.forget(Moment::from_secs(9));
    assert_eq!(peers.routers().len(), 0);
}
