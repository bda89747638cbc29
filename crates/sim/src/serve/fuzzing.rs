//! Entry point of a fuzz target: parses the body of a request to a simulated engine.

use super::call::{CallKind, CallReader};
use super::text::TextModel;

/// Parses a body for the API with the number `api` (modulo four). Returns the tokens of its prompt
/// and of its output, or `None` if it is refused. A token is a byte, and the default output has 50.
#[must_use]
pub fn lengths(api: u8, body: &[u8]) -> Option<(usize, usize)> {
    const KINDS: [CallKind; 4] =
        [CallKind::Chat, CallKind::Completion, CallKind::Messages, CallKind::Responses];
    let reader =
        CallReader { text: &TextModel::Bytes, models: &["m".to_owned()], answer_tokens: 50 };
    let kind = KINDS[usize::from(api) % KINDS.len()];
    let call = reader.call(kind, &CallReader::object(body).ok()?).ok()?;
    Some((call.prompt.len(), call.output_tokens))
}
