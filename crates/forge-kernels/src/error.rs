//! Errors of kernel rendering.

use forge_msl::DeclError;

/// A kernel that cannot be rendered, with the offending value and what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The name is not a valid kernel name.
    #[error(
        "invalid kernel name `{name}`: use letters, digits and underscores, and no C++ keyword or support function"
    )]
    Name {
        /// The requested name.
        name: String,
    },
    /// A dimension is zero.
    #[error("kernel `{kernel}`: {what} is 0; leave the kernel out of the plan")]
    Zero {
        /// Name of the instance.
        kernel: String,
        /// The dimension.
        what: &'static str,
    },
    /// A dimension is out of the kernel's range.
    #[error("kernel `{kernel}`: {what} is {value}, and must be {must}")]
    Dimension {
        /// Name of the instance.
        kernel: String,
        /// The dimension.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The allowed values, and what to do otherwise.
        must: String,
    },
    /// A number that has to be a literal is infinite or NaN.
    #[error("kernel `{kernel}`: {what} is {value}: it has to be finite; check the configuration")]
    NotFinite {
        /// Name of the instance.
        kernel: String,
        /// The number.
        what: &'static str,
        /// Its value.
        value: f32,
    },
    /// The KV cache has a format that attention does not support.
    #[error("kernel `{kernel}`: unsupported KV cache format {format}: use f32, f16 or q8_0")]
    Cache {
        /// Name of the instance.
        kernel: String,
        /// The requested format.
        format: forge_ops::Format,
    },
    /// The template failed to render: a bug in the kernel sources.
    #[error("kernel `{kernel}`: cannot render the template: {source:#}")]
    Template {
        /// Name of the instance.
        kernel: String,
        /// Error of minijinja.
        source: minijinja::Error,
    },
    /// The rendered source is not a valid kernel declaration.
    #[error("kernel `{kernel}`: invalid source: {source}")]
    Declaration {
        /// Name of the instance.
        kernel: String,
        /// Error of the parser.
        source: DeclError,
    },
}
