//! error: E0308
//! The right to read is not the right to write.
use wornpath_routing::{Preparing, Reads, Tokens};

pub fn write(scene: &mut Preparing<'_>, tokens: &Reads<Tokens>) {
    scene.write(tokens);
}
