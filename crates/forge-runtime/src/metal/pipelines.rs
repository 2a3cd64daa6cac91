//! A pipeline for each kernel, compiled from the text.

use super::super::device::Kernel;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLLanguageVersion, MTLLibrary, MTLMathMode,
};
use std::collections::HashMap;

/// The SIMD width that kernels are written for.
const SIMD_WIDTH: usize = 32;

pub(super) type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// A pipeline for each kernel.
pub(super) fn compile(
    device: &ProtocolObject<dyn MTLDevice>,
    text: &str,
    kernels: &[&'static Kernel],
) -> Result<HashMap<&'static str, Pipeline>, String> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_0);
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(MTLMathMode::Safe);
    } else {
        // Before macOS 15 the same was said so.
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    let explain = |error: Retained<NSError>| error.localizedDescription().to_string();
    let library = device
        .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
        .map_err(|error| format!("kernels.metal does not compile: {}", explain(error)))?;
    let mut pipelines = HashMap::new();
    for kernel in kernels {
        let name = kernel.name;
        let function = library
            .newFunctionWithName(&NSString::from_str(name))
            .ok_or_else(|| format!("kernels.metal has no kernel {name}"))?;
        let pipeline = device
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|error| format!("kernel {name} makes no pipeline: {}", explain(error)))?;
        let most = pipeline.maxTotalThreadsPerThreadgroup();
        if most < kernel.threads as usize {
            return Err(format!(
                "kernel {name} needs threadgroups of {} threads, and this GPU runs it with at most {most}",
                kernel.threads
            ));
        }
        let width = pipeline.threadExecutionWidth();
        if width != SIMD_WIDTH {
            return Err(format!("kernel {name} is written for a SIMD width of {SIMD_WIDTH}, not {width}"));
        }
        pipelines.insert(name, pipeline);
    }
    Ok(pipelines)
}
