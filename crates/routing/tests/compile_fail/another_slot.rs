//! error: E0308
//! The handle of one slot gives no access to another slot.
use wornpath_routing::{BlockHashes, Decision, Reads, Tokens};

pub fn read<'a>(decision: &Decision<'a>, tokens: &Reads<Tokens>) -> Option<&'a BlockHashes> {
    decision.read(tokens)
}
