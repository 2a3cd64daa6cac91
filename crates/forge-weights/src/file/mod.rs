//! The weight file: rows gathered from the graph's weights (`gather`), encoded (`matrix`), placed (`layout`),
//! written (`write`) and read again (`packed_file`).

pub(crate) mod gather;
pub(crate) mod layout;
pub(crate) mod matrix;
pub(crate) mod packed_file;
pub(crate) mod write;
