//! Shared storage, sequential: both engines find the blocks in one store by their hashes, so the
//! requests carry no field.

use super::Protocol;

pub(super) static PROTOCOL: Protocol = Protocol {
    prefill_request: &[],
    prefill_response: None,
    response_overrides: &[],
    decode_request: &[],
    is_loaded_by_vllm: false,
};
