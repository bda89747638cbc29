//! vLLM's MooncakeConnector, concurrent: both engines get one transfer id, and the decode engine
//! also gets the prefill engine's bootstrap server and id.

use super::{Protocol, TemplateField};

pub(super) static PROTOCOL: Protocol = Protocol {
    prefill_request: &[TemplateField {
        name: "kv_transfer_params",
        template: r#"{"do_remote_prefill":false,"do_remote_decode":true,"transfer_id":"xfer-<room>"}"#,
    }],
    prefill_response: None,
    response_overrides: &[],
    decode_request: &[TemplateField {
        name: "kv_transfer_params",
        template: r#"{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"xfer-<room>","remote_bootstrap_addr":"http://<url_host>:<port>","remote_engine_id":"<engine>"}"#,
    }],
    is_loaded_by_vllm: true,
};
