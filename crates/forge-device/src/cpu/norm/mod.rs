//! RMSNorm, LayerNorm and residual additions.

pub(crate) mod layer_norm;
pub(crate) mod norm_add;
pub(crate) mod rms_norm;
