//! To be written.

use crate::failure::Failure;
use std::path::Path;

pub(crate) fn command(_crate_directory: &Path, _as_json: bool) -> Result<(), Failure> {
    Err(Failure::other("not yet"))
}
