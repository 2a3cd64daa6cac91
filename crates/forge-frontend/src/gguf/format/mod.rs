//! The file format: `container` reads headers with `reader`, `value` and `types`.

pub(crate) mod container;
pub(crate) mod reader;
pub(crate) mod types;
pub(crate) mod value;
