//! The commands of the real binary, run as a user runs them, and the files that ship with it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod attacks;
mod command_line;
mod configuration;
mod engine;
mod events;
mod lifecycle;
mod packaging;
mod ports;
mod profiles;
mod replay;
mod run;
mod secrets;
mod size;
#[path = "../support/mod.rs"]
mod support;
