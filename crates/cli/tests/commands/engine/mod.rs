//! `wornpath engine`, run as a user runs it.

mod answers;
mod events;
