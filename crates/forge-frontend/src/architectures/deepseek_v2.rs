//! DeepSeek V2: attention over latents, and experts in all layers but the first few, beside some that have every row. Scores
//! are a softmax; experts of a row may have to be of a few groups.

use super::{Architecture, Blueprint};
use crate::attention::rope;
use crate::config::Section;
use crate::decoder::{Decoder, Defaults};
use crate::experts::{Experts, Shared, groups};
use crate::latent::LatentAttention;
use crate::mlp::Mlp;
use forge_ir::{Pairing, Scores};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    class: "DeepseekV2ForCausalLM",
    family: "deepseek_v2",
    hub: &["deepseek-ai/DeepSeek-V2-Lite-Chat"],
    read,
};

const DEFAULTS: Defaults = Defaults { pairing: Pairing::Interleaved, ..Defaults::USUAL };

/// Two ways in which the published files say that experts are chosen, and the groups of the second.
const METHODS: [&str; 2] = ["greedy", "group_limited_greedy"];

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read_unrotated(config, &DEFAULTS);
    let turns = rope(model.attention.width, model.context, &DEFAULTS);
    let block = LatentAttention::read(config, &model.attention, model.norm, turns);
    model.turn(block.rotation.clone());
    model.latent = Some(block);
    model.mlp.bias = config.flag_or("mlp_bias", false);

    let inner = config.count_or("moe_intermediate_size", 1407);
    let keys = &["n_routed_experts", "num_local_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, inner), Scores::Softmax);
    experts.choice.factor = config.number_or("routed_scaling_factor", 1.0) as f32;
    let method = config.word("topk_method").unwrap_or(METHODS[0]);
    if method == METHODS[1] {
        experts.choice.groups = groups(config, &experts, 1, [1, 1]);
    } else {
        let why = format!("forge knows {} and {}", METHODS[0], METHODS[1]);
        if method != METHODS[0] {
            config.refuse("topk_method", &why, &[]);
        }
        config.pass_over("n_group");
        config.pass_over("topk_group");
    }
    config.only("scoring_func", "softmax", "forge knows DeepSeek V2 with a softmax of scores alone");
    config.only("moe_layer_freq", 1, "forge knows DeepSeek V2 with experts in every layer but the first few");
    let mlp = Mlp { inner: inner * config.count_or("n_shared_experts", 2), ..model.mlp };
    experts.shared = Some(Shared { mlp, module: "shared_experts", gate: None });
    let first = config.number_or("first_k_dense_replace", 0.0);
    experts.dense = (0..model.layers).map(|layer| (layer as f64) < first).collect();
    model.experts = Some(experts);
    Box::new(model)
}
