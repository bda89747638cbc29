//! error: E0308
//! A read handle does not allow writes.
use wornpath_routing::{Preparing, Reads, Tokens};

pub fn write(preparing: &mut Preparing<'_>, tokens: &Reads<Tokens>) {
    preparing.write(tokens);
}
