//! DeepSeek V3: DeepSeek V2 with sigmoid router scores, a correction bias, and group-limited routing in which
//! a group's score is the sum of its two best experts.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::attention::rope_config;
use crate::layers::experts::{Experts, groups};
use crate::layers::mla::LatentAttention;
use forge_ir::{Pairing, Scores};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "DeepseekV3ForCausalLM",
    family: "deepseek_v3",
    hub: &["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "moonshotai/Moonlight-16B-A3B-Instruct"],
    read,
};

const DEFAULTS: Defaults =
    Defaults { context: 4096, key_heads: Some(128), pairing: Pairing::Interleaved, ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let neighbors = config.flag_or("rope_interleave", true);
    let pairing = if neighbors { Pairing::Interleaved } else { Pairing::Half };
    let defaults = Defaults { pairing, ..DEFAULTS };
    let mut model = Decoder::read_without_rope(config, &defaults);
    let rope = rope_config(model.attention.width, model.context, &defaults);
    let block = LatentAttention::read(config, &model.attention, model.norm, rope);
    model.set_rope(block.rope.clone());
    model.latent = Some(block);

    let inner = config.count_or("moe_intermediate_size", 2048);
    let keys = &["n_routed_experts", "num_local_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, inner), Scores::Sigmoid);
    experts.choice.correction = Some("e_score_correction_bias");
    experts.choice.renormalize = config.flag_or("norm_topk_prob", true);
    experts.choice.factor = config.positive_or("routed_scaling_factor", 2.5) as f32;
    experts.choice.groups = groups(config, &experts, 2, [8, 4]);
    experts.read_deepseek(config, &model.mlp, model.layers, [1, 3]);
    model.experts = Some(experts);
    // Multi-token prediction layers follow the last; they do not change logits.
    model.ignores_further_layers = true;
    Box::new(model)
}
