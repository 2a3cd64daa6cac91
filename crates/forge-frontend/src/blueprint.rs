//! What an architecture is: it reads a configuration into a [`Blueprint`], which builds the graph over the
//! tensors.

use crate::checkpoint::tensors::Tensors;
use crate::config::section::Section;
use crate::graph::builder::Builder;
use forge_ir::Apply;

/// A supported architecture.
pub(crate) struct Architecture {
    /// `architectures` in config.json.
    pub(crate) class: &'static str,
    /// `model_type` in config.json.
    pub(crate) family: &'static str,
    /// Example repositories on the hub.
    pub(crate) hub: &'static [&'static str],
    /// Reads the configuration into a description. Problems are recorded in the configuration.
    pub(crate) read: fn(&Section<'_>) -> Box<dyn Blueprint>,
}

/// A model's description without its tensors.
pub(crate) trait Blueprint {
    /// Adjusts the description to the checkpoint's tensors before building. Returns notes for the user.
    fn find(&mut self, _tensors: &Tensors) -> Vec<String> {
        Vec::new()
    }

    /// Builds all layers and binds their tensors.
    fn build(&self, builder: &mut Builder<'_>) -> Parts;
}

/// The parts of a built graph.
pub(crate) struct Parts {
    /// Rows of the embedding table and of the head.
    pub(crate) vocabulary: usize,
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Maximum context length of the model.
    pub(crate) context: usize,
    /// Tensors that may be stored although the second of each pair is used instead; the two must be equal.
    pub(crate) copies: Vec<(String, String)>,
    /// Token ids -> stream.
    pub(crate) prologue: Apply,
    /// stream -> stream
    pub(crate) layers: Vec<Apply>,
    /// stream -> logits
    pub(crate) epilogue: Apply,
}
