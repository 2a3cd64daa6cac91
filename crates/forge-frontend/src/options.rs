//! User options.

/// How a checkpoint is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The model's name.
    pub name: String,
    /// Keys of config.json to ignore although they are unsupported: `key` or `section.key`.
    pub allow_unknown: Vec<String>,
}
