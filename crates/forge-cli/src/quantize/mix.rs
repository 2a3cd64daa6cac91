//! llama.cpp's quantization mixes, such as `--quant Q4_K_M`: more bits for the matrices that are most
//! sensitive.
//!
//! A mix has one format for most matrices and another for the output matrix.
//!
//! - `_M` mixes store the value and down projections of half of the layers in q6_k: the first and the last
//!   eighth, and every third layer in between.
//! - `Q4_K_S` stores the value projection of four layers and the down projection of the first eighth in q5_k.
//! - Rows that are not a multiple of 256 do not fit these formats. llama.cpp stores such matrices in q5_0,
//!   q5_1 and q8_0; forge uses affine4_32, affine5_32 and q8_0.
//!
//! As with `auto:BITS`, the mix becomes overrides by exact tensor name, placed before the user's.

use crate::checkpoint::Directory;
use crate::error::Error;
use crate::terminal;
use forge_frontend::LoadedCheckpoint;
use forge_ir::{Format, ParamId, Weight, WeightId};
use forge_planner::{Options, Override, Quant};
use std::collections::{BTreeMap, BTreeSet};

/// A llama.cpp quantization mix.
#[derive(Debug, PartialEq)]
pub(crate) struct Mix {
    /// llama.cpp's spelling.
    pub(crate) name: &'static str,
    most: Format,
    sensitive: SensitiveLayers,
}

/// Which matrices get more bits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SensitiveLayers {
    /// None.
    Nothing,
    /// Value and down projections of the first layers, in q5_k.
    FirstLayers,
    /// Value and down projections of half of the layers, in q6_k.
    HalfOfLayers,
}

/// The role of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Output,
    Value(usize),
    Down(usize),
    /// Fused query, key and value projection.
    FusedAttention,
    Other,
}

impl Mix {
    /// All mixes.
    pub(crate) const ALL: [Mix; 4] = [
        Mix { name: "Q4_K_S", most: Format::Q4K, sensitive: SensitiveLayers::FirstLayers },
        Mix { name: "Q4_K_M", most: Format::Q4K, sensitive: SensitiveLayers::HalfOfLayers },
        Mix { name: "Q5_K_S", most: Format::Q5K, sensitive: SensitiveLayers::Nothing },
        Mix { name: "Q5_K_M", most: Format::Q5K, sensitive: SensitiveLayers::HalfOfLayers },
    ];

    /// The mix of that name, ignoring case.
    pub(crate) fn from_name(name: &str) -> Option<&'static Mix> {
        const ALL: &[Mix] = &Mix::ALL;
        ALL.iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// The format of a matrix in a model of `layers` layers.
    fn format(&self, role: Role, layers: usize) -> Format {
        match (self.sensitive, role) {
            (_, Role::Output) => Format::Q6K,
            (SensitiveLayers::HalfOfLayers, Role::Value(layer) | Role::Down(layer))
                if has_more_bits(layer, layers) =>
            {
                Format::Q6K
            }
            (SensitiveLayers::HalfOfLayers, Role::FusedAttention) => {
                if self.most == Format::Q4K {
                    Format::Q5K
                } else {
                    Format::Q6K
                }
            }
            (SensitiveLayers::FirstLayers, Role::Value(layer)) if layer < 4 => Format::Q5K,
            (SensitiveLayers::FirstLayers, Role::Down(layer)) if layer < layers / 8 => Format::Q5K,
            _ => self.most,
        }
    }

