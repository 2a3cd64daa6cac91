//! Selection of a simpler kernel by an environment variable, to find out on a user's machine whether a kernel is at
//! fault.

use std::sync::LazyLock;

/// With `1`, prefill attention uses the kernel for small batches.
const SIMPLE_ATTENTION: &str = "FORGE_SIMPLE_ATTENTION";

/// The number of rows that attention selects its kernel for: `rows`, or 1 with `FORGE_SIMPLE_ATTENTION=1`. The
/// kernel for small batches takes any number of rows: each has its own threadgroups, without matrix products.
pub fn attention_rows(rows: u32) -> u32 {
    static IS_SIMPLE: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os(SIMPLE_ATTENTION).is_some_and(|value| value == "1"));
    if *IS_SIMPLE { 1 } else { rows }
}
