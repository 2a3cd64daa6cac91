//! All architectures of GGUF files that are read. A file declares those that share a translation.

mod dense;
mod gemma;
mod gpt2;
mod llama;

use crate::gguf::family::Family;

/// All architectures, in the order of messages.
pub(crate) const ALL: [&Family; 14] = [
    &dense::COHERE2,
    &dense::ERNIE4_5,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &dense::GLM4,
    &gpt2::GPT2,
    &dense::GRANITE,
    &dense::HUNYUAN_DENSE,
    &llama::LLAMA,
    &dense::OLMO2,
    &dense::PHI3,
    &dense::QWEN2,
    &dense::QWEN3,
    &dense::SMOLLM3,
];

/// The architecture of that name.
pub(crate) fn from_name(name: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.name == name)
}