    /// Chooses a format for each matrix. Returns the options and updates the graph.
    pub(crate) fn choose(
        &self,
        opened: &mut LoadedCheckpoint,
        checkpoint: &Directory,
        options: Options,
    ) -> Result<Options, Error> {
        let faults = |faults| Error::Faults { faults, root: checkpoint.root().to_owned() };
        // A placeholder format that fits any row length: weights planned in it are free to change.
        let any = Format::Q8_0;
        let planned = Options { quant: Quant::To(any), ..options.clone() };
        opened.graph = forge_planner::untie(opened.graph.clone(), &planned).map_err(faults)?;
        let graph = &opened.graph;
        let plan = forge_planner::plan(graph, &planned).map_err(faults)?;
        let free: BTreeSet<WeightId> = plan
            .weights
            .iter()
            .filter(|packed| packed.format == any)
            .flat_map(|packed| packed.parts.iter().copied())
            .collect();

        let weights_of = |apply| {
            (0..graph.body(apply).params.len())
                .filter_map(move |param| apply.weight(graph.body(apply), ParamId(param)))
        };
        let mut roles: BTreeMap<WeightId, Role> = BTreeMap::new();
        for (layer, apply) in graph.layers.iter().enumerate() {
            for id in weights_of(apply) {
                roles.entry(id).or_insert_with(|| role(&graph.weights[id.0].tensor, layer));
            }
        }
        roles.extend(weights_of(&graph.epilogue).map(|id| (id, Role::Output)));

        let mut overrides = Vec::new();
        let mut counts: BTreeMap<Format, usize> = BTreeMap::new();
        let mut misfits = 0;
        for id in free {
            let weight = &graph.weights[id.0];
            let mix_format = self.format(roles.get(&id).copied().unwrap_or(Role::Other), graph.layers.len());
            let format = format_or_fallback(mix_format, weight);
            misfits += usize::from(format != mix_format);
            *counts.entry(format).or_default() += 1;
            if format != any {
                overrides.push(Override::exactly(&weight.tensor, Quant::To(format)));
            }
        }
        let counts: Vec<String> =
            counts.iter().map(|(format, count)| format!("{format} × {count}")).collect();
        let misfits = match misfits {
            0 => String::new(),
            count => {
                format!("; {count} fall back to another format: their rows are not a multiple of 256")
            }
        };
        terminal::stage(
            "Choosing",
            &format!("{} (llama.cpp's mix): {}{misfits}", self.name, counts.join(", ")),
        );
        overrides.extend(options.overrides);
        Ok(Options { quant: Quant::To(any), overrides, ..options })
    }
}

/// Whether the layer is in the half that gets more bits: the first and the last eighth, and every third in
/// between.
fn has_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The role of a layer's matrix, from its safetensors or GGUF name.
fn role(tensor: &str, layer: usize) -> Role {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    match module.rsplit('.').next().unwrap_or(module) {
        "v_proj" | "attn_v" => Role::Value(layer),
        "down_proj" | "ffn_down" | "ffn_down_exps" | "w2" | "fc2" | "dense_4h_to_h" => Role::Down(layer),
        "qkv_proj" | "attn_qkv" | "query_key_value" | "c_attn" => Role::FusedAttention,
        _ => Role::Other,
    }
}

/// The format, or a fallback that fits the row length.
fn format_or_fallback(format: Format, weight: &Weight) -> Format {
    let named = |name| Format::from_name(name).unwrap_or(Format::Q8_0);
    match format {
        format if format.takes(weight.columns()) => format,
        Format::Q4K => named("affine4_32"),
        Format::Q5K => named("affine5_32"),
        _ => Format::Q8_0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats of the value projections of 16 layers, one letter each.
    fn values(name: &str) -> String {
        let mix = Mix::from_name(name).unwrap();
        let letter = |layer| match mix.format(Role::Value(layer), 16) {
            Format::Q4K => '4',
            Format::Q5K => '5',
            Format::Q6K => '6',
            _ => '?',
        };
        (0..16).map(letter).collect()
    }

    #[test]
    fn sensitive_layers_get_more_bits() {
        assert_eq!(values("Q4_K_M"), "6644644644644666");
        assert_eq!(values("Q5_K_M"), "6655655655655666");
        assert_eq!(values("Q4_K_S"), "5555444444444444");
        assert_eq!(values("Q5_K_S"), "5555555555555555");
        let mix = Mix::from_name("q4_k_m").unwrap();
        assert_eq!(mix.format(Role::Output, 16), Format::Q6K);
        assert_eq!(mix.format(Role::Other, 16), Format::Q4K);
        assert_eq!(mix.format(Role::FusedAttention, 16), Format::Q5K);
    }

    #[test]
    fn parses_roles_from_safetensors_and_gguf_names() {
        assert_eq!(role("model.layers.3.self_attn.v_proj.weight", 3), Role::Value(3));
        assert_eq!(role("blk.3.attn_v.weight", 3), Role::Value(3));
        assert_eq!(role("blk.3.ffn_down_exps.weight", 3), Role::Down(3));
        assert_eq!(role("model.layers.3.mlp.experts.7.down_proj.weight", 3), Role::Down(3));
        assert_eq!(role("model.layers.3.self_attn.qkv_proj.weight", 3), Role::FusedAttention);
        assert_eq!(role("model.layers.3.self_attn.q_proj.weight", 3), Role::Other);
    }
}
