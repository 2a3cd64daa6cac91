//! Number formats: encoding and decoding of rows.
//!
//! `row` dispatches to the file of a format, or of a group of formats. These share `range_error`, `rounding`,
//! `codes` (order of the bits), and `affine_levels` and `weighted_fit` (the search for scales).

pub(crate) mod affine;
pub(crate) mod affine_levels;
pub(crate) mod codes;
pub(crate) mod fp8;
pub(crate) mod iq4;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub(crate) mod range_error;
pub(crate) mod rounding;
pub(crate) mod row;
pub(crate) mod superblock;
pub(crate) mod symmetric;
pub(crate) mod weighted_fit;
