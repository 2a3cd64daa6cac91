//! Tests of a GPU: whether it multiplies matrices of a simdgroup, and tensors, as the kernels expect.
//!
//! Apple GPU family 7 (M1, A14) and later have these matrices. The device of a virtual machine reports an older
//! family and has them nevertheless. A small kernel is therefore run on such a device, and its results are
//! compared. Products of tensors are tested wherever they are used: compilers have miscompiled them.

use crate::gpu::metal::library::{Language, compile_options, explain};
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

/// Rows of both factors, and their columns, in the test of tensors.
const TENSOR_SHAPE: [usize; 3] = [32, 64, 32];

/// A kernel that multiplies two tensors of threadgroup memory like the GEMM kernels do, with a left factor in
/// f16 and in f32. Rows of the factors are padded, and half of the columns are multiplied at a time.
const TENSOR_SOURCE: &str = "#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
[[max_total_threads_per_threadgroup(128)]]
kernel void products(
    device const float* factors [[buffer(0)]],
    device const half* f16_factors [[buffer(1)]],
    device float* results [[buffer(2)]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    threadgroup float tile[32 * 20];
    threadgroup half f16_tile[96 * 24];
    auto left = tensor<threadgroup half, dextents<int, 2>, tensor_inline>(
        f16_tile, dextents<int, 2>(16, 32), array<int, 2>{1, 24});
    auto f32_left = tensor<threadgroup float, dextents<int, 2>, tensor_inline>(
        tile, dextents<int, 2>(16, 32), array<int, 2>{1, 20});
    auto right = tensor<threadgroup half, dextents<int, 2>, tensor_inline>(
        f16_tile + 768u, dextents<int, 2>(16, 64), array<int, 2>{1, 24});
    constexpr auto shape = mpp::tensor_ops::matmul2d_descriptor(
        32, 64, 16, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<shape, execution_simdgroups<4>> products;
    auto sums = products.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    auto f32_sums = products.get_destination_cooperative_tensor<decltype(f32_left), decltype(right), float>();
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            sums[i] = 0.0f;
        }
    }
    for (ushort i = 0; i < f32_sums.get_capacity(); i++) {
        if (f32_sums.is_valid_element(i)) {
            f32_sums[i] = 0.0f;
        }
    }
    for (uint first = 0u; first < 32u; first += 16u) {
        for (uint i = thread_id; i < 96u * 16u; i += 128u) {
            f16_tile[i / 16u * 24u + i % 16u] = f16_factors[i / 16u * 32u + first + i % 16u];
        }
        for (uint i = thread_id; i < 32u * 16u; i += 128u) {
            tile[i / 16u * 20u + i % 16u] = factors[i / 16u * 32u + first + i % 16u];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        products.run(left, right, sums);
        products.run(f32_left, right, f32_sums);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        const auto place = sums.get_multidimensional_index(i);
        if (sums.is_valid_element(i)) {
            results[uint(place[1]) * 64u + uint(place[0])] = sums[i];
        }
    }
    for (ushort i = 0; i < f32_sums.get_capacity(); i++) {
        const auto place = f32_sums.get_multidimensional_index(i);
        if (f32_sums.is_valid_element(i)) {
            results[2048u + uint(place[1]) * 64u + uint(place[0])] = f32_sums[i];
        }
    }
}
";

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

/// Whether products of tensors are correct; if not, why. They are compared with those of the host.
pub(crate) fn check_tensors() -> Result<(), String> {
    static RESULT: OnceLock<Result<(), String>> = OnceLock::new();
    RESULT.get_or_init(tensor_products_are_correct).clone()
}

/// Runs the kernel for matrices and compares its results. All of them are small integers, so they are exact.
fn products_are_correct() -> Result<(), String> {
    let factors = small_integers(2 * ELEMENTS);
    let f16_factors = f16_bits(&factors);
    let probe = Probe { source: SOURCE, kernel: "products", language: Language::Metal3, threads: 32 };
    let results = probe
        .run([bytes_of(&factors), bytes_of(&f16_factors)], PRODUCTS * ELEMENTS)
        .map_err(|why| format!("no matrices of a simdgroup: {why}"))?;
    let (left, right) = factors.split_at(ELEMENTS);
    // The right factor by rows.
    let right: Vec<f32> = (0..ELEMENTS).map(|index| right[index % 8 * 8 + index / 8]).collect();
    let expected = product(left, &right, [8, 8, 8]);
    match results.chunks_exact(ELEMENTS).all(|found| found == expected) {
        true => Ok(()),
        false => Err("matrix products of a simdgroup are wrong".to_owned()),
    }
}

/// Runs the kernel for tensors and compares its results, which are exact likewise.
fn tensor_products_are_correct() -> Result<(), String> {
    let [rows, outputs, columns] = TENSOR_SHAPE;
    let factors = small_integers((rows + outputs) * columns);
    let f16_factors = f16_bits(&factors);
    let probe = Probe { source: TENSOR_SOURCE, kernel: "products", language: Language::Metal4, threads: 128 };
    let results = probe.run([bytes_of(&factors), bytes_of(&f16_factors)], 2 * rows * outputs)?;
    let (left, right) = factors.split_at(rows * columns);
    let expected = product(left, right, TENSOR_SHAPE);
    match results.chunks_exact(rows * outputs).all(|found| found == expected) {
        true => Ok(()),
        false => Err("products of tensors are wrong".to_owned()),
    }
}

/// A kernel of one threadgroup.
struct Probe {
    source: &'static str,
    kernel: &'static str,
    language: Language,
    threads: usize,
}

impl Probe {
    /// Runs the kernel on two buffers, and returns what it stores in the third.
    fn run(&self, inputs: [&[u8]; 2], results: usize) -> Result<Vec<f32>, String> {
        let device = MTLCreateSystemDefaultDevice().ok_or("no Metal device found")?;
        let options = compile_options(self.language);
        let library = device
            .newLibraryWithSource_options_error(&NSString::from_str(self.source), Some(&options))
            .map_err(|error| explain(&error))?;
        let function =
            library.newFunctionWithName(&NSString::from_str(self.kernel)).ok_or("no test kernel")?;
        let pipeline =
            device.newComputePipelineStateWithFunction_error(&function).map_err(|error| explain(&error))?;
        if pipeline.threadExecutionWidth() != 32 {
            return Err(format!("a simdgroup has {} threads, not 32", pipeline.threadExecutionWidth()));
        }
        let size = size_of::<f32>() * results;
        let buffer = |bytes: usize| {
            let created = device.newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared);
            created.ok_or(format!("Metal cannot allocate {bytes} bytes"))
        };
        let buffers = [buffer(inputs[0].len())?, buffer(inputs[1].len())?, buffer(size)?];
        for (buffer, bytes) in buffers.iter().zip(inputs) {
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
        encoder.dispatchThreadgroups_threadsPerThreadgroup(one, MTLSize { width: self.threads, ..one });
        encoder.endEncoding();
        commands.commit();
        commands.waitUntilCompleted();
        if let Some(error) = commands.error() {
            return Err(format!("a test kernel failed: {}", error.localizedDescription()));
        }
        // SAFETY: a shared buffer has contents of that length, and the pass that wrote it has completed.
        let found =
            unsafe { std::slice::from_raw_parts(buffers[2].contents().cast::<f32>().as_ptr(), results) };
        Ok(found.to_vec())
    }
}

fn small_integers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 7 % 11) as f32 - 5.0).collect()
}

fn f16_bits(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| half::f16::from_f32(*value).to_bits()).collect()
}

/// The product of two matrices, both by rows: the elements of a row of `left` times those of a row of `right`.
fn product(left: &[f32], right: &[f32], [rows, outputs, columns]: [usize; 3]) -> Vec<f32> {
    let element = |index: usize| {
        let (row, output) = (index / outputs * columns, index % outputs * columns);
        (0..columns).map(|k| left[row + k] * right[output + k]).sum()
    };
    (0..rows * outputs).map(element).collect()
}

fn bytes_of<T: Copy>(elements: &[T]) -> &[u8] {
    // SAFETY: floats and words have no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
