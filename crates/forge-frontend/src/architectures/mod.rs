//! The supported architectures, one file each, and their list.

pub(crate) mod cohere2;
pub(crate) mod deepseek_v2;
pub(crate) mod deepseek_v3;
pub(crate) mod ernie4_5;
pub(crate) mod gemma2;
pub(crate) mod gemma3;
pub(crate) mod gemma4;
pub(crate) mod glm4;
pub(crate) mod glm4_moe;
pub(crate) mod gpt2;
pub(crate) mod gpt_oss;
pub(crate) mod granite;
pub(crate) mod hunyuan_v1_dense;
pub(crate) mod llama;
pub(crate) mod mistral;
pub(crate) mod mixtral;
pub(crate) mod olmo2;
pub(crate) mod phi3;
pub(crate) mod qwen2;
pub(crate) mod qwen2_moe;
pub(crate) mod qwen3;
pub(crate) mod qwen3_5;
pub(crate) mod qwen3_5_moe;
pub(crate) mod qwen3_moe;
pub(crate) mod qwen3_next;
pub(crate) mod smollm3;

use crate::blueprint::Architecture;

/// All architectures, in the order of messages.
pub(crate) const ALL: &[Architecture] = &[
    cohere2::ARCHITECTURE,
    deepseek_v2::ARCHITECTURE,
    deepseek_v3::ARCHITECTURE,
    ernie4_5::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    gemma3::WRAPPED,
    gemma4::ARCHITECTURE,
    gemma4::WRAPPED,
    glm4::ARCHITECTURE,
    glm4_moe::ARCHITECTURE,
    gpt2::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
    granite::ARCHITECTURE,
    hunyuan_v1_dense::ARCHITECTURE,
    llama::ARCHITECTURE,
    mistral::ARCHITECTURE,
    mixtral::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    phi3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen2_moe::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen3_5::ARCHITECTURE,
    qwen3_5::WRAPPED,
    qwen3_5_moe::ARCHITECTURE,
    qwen3_5_moe::WRAPPED,
    qwen3_moe::ARCHITECTURE,
    qwen3_next::ARCHITECTURE,
    smollm3::ARCHITECTURE,
];

/// Multimodal classes and their text models. transformers loads the text model if the configuration is that
/// of the text model, whatever class it names.
pub(crate) const TEXT_MODELS: [[&Architecture; 2]; 2] =
    [[&qwen3_5::WRAPPED, &qwen3_5::ARCHITECTURE], [&qwen3_5_moe::WRAPPED, &qwen3_5_moe::ARCHITECTURE]];
