//! HunYuan V1 Dense: the standard decoder with a norm of each query and key head after RoPE. The RoPE base
//! may be stretched (alpha); attention may have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::attention::HeadNorm;
use crate::layers::rope_scaling::Kinds;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "HunYuanDenseV1ForCausalLM",
    family: "hunyuan_v1_dense",
    hub: &["tencent/Hunyuan-0.5B-Instruct", "tencent/Hunyuan-1.8B-Instruct"],
    read,
};

const DEFAULTS: Defaults =
    Defaults { epsilon: ("rms_norm_eps", 1e-5), scaling: Kinds::Alpha, ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.head_norm = Some(HeadNorm {
        modules: ["query_layernorm", "key_layernorm"],
        after_rope: true,
        ..HeadNorm::per_head(model.norm)
    });
    Box::new(model)
}
