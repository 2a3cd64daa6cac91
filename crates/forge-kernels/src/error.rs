//! What can be wrong with a request for a kernel.

use crate::decl::DeclError;

/// A kernel that cannot be rendered: the value that is in the way, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The name cannot be a kernel's.
    #[error(
        "`{name}` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has"
    )]
    Name {
        /// As asked for.
        name: String,
    },
    /// A dimension is zero.
    #[error("kernel `{kernel}`: {what} is 0; leave the kernel out of the plan")]
    Zero {
        /// The instance's name.
        kernel: String,
        /// Which dimension.
        what: &'static str,
    },
    /// A dimension is not among those that the kernel can be made for.
    #[error("kernel `{kernel}`: {what} is {value}, and must be {must}")]
    Dimension {
        /// The instance's name.
        kernel: String,
        /// Which dimension.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it may be, and what to do otherwise.
        must: String,
    },
    /// A number that is to be a literal is infinite or not a number.
    #[error(
        "kernel `{kernel}`: {what} is {value}, which no literal can say; mend the configuration it comes from"
    )]
    NotFinite {
        /// The instance's name.
        kernel: String,
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f32,
    },
    /// The cache has a format that attention cannot read.
    #[error(
        "kernel `{kernel}`: keys and values in {format}; attention reads f32, f16 and q8_0, so choose one of these"
    )]
    Cache {
        /// The instance's name.
        kernel: String,
        /// The format asked for.
        format: forge_ir::Format,
    },
    /// The template itself failed: a defect of the catalogue.
    #[error("kernel `{kernel}`: its template does not render: {source:#}")]
    Template {
        /// The instance's name.
        kernel: String,
        /// What minijinja said.
        source: minijinja::Error,
    },
    /// The rendered text is not a kernel that we can launch.
    #[error("kernel `{kernel}`: its text is refused: {source}")]
    Declaration {
        /// The instance's name.
        kernel: String,
        /// What the parser said.
        source: DeclError,
    },
}
