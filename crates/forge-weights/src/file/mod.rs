//! The weight file: rows gathered from the graph's weights (`gather`), encoded (`matrix`, `encoded_row`), placed
//! (`layout`), written (`write`, `in_order`) and read again (`packed_file`).

pub(crate) mod encoded_row;
pub(crate) mod gather;
pub(crate) mod in_order;
pub(crate) mod layout;
pub(crate) mod matrix;
pub(crate) mod packed_file;
pub(crate) mod write;
