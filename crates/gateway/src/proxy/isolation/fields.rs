//! The body fields that isolated tenants may send, as tables: what is not in them is refused.
//!
//! A list of forbidden fields would be incomplete with the next version of an engine. The tables
//! have the fields of OpenAI's APIs, of vLLM and of SGLang that only concern the request itself, so
//! that ordinary clients notice nothing.

/// How a field of an isolated tenant's request is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Treatment {
    /// It concerns this request only, and passes as it is.
    Plain,
    /// It may hold media, whose `uuid` names an entry of a cache that engines do not salt.
    Media,
    /// It names something that engines keep across requests: it is replaced by a name that no other
    /// tenant can produce.
    Scoped,
    /// Engines would answer with something about other requests, so it is taken out.
    Removed,
    /// An object of arguments for extensions of the engine: each of them is a field of its own.
    Arguments,
    /// It is refused for this reason, unless the configuration allows it.
    Refused(&'static str),
}

/// Fields that several APIs share.
#[derive(Debug)]
pub(super) struct FieldTable {
    plain: &'static [&'static str],
    media: &'static [&'static str],
}

/// The treatment of a field at a path with these tables; none if it is unknown.
pub(super) fn treatment(tables: &[&FieldTable], field: &str) -> Option<Treatment> {
    let in_any = |names: fn(&FieldTable) -> &'static [&'static str]| {
        tables.iter().any(|table| names(table).contains(&field))
    };
    // A field may be text in one API and hold media in another.
    if in_any(|table| table.media) {
        return Some(Treatment::Media);
    }
    if in_any(|table| table.plain) {
        return Some(Treatment::Plain);
    }
    match field {
        ARGUMENTS => Some(Treatment::Arguments),
        _ if SCOPED.contains(&field) => Some(Treatment::Scoped),
        _ if REMOVED.contains(&field) => Some(Treatment::Removed),
        _ => refusal(field),
    }
}

/// The treatment of an argument in [`ARGUMENTS`]; none if it is unknown.
pub(super) fn argument_treatment(argument: &str) -> Option<Treatment> {
    match argument {
        _ if HARMLESS_ARGUMENTS.contains(&argument) => Some(Treatment::Plain),
        _ if SCOPED.contains(&argument) => Some(Treatment::Scoped),
        _ if REMOVED.contains(&argument) => Some(Treatment::Removed),
        _ => refusal(argument),
    }
}

fn refusal(field: &str) -> Option<Treatment> {
    let known = REFUSED.iter().find(|(name, _)| *name == field);
    known.map(|(_, reason)| Treatment::Refused(reason))
}

/// vLLM's arguments for extensions: scheduler and KV connectors read some of them.
pub(super) const ARGUMENTS: &str = "vllm_xargs";

/// Inside media fields, the member that vLLM takes as the hash of an image, a video or a sound.
pub(super) const MEDIA_ID: &str = "uuid";

/// Members of messages in which no engine looks for media; the names in them are a tool's own.
pub(super) const WITHOUT_MEDIA: [&str; 2] = ["tool_calls", "function_call"];

/// Ids of sessions and requests.
const SCOPED: [&str; 4] = ["session_id", "request_id", "rid", "conversation_id"];

/// With `kv_cache_report_mode`, vLLM reports cached blocks beyond those of the request.
const REMOVED: [&str; 1] = ["kv_cache_report_mode"];

/// Arguments of vLLM's own logits processors.
const HARMLESS_ARGUMENTS: [&str; 3] = ["ngram_size", "window_size", "whitelist_token_ids"];

const STORED: &str = "engines keep responses for all tenants alike";
const RANK: &str = "the router chooses the rank of an engine";

/// Fields with a meaning that isolation cannot keep.
const REFUSED: [(&str, &str); 14] = [
    ("previous_response_id", STORED),
    ("conversation", STORED),
    ("previous_input_messages", "engines take it in place of a stored response"),
    ("prompt_embeds", "not every engine salts prompts that are embeddings"),
    ("input_embeds", "not every engine salts prompts that are embeddings"),
    ("session_params", "it continues a session of the engine, whose owner is not checked"),
    ("extra_key", "it is a key of the prefix cache"),
    ("custom_logit_processor", "it runs code in the engine"),
    ("logits_processors", "it runs code in the engine"),
    ("nvext", "it steers the placement of requests and of their cache"),
    ("kv_hints", "it steers the placement of cached blocks"),
    ("routed_dp_rank", RANK),
    ("data_parallel_rank", RANK),
    ("disagg_prefill_dp_rank", RANK),
];

/// Every API.
pub(super) static ANY: FieldTable = FieldTable {
    plain: &["model", "user", "cache_salt", "priority", "metadata", "lora_path", "custom_labels"],
    media: &["mm_processor_kwargs"],
};

