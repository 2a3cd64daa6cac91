//! All architectures of GGUF files that are read. A file declares those that share a translation.

mod deepseek2;
mod dense;
mod gemma;
mod gemma4;
mod glm4_moe;
mod gpt2;
mod gpt_oss;
mod llama;
mod qwen_moe;
pub(crate) mod qwen_next;

use crate::gguf::family::Family;

/// All architectures, in the order of messages.
pub(crate) const ALL: [&Family; 23] = [
    &dense::COHERE2,
    &deepseek2::DEEPSEEK2,
    &dense::ERNIE4_5,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma4::GEMMA4,
    &dense::GLM4,
    &glm4_moe::GLM4MOE,
    &gpt2::GPT2,
    &gpt_oss::GPT_OSS,
    &dense::GRANITE,
    &dense::HUNYUAN_DENSE,
    &llama::LLAMA,
    &dense::OLMO2,
    &dense::PHI3,
    &dense::QWEN2,
    &qwen_moe::QWEN2MOE,
    &dense::QWEN3,
    &qwen_moe::QWEN3MOE,
    &qwen_next::QWEN3NEXT,
    &qwen_next::QWEN35,
    &qwen_next::QWEN35MOE,
    &dense::SMOLLM3,
];

/// The architecture of files that may be of that Hugging Face class.
pub(crate) fn of_class(class: &str) -> Option<&'static Family> {
    let is_of = |family: &&Family| {
        let mut classes = std::iter::once(&family.class).chain(family.other_classes);
        classes.any(|[name, _]| *name == class)
    };
    ALL.into_iter().find(is_of)
}

/// The architecture of that name.
pub(crate) fn from_name(name: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.name == name)
}
