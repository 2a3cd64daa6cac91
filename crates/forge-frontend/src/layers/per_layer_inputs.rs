//! Per-layer inputs (Gemma's per-layer embeddings): a second embedding table plus a projection of the
//! embedding, computed for all layers before the first. Each layer gates its columns and adds a projection of
//! them to the residual stream.

use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::graph::builder::Layer;
use forge_ir::ValueId;

/// Description of per-layer inputs.
pub(crate) struct Inputs {
    /// Rows of their embedding table.
    vocabulary: usize,
    /// Width of one layer's input.
    width: usize,
}

impl Inputs {
    /// Reads their configuration keys; `None` if the width is 0.
    pub(crate) fn read(config: &Section<'_>, tokens: usize) -> Option<Inputs> {
        let width = whole_number(config, "hidden_size_per_layer_input", 256);
        if width == 0 {
            config.mark_inert("vocab_size_per_layer_input");
            return None;
        }
        let vocabulary = config.count_or("vocab_size_per_layer_input", 262_144);
        if vocabulary < tokens {
            let message = format!("vocab_size_per_layer_input is {vocabulary}; vocab_size is {tokens}");
            config.report_inconsistency("vocab_size_per_layer_input", message);
        }
        Some(Inputs { vocabulary, width })
    }

    /// Computes all layers' inputs from the embedding.
    pub(crate) fn of_all(&self, embed: &mut Layer<'_, '_>, stream: ValueId, decoder: &Decoder) -> ValueId {
        let (hidden, all) = (decoder.hidden, decoder.layers * self.width);
        let module = |name: &str| decoder.module(name);
        let shape = [all, hidden];
        let projected =
            embed.linear("projected", stream, &module("per_layer_model_projection"), shape, false);
        let scaled = embed.scale("scaled", projected, (hidden as f64).powf(-0.5) as f32);
        let gain = ("inputs_gain", &*module("per_layer_projection_norm"));
        let normed = embed.norm("normed", scaled, gain, [decoder.layers, self.width], decoder.norm);
        let table = module("embed_tokens_per_layer.weight");
        let table = embed.weight("inputs_table", &table, &[self.vocabulary, all]);
        let looked_up = embed.embed("looked_up", table, (self.width as f64).sqrt() as f32);
        let sum = embed.add("sum", normed, looked_up);
        embed.scale("inputs", sum, 0.5_f64.sqrt() as f32)
    }

    /// A layer's contribution to the residual stream.
    pub(crate) fn build(
        &self,
        layer: &mut Layer<'_, '_>,
        stream: ValueId,
        at: &str,
        decoder: &Decoder,
        index: usize,
    ) -> ValueId {
        let [narrow, wide] = [[self.width, decoder.hidden], [decoder.hidden, self.width]];
        let gate = layer.linear("input_gate", stream, &format!("{at}.per_layer_input_gate"), narrow, false);
        let gate = layer.activate("activated_gate", gate, decoder.mlp.activation);
        let own = layer.per_layer_input("own_input", index * self.width..(index + 1) * self.width);
        let gated = layer.multiply("gated_input", gate, own);
        let branch = layer.linear("input", gated, &format!("{at}.per_layer_projection"), wide, false);
        let branch = decoder.normed(layer, "input", branch, &format!("{at}.post_per_layer_input_norm"));
        layer.add("stream", stream, branch)
    }
}

/// A non-negative integer.
pub(crate) fn whole_number(config: &Section<'_>, key: &str, usual: usize) -> usize {
    let number = config.number_or(key, usual as f64);
    if number < 0.0 || number.fract() != 0.0 || number > f64::from(u32::MAX) {
        config.report_inconsistency(key, format!("{key} is {number}; it must be a non-negative integer"));
        return usual;
    }
    number as usize
}
