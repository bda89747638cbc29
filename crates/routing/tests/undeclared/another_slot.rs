//! error: E0308
//! The handle of one slot gives no access to another.
use wornpath_routing::{BlockHashes, Decision, Reads, Tokens};

pub fn read<'a>(scene: &Decision<'a>, tokens: &Reads<Tokens>) -> Option<&'a BlockHashes> {
    scene.read(tokens)
}
