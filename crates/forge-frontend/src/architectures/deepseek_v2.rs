//! DeepSeek V2: MLA, and experts with shared experts in all layers but the first few. Router scores are
//! softmax; routing may be group-limited.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::attention::rope_config;
use crate::layers::experts::{Experts, groups};
use crate::layers::mla::LatentAttention;
use forge_ir::{Pairing, Scores};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "DeepseekV2ForCausalLM",
    family: "deepseek_v2",
    hub: &["deepseek-ai/DeepSeek-V2-Lite-Chat"],
    read,
};

const DEFAULTS: Defaults = Defaults { pairing: Pairing::Interleaved, ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read_without_rope(config, &DEFAULTS);
    let rope = rope_config(model.attention.width, model.context, &DEFAULTS);
    let block = LatentAttention::read(config, &model.attention, model.norm, rope);
    model.set_rope(block.rope.clone());
    model.latent = Some(block);
    model.mlp.bias = config.flag_or("mlp_bias", false);

    let inner = config.count_or("moe_intermediate_size", 1407);
    let keys = &["n_routed_experts", "num_local_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, inner), Scores::Softmax);
    experts.choice.factor = config.positive_or("routed_scaling_factor", 1.0) as f32;
    match config.word("topk_method") {
        None | Some("greedy") => {
            config.mark_inert("n_group");
            config.mark_inert("topk_group");
        }
        Some("group_limited_greedy") => experts.choice.groups = groups(config, &experts, 1, [1, 1]),
        Some(_) => config.reject("topk_method", "expected greedy or group_limited_greedy", &[]),
    }
    experts.read_deepseek(config, &model.mlp, model.layers, [2, 0]);
    model.experts = Some(experts);
    Box::new(model)
}
