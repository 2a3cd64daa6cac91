//! Gated DeltaNet: causal convolution, delta rule, gated RMSNorm.

#[cfg(feature = "recurrent")]
pub(crate) mod causal_conv1d;
#[cfg(feature = "recurrent")]
pub(crate) mod delta_decode;
#[cfg(feature = "recurrent")]
pub(crate) mod delta_rule;
#[cfg(feature = "recurrent")]
pub(crate) mod delta_update;
#[cfg(feature = "recurrent")]
pub(crate) mod gated_rms_norm;
