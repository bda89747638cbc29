//! TensorRT-LLM, sequential: the first choice of the prefill response has the parameters of the
//! context phase, which the decode request repeats as those of the generation phase.

use super::{Protocol, TemplateField};

pub(super) static PROTOCOL: Protocol = Protocol {
    prefill_request: &[TemplateField {
        name: "disaggregated_params",
        template: r#"{"request_type":"context_only"}"#,
    }],
    prefill_response: Some("disaggregated_params"),
    response_overrides: &[TemplateField { name: "request_type", template: r#""generation_only""# }],
    decode_request: &[],
    is_loaded_by_vllm: false,
};