/// APIs that generate tokens.
#[rustfmt::skip]
pub(super) static GENERATION: FieldTable = FieldTable {
    plain: &[
        // OpenAI
        "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "n", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs",
        "top_logprobs", "response_format", "best_of", "echo", "suffix", "service_tier", "store",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        // sampling of vLLM and SGLang
        "top_k", "min_p", "repetition_penalty", "length_penalty", "use_beam_search",
        "early_stopping", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
        "min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "bad_words",
        "allowed_token_ids", "prompt_logprobs", "logprob_token_ids", "repetition_detection",
        "stop_regex", "no_stop_trim", "custom_params",
        // structured output
        "structured_outputs", "structural_tag", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern",
        "guided_structural_tag", "json_schema", "regex", "ebnf",
        // reasoning
        "reasoning", "reasoning_effort", "include_reasoning", "thinking", "enable_thinking",
        "thinking_budget", "thinking_token_budget", "separate_reasoning", "stream_reasoning",
        // input
        "truncate_prompt_tokens", "truncation_side", "add_special_tokens", "images_config",
        "video_config", "use_audio_in_video", "max_dynamic_patch", "min_dynamic_patch",
        // what is returned
        "return_tokens_as_token_ids", "return_token_ids", "return_token_offsets",
        "return_prompt_text", "return_prompt_token_ids", "return_hidden_states",
        "return_routed_experts", "routed_experts_start_len", "routed_experts_prompt_start",
        "return_cached_tokens_details", "return_spec_tokens_details", "return_meta_info",
        "return_sampling_mask", "return_assistant_tokens_mask", "stream_interval",
        "stream_include_usage", "stream_continuous_usage_stats",
    ],
    media: &[],
};

/// `/v1/completions`
pub(super) static COMPLETIONS: FieldTable = FieldTable { plain: &["prompt"], media: &[] };

/// Options of chats, which some other APIs have too.
#[rustfmt::skip]
pub(super) static CHAT_OPTIONS: FieldTable = FieldTable {
    plain: &[
        "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "documents",
        "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs",
        "media_io_kwargs", "add_special_tokens",
    ],
    media: &["messages"],
};

/// `/v1/chat/completions`
pub(super) static CHAT: FieldTable = FieldTable {
    plain: &[
        "audio",
        "modalities",
        "prediction",
        "verbosity",
        "web_search_options",
        "task",
        "input_ids",
    ],
    media: &[],
};

/// `/v1/responses`
#[rustfmt::skip]
pub(super) static RESPONSES: FieldTable = FieldTable {
    plain: &[
        "background", "include", "instructions", "max_output_tokens", "max_tool_calls", "prompt",
        "text", "tool_choice", "tools", "parallel_tool_calls", "truncation", "verbosity",
        "enable_response_messages", "chat_template_kwargs", "media_io_kwargs",
        "context_management",
    ],
    media: &["input"],
};

/// Embeddings, pooling and classification.
#[rustfmt::skip]
pub(super) static POOLING: FieldTable = FieldTable {
    plain: &[
        "encoding_format", "embed_dtype", "endianness", "dimensions", "use_activation",
        "normalize", "activation", "softmax", "task", "add_special_tokens",
        "truncate_prompt_tokens", "truncation_side", "truncate",
    ],
    media: &["input", "data"],
};

/// Scores and reranking.
#[rustfmt::skip]
pub(super) static SCORING: FieldTable = FieldTable {
    plain: &[
        "top_n", "return_documents", "max_tokens_per_query", "max_tokens_per_doc", "instruction",
        "instruct", "use_activation", "activation", "softmax", "chat_template",
        "chat_template_kwargs", "truncate_prompt_tokens", "truncation_side", "label_token_ids",
        "apply_softmax", "item_first", "rank_fields", "add_special_tokens",
    ],
    media: &["query", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2"],
};

/// `/tokenize` and `/detokenize`
pub(super) static TOKENIZE: FieldTable = FieldTable {
    plain: &["prompt", "tokens", "return_token_strs", "skip_special_tokens", "reasoning_effort"],
    media: &[],
};

/// `/v1/messages/count_tokens`
pub(super) static COUNT_TOKENS: FieldTable =
    FieldTable { plain: &["system", "thinking", "output_config", "betas"], media: &[] };

/// All tables, for paths whose API is not known.
pub(super) static ALL: [&FieldTable; 10] = [
    &ANY,
    &GENERATION,
    &COMPLETIONS,
    &CHAT_OPTIONS,
    &CHAT,
    &RESPONSES,
    &POOLING,
    &SCORING,
    &TOKENIZE,
    &COUNT_TOKENS,
];

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_execution::transfer_fields;

    #[test]
    fn no_field_that_names_cached_blocks_is_allowed_anywhere() {
        for field in transfer_fields() {
            assert_eq!(treatment(&ALL, field), None, "{field}");
            assert_eq!(argument_treatment(field), None, "{field}");
        }
    }

    #[test]
    fn no_field_is_both_allowed_and_refused() {
        let passed = ALL.iter().flat_map(|table| table.plain.iter().chain(table.media));
        for field in passed {
            let is_special = SCOPED.contains(field) || REMOVED.contains(field);
            assert!(!is_special && refusal(field).is_none(), "{field}");
        }
    }
}
