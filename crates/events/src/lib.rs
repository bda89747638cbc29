//! How cache state arrives: engines' event streams, decoded and translated for the index.
#![forbid(unsafe_code)]

pub mod wire;
