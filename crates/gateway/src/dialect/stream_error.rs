//! How a stream ends whose pod was lost: by an event that every client of its interface takes for an error.

use crate::dialect::Api;
use memchr::memmem;
use wornpath_execution::CallError;

const LOST: &str = "upstream_lost";
const NUMBER: &[u8] = b"\"sequence_number\":";

/// The last event of such a stream; in OpenAI's responses events are numbered.
pub(crate) fn lost_event(api: Api, cause: &CallError, number: u64) -> String {
    let message = format!("the pod was lost mid-stream: {cause}");
    let body = api.dialect().error_event(LOST, &message, number);
    format!("event: error\ndata: {body}\n\n")
}

/// The number of the event that would follow these bytes of a stream, if they have the end of a number.
pub(crate) fn next_number(bytes: &[u8]) -> Option<u64> {
    let rest = bytes[memmem::rfind(bytes, NUMBER)? + NUMBER.len()..].trim_ascii_start();
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..digits]).ok()?.parse::<u64>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_of_a_piece_gives_the_number() {
        let piece = b"data: {\"sequence_number\":8,\"a\":1}\n\ndata: {\"sequence_number\": 9}\n\n";
        assert_eq!(next_number(piece), Some(10));
        assert_eq!(next_number(&piece[..22]), None, "it may go on");
        assert_eq!(next_number(b"data: {}\n\n"), None);
    }
}
