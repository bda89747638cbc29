//! error: E0451
//! Nor can one be put together from its parts.
use wornpath_routing::{Reads, Tokens};

pub fn forge(handle: Reads<Tokens>) -> Reads<Tokens> {
    Reads { at: 1, ..handle }
}
