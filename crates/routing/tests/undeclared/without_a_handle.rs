//! error: E0616
//! The slots themselves are out of reach.
use wornpath_routing::Decision;

pub fn reach(scene: &Decision<'_>) {
    let _ = scene.slots;
}
