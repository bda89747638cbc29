//! vLLM's NixlConnector, sequential: the prefill response says where its blocks are, and the decode
//! request repeats that object verbatim.

use super::{Protocol, TemplateField};

pub(super) static PROTOCOL: Protocol = Protocol {
    prefill_request: &[TemplateField {
        name: "kv_transfer_params",
        template: r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#,
    }],
    prefill_response: Some("kv_transfer_params"),
    response_overrides: &[],
    decode_request: &[],
    is_loaded_by_vllm: true,
};
