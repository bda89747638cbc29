//! What reads the bodies that a simulated engine is sent, so that any bytes can be tried on it: the face of a fuzz target.

use super::call::{Kind, Reader};
use super::text::Text;

/// How many tokens the prompt of a request has and how many its answer would get, by the interface of that number; none if
/// it is refused. A token is a byte, and an answer that nothing cuts short has 50.
#[must_use]
pub fn lengths(interface: u8, body: &[u8]) -> Option<(usize, usize)> {
    const KINDS: [Kind; 4] = [Kind::Chat, Kind::Completion, Kind::Messages, Kind::Responses];
    let reader = Reader { text: &Text::Bytes, models: &["m".to_owned()], answer_tokens: 50 };
    let kind = KINDS[usize::from(interface) % KINDS.len()];
    let call = reader.call(kind, &Reader::object(body).ok()?).ok()?;
    Some((call.prompt.len(), call.output_tokens))
}
