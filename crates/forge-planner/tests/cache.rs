//! KV cache types: the types that a model supports, and their size in bytes.

// Other tests use the other sizes.
#[allow(dead_code)]
mod support;

use forge_ir::Diagnostic;
use forge_ops::Format;
use forge_planner::{Options, Plan, Quant, plan};
use support::{ONE, Shape, graph};

fn cached(width: usize, cache: Format) -> Result<Plan, Vec<Diagnostic>> {
    let shape = Shape { width, layers: 2, ..ONE };
    let options = Options { quant: Quant::To(Format::Q4_0), cache: Some(cache), ..Options::default() };
    plan(&graph(&shape), &options)
}

#[test]
fn the_cache_type_determines_the_bytes_of_a_position() {
    // Two layers of eight heads, keys and values.
    for (cache, bytes) in [(Format::F32, 64 * 4), (Format::F16, 64 * 2), (Format::Q8_0, 64 + 2 * 2)] {
        let plan = cached(64, cache).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert_eq!(plan.cache_bytes_per_position(), 2 * 8 * 2 * bytes, "{cache}");
        assert_eq!(plan.state_bytes(128, 3), 2 * 8 * 2 * bytes as u64 * 128 * 3, "{cache}");
    }
}

#[test]
fn q8_0_caches_need_heads_of_whole_blocks() {
    for width in [32, 96, 128, 256] {
        assert!(cached(width, Format::Q8_0).is_ok(), "{width}");
    }
    for (width, cache, words) in [
        (80, Format::Q8_0, ["head size 80", "--kv-cache-type f16"]),
        (64, Format::Q4_0, ["q4_0", "--kv-cache-type f16"]),
    ] {
        let faults = cached(width, cache).expect_err("the cache is rejected");
        let message = format!("{faults:?}");
        assert!(faults.len() == 1 && words.iter().all(|word| message.contains(word)), "{message}");
    }
}
