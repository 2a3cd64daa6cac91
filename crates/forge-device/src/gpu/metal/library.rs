//! The library of a program's kernels: a metallib compiled at build time, or the source compiled at start.

use crate::program::CompiledModel;
use dispatch2::DispatchData;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLDevice, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
};

type Metal = ProtocolObject<dyn MTLDevice>;

/// The library compiled at build time, unless `FORGE_METAL_SOURCE=1` asks for the source. Both ways have to
/// give the same results, which tests compare.
pub(crate) fn metallib(program: &CompiledModel) -> Option<&'static [u8]> {
    program.metallib.filter(|_| std::env::var_os("FORGE_METAL_SOURCE").is_none_or(|value| value != "1"))
}

/// How the kernels were compiled, for users.
pub(crate) fn source(program: &CompiledModel) -> &'static str {
    match metallib(program) {
        Some(_) => "precompiled by xcrun metal at build time",
        None if program.metallib.is_some() => "compiled from source (FORGE_METAL_SOURCE is set)",
        None => "compiled from source (no xcrun metal at build time)",
    }
}

/// The kernel library, and how it was compiled.
pub(crate) fn library(
    device: &Metal,
    program: &CompiledModel,
) -> Result<(Retained<ProtocolObject<dyn MTLLibrary>>, String), String> {
    let source = source(program);
    let Some(compiled) = metallib(program) else {
        return Ok((from_text(device, program)?, source.to_owned()));
    };
    match device.newLibraryWithData_error(&DispatchData::from_bytes(compiled)) {
        Ok(library) => Ok((library, source.to_owned())),
        // The metallib may target a newer system.
        Err(error) => Ok((
            from_text(device, program)?,
            format!("compiled from source, not {source}: {}", explain(&error)),
        )),
    }
}

fn from_text(
    device: &Metal,
    program: &CompiledModel,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, String> {
    device
        .newLibraryWithSource_options_error(&NSString::from_str(program.metal), Some(&compile_options()))
        .map_err(|error| format!("kernels.metal does not compile: {}", explain(&error)))
}

/// Options of the compiler, equal to those of `build.rs`: the language version, safe math and precise
/// functions.
pub(crate) fn compile_options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_0);
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(MTLMathMode::Safe);
        // The mode does not imply it: the default is fast.
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        // Both at once, before macOS 15 and iOS 18.
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    options
}

/// The description of an error.
pub(crate) fn explain(error: &NSError) -> String {
    error.localizedDescription().to_string()
}
