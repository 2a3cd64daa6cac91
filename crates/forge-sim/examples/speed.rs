//! How fast the executor is: a product of a matrix and a vector, and tiles of matrices, in accesses a second.

use forge_sim::{Program, Sim};
use std::time::Instant;

const TEXT: &str = "#include <metal_stdlib>
using namespace metal;
struct Count { uint n; };
[[max_total_threads_per_threadgroup(128)]]
kernel void vector(device const float* w [[buffer(0)]], device const float* x [[buffer(1)]], device float* y [[buffer(2)]],
                   constant Count& args [[buffer(3)]], uint group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
    const uint row = group * 4u + sg;
    float sum = 0.0f;
    for (uint i = lane; i < args.n; i += 32u) sum += w[row * args.n + i] * x[i];
    sum = simd_sum(sum);
    if (lane == 0u) y[row] = sum;
}
[[max_total_threads_per_threadgroup(128)]]
kernel void wide(device const float4* w [[buffer(0)]], device const float4* x [[buffer(1)]], device float* y [[buffer(2)]],
                 constant Count& args [[buffer(3)]], uint group [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
    const uint row = group * 4u + sg;
    float sum = 0.0f;
    for (uint i = lane; i < args.n / 4u; i += 32u) sum += dot(w[row * args.n / 4u + i], x[i]);
    sum = simd_sum(sum);
    if (lane == 0u) y[row] = sum;
}
[[max_total_threads_per_threadgroup(128)]]
kernel void tiles(device const float* w [[buffer(0)]], device const float* x [[buffer(1)]], device float* y [[buffer(2)]],
                  constant Count& args [[buffer(3)]], uint group [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
    threadgroup float a[32 * 36];
    threadgroup float b[32 * 36];
    simdgroup_float8x8 sum[4];
    for (uint i = 0; i < 4u; i++) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < args.n; k += 32u) {
        for (uint i = tid; i < 1024u; i += 128u) {
            a[i / 32u * 36u + i % 32u] = w[(group * 32u + i / 32u) * args.n + k + i % 32u];
            b[i / 32u * 36u + i % 32u] = x[k + i % 32u];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = 0; j < 32u; j += 8u) {
            simdgroup_float8x8 left, right;
            simdgroup_load(left, a + sg * 8u * 36u + j, 36);
            for (uint i = 0; i < 4u; i++) {
                simdgroup_load(right, b + i * 8u * 36u + j, 36, ulong2(0), true);
                simdgroup_multiply_accumulate(sum[i], left, right, sum[i]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < 4u; i++) simdgroup_store(sum[i], y + (group * 32u + sg * 8u) * 32u + i * 8u, 32);
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let program = Program::compile(TEXT)?;
    println!("compiled in {:?}", start.elapsed());
    let (rows, width) = (1024usize, 2048usize);
    for (kernel, groups, outputs) in
        [("vector", rows / 4, rows), ("wide", rows / 4, rows), ("tiles", rows / 32, rows * 32)]
    {
        let mut sim = Sim::new(&program)?;
        let w = sim.memory.constant(&vec![0u8; rows * width * 4])?;
        let x = sim.memory.floats(&vec![1.0; width])?;
        let y = sim.memory.unwritten(outputs * 4)?;
        let start = Instant::now();
        sim.dispatch(kernel, &[w.read(), x.read(), y.write()], &[width as u32], [groups as u32, 1, 1]);
        let seconds = start.elapsed().as_secs_f64();
        for fault in sim.faults() {
            println!("{fault}");
        }
        let done = sim.counters()[kernel];
        println!(
            "{kernel}: {:.3} s, {:.1} M accesses/s, {:.2} M simdgroup operations/s",
            seconds,
            done.accesses as f64 / seconds / 1e6,
            done.simd as f64 / seconds / 1e6
        );
    }
    Ok(())
}
