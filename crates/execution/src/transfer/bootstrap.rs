//! SGLang, concurrent: both engines get the prefill engine's bootstrap server and one room there.
//! The prefill response is discarded.

use super::{Protocol, TemplateField};

const ROOM: &[TemplateField] = &[
    TemplateField { name: "bootstrap_host", template: r#""<host>""# },
    TemplateField { name: "bootstrap_port", template: "<port>" },
    TemplateField { name: "bootstrap_room", template: "<room>" },
];

pub(super) static PROTOCOL: Protocol = Protocol {
    prefill_request: ROOM,
    prefill_response: None,
    response_overrides: &[],
    decode_request: ROOM,
    is_loaded_by_vllm: false,
};
