//! Parts of a layer. Each is read from the configuration and builds its nodes.

pub(crate) mod attention;
pub(crate) mod delta_net;
pub(crate) mod experts;
pub(crate) mod mla;
pub(crate) mod mlp;
pub(crate) mod per_layer_inputs;
pub(crate) mod rope;
pub(crate) mod rope_keys;
pub(crate) mod rope_scaling;
pub(crate) mod sliding_window;
