//! The `wornpath` binary, with the plugins that wornpath ships.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use wornpath::routing::Registry;

fn main() -> ExitCode {
    wornpath::main_with(Registry::shipped())
}
