//! The error event that ends a stream whose pod was lost, in the form that clients of its API
//! expect.
//!
//! The status is already sent at that point, so an event is the only way to report the error.

use crate::dialect::Api;
use memchr::memmem;
use wornpath_execution::CallError;

const LOST: &str = "upstream_lost";
const NUMBER: &[u8] = b"\"sequence_number\":";

/// The error event; `number` is its sequence number, for APIs that number their events.
pub(crate) fn lost_event(api: Api, cause: &CallError, number: u64) -> String {
    let message = format!("the pod was lost mid-stream: {cause}");
    let body = api.dialect().error_event(LOST, &message, number);
    format!("event: error\ndata: {body}\n\n")
}

/// The sequence number of the event that follows these bytes; none if they contain no whole number.
pub(crate) fn next_number(bytes: &[u8]) -> Option<u64> {
    let rest = bytes[memmem::rfind(bytes, NUMBER)? + NUMBER.len()..].trim_ascii_start();
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..digits]).ok()?.parse::<u64>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_follows_the_last_event_of_a_chunk() {
        let chunk = b"data: {\"sequence_number\":8,\"a\":1}\n\ndata: {\"sequence_number\": 9}\n\n";
        assert_eq!(next_number(chunk), Some(10));
        assert_eq!(next_number(&chunk[..22]), None, "more digits may follow");
        assert_eq!(next_number(b"data: {}\n\n"), None);
    }
}
