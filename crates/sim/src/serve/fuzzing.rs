//! What reads the bodies that a simulated engine is sent, so that any bytes can be tried on it: the face of a fuzz target.

use super::call::{CallKind, CallReader};
use super::text::TextModel;

/// How many tokens the prompt of a request has and how many its answer would get, by the interface of that number; none if
/// it is refused. A token is a byte, and an answer that nothing cuts short has 50.
#[must_use]
pub fn lengths(interface: u8, body: &[u8]) -> Option<(usize, usize)> {
    const KINDS: [CallKind; 4] =
        [CallKind::Chat, CallKind::Completion, CallKind::Messages, CallKind::Responses];
    let reader =
        CallReader { text: &TextModel::Bytes, models: &["m".to_owned()], answer_tokens: 50 };
    let kind = KINDS[usize::from(interface) % KINDS.len()];
    let call = reader.call(kind, &CallReader::object(body).ok()?).ok()?;
    Some((call.prompt.len(), call.output_tokens))
}
