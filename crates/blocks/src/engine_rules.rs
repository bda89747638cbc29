//! Whose rules turn the fields of a request into a prompt.

/// The engine whose rules apply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineRules {
    /// vLLM's, and those of any engine that is not known to have others.
    #[default]
    Vllm,
    /// SGLang's.
    Sglang,
}
