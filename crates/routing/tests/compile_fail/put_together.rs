//! error: E0451
//! A handle cannot be built from its fields.
use wornpath_routing::{Reads, Tokens};

pub fn forge(handle: Reads<Tokens>) -> Reads<Tokens> {
    Reads { at: 1, ..handle }
}
