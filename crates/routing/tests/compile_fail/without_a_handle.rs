//! error: E0616
//! The slots are private fields.
use wornpath_routing::Decision;

pub fn reach(decision: &Decision<'_>) {
    let _ = decision.slots;
}
