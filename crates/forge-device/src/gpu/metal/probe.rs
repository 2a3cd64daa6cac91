//! Test of a GPU: whether it multiplies matrices of a simdgroup as the kernels expect.
//!
//! Apple GPU family 7 (M1, A14) and later have these matrices. The device of a virtual machine reports an older
//! family and has them nevertheless. A small kernel is therefore run on such a device, and its results are
//! compared.

use crate::gpu::metal::library::{compile_options, explain};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType, MTLGPUFamily,
    MTLLibrary, MTLResourceOptions, MTLSize,
};
use std::sync::OnceLock;

type Metal = ProtocolObject<dyn MTLDevice>;

/// Elements of a matrix.
const ELEMENTS: usize = 64;

/// A kernel that multiplies two matrices, in f32 and with factors in f16. It stores each product twice: as a
/// matrix, and element by element from the lanes that hold them.
const SOURCE: &str = "#include <metal_stdlib>
using namespace metal;
[[max_total_threads_per_threadgroup(32)]]
kernel void products(
    device const float* factors [[buffer(0)]],
    device const half* f16_factors [[buffer(1)]],
    device float* results [[buffer(2)]],
    uint lane [[thread_index_in_threadgroup]]) {
    simdgroup_matrix<float, 8, 8> left, right;
    simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_load(left, factors, 8ul);
    simdgroup_load(right, factors + 64u, 8ul);
    simdgroup_multiply_accumulate(sum, left, right, sum);
    simdgroup_store(sum, results, 8ul);
    simdgroup_matrix<half, 8, 8> short_left, short_right;
    simdgroup_matrix<float, 8, 8> short_sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_load(short_left, f16_factors, 8ul);
    simdgroup_load(short_right, f16_factors + 64u, 8ul);
    simdgroup_multiply_accumulate(short_sum, short_left, short_right, short_sum);
    simdgroup_store(short_sum, results + 64u, 8ul);
    const uint row = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint column = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;
    results[128u + row * 8u + column] = sum.thread_elements()[0];
    results[128u + row * 8u + column + 1u] = sum.thread_elements()[1];
    results[192u + row * 8u + column] = short_sum.thread_elements()[0];
    results[192u + row * 8u + column + 1u] = short_sum.thread_elements()[1];
}
";

/// The number of products that the kernel stores.
const PRODUCTS: usize = 4;

/// Whether the kernels can run on a device; if not, why.
pub(crate) fn check_matrices(device: &Metal) -> Result<(), String> {
    static RESULT: OnceLock<Result<(), String>> = OnceLock::new();
    if device.supportsFamily(MTLGPUFamily::Apple7) {
        return Ok(());
    }
    let check = || {
        products_are_correct()
            .map_err(|why| format!("{} cannot run the kernels: {why}: use --device cpu", device.name()))
    };
    RESULT.get_or_init(check).clone()
}

/// Runs the kernel and compares its results. All of them are small integers, so they are exact.
fn products_are_correct() -> Result<(), String> {
    let device = MTLCreateSystemDefaultDevice().ok_or("no Metal device found")?;
    let library = device
        .newLibraryWithSource_options_error(&NSString::from_str(SOURCE), Some(&compile_options()))
        .map_err(|error| format!("no matrices of a simdgroup: {}", explain(&error)))?;
    let function = library.newFunctionWithName(&NSString::from_str("products")).ok_or("no test kernel")?;
    let pipeline = device
        .newComputePipelineStateWithFunction_error(&function)
        .map_err(|error| format!("no matrices of a simdgroup: {}", explain(&error)))?;
    if pipeline.threadExecutionWidth() != 32 {
        return Err(format!("a simdgroup has {} threads, not 32", pipeline.threadExecutionWidth()));
    }
    let factors: Vec<f32> = (0..2 * ELEMENTS).map(|index| (index * 7 % 11) as f32 - 5.0).collect();
    let f16_factors: Vec<u16> = factors.iter().map(|it| half::f16::from_f32(*it).to_bits()).collect();
    let (f32_bytes, f16_bytes) = (bytes_of(&factors), bytes_of(&f16_factors));
    let size = size_of::<f32>() * PRODUCTS * ELEMENTS;
    let buffer = |bytes: usize| {
        let created = device.newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared);
        created.ok_or(format!("Metal cannot allocate {bytes} bytes"))
    };
    let buffers = [buffer(f32_bytes.len())?, buffer(f16_bytes.len())?, buffer(size)?];
    for (buffer, bytes) in buffers.iter().zip([f32_bytes, f16_bytes]) {
        // SAFETY: a shared buffer has contents of that length, and no pass uses it yet.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.contents().cast().as_ptr(), bytes.len());
        }
    }
    let queue = device.newCommandQueue().ok_or("cannot create a Metal command queue")?;
    let commands = queue.commandBuffer().ok_or("cannot create a Metal command buffer")?;
    let encoder = commands
        .computeCommandEncoderWithDispatchType(MTLDispatchType::Serial)
        .ok_or("cannot create a Metal compute encoder")?;
    encoder.setComputePipelineState(&pipeline);
    for (slot, buffer) in buffers.iter().enumerate() {
        // SAFETY: the kernel has that many buffers, of these sizes.
        unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), 0, slot) };
    }
    let one = MTLSize { width: 1, height: 1, depth: 1 };
    encoder.dispatchThreadgroups_threadsPerThreadgroup(one, MTLSize { width: 32, ..one });
    encoder.endEncoding();
    commands.commit();
    commands.waitUntilCompleted();
    if let Some(error) = commands.error() {
        return Err(format!("a test kernel failed: {}", error.localizedDescription()));
    }
    let expected = product(&factors);
    // SAFETY: a shared buffer has contents of that length, and the pass that wrote it has completed.
    let results = unsafe {
        std::slice::from_raw_parts(buffers[2].contents().cast::<f32>().as_ptr(), PRODUCTS * ELEMENTS)
    };
    match results.chunks_exact(ELEMENTS).all(|found| found == expected) {
        true => Ok(()),
        false => Err("matrix products of a simdgroup are wrong".to_owned()),
    }
}

/// The product of the two matrices in `factors`.
fn product(factors: &[f32]) -> Vec<f32> {
    let (left, right) = factors.split_at(ELEMENTS);
    let element = |index: usize| {
        let (row, column) = (index / 8, index % 8);
        (0..8).map(|k| left[row * 8 + k] * right[k * 8 + column]).sum()
    };
    (0..ELEMENTS).map(element).collect()
}

fn bytes_of<T: Copy>(elements: &[T]) -> &[u8] {
    // SAFETY: floats and words have no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
