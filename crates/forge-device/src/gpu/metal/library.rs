//! The library of a program's kernels: a metallib compiled at build time, or the source compiled at start.
//!
//! The source has two versions. As Metal 3 its kernels multiply matrices of a simdgroup. As Metal 4 they
//! multiply tensors, which GPUs with neural accelerators (M5 and later) do faster.

use crate::gpu::metal::probe::check_tensors;
use crate::program::CompiledModel;
use dispatch2::DispatchData;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLDevice, MTLGPUFamily, MTLLanguageVersion, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode,
};

type Metal = ProtocolObject<dyn MTLDevice>;

/// The variable that enables (`1`) or disables (`0`) products of tensors.
const TENSORS: &str = "FORGE_METAL_TENSORS";

/// A version of Metal's language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Language {
    /// Version 3.0.
    Metal3,
    /// Version 4.0, with products of tensors.
    Metal4,
}

impl Language {
    /// The version for a program on a device; and if a test of products of tensors failed, why.
    ///
    /// By default it is Metal 4 on GPUs of Apple family 10 (M5, A19) and later. Older ones have products of
    /// tensors too, without hardware for them.
    pub(crate) fn of(device: &Metal, program: &CompiledModel) -> (Language, Option<String>) {
        let setting = std::env::var(TENSORS).unwrap_or_default();
        let is_wanted = match &*setting {
            "0" => false,
            "1" => true,
            _ => device.supportsFamily(MTLGPUFamily::Apple10),
        };
        let has_tensors = program.metal.contains("mpp::tensor_ops");
        if !is_wanted || !has_tensors || !device.supportsFamily(MTLGPUFamily::Metal4) {
            return (Language::Metal3, None);
        }
        match check_tensors() {
            Ok(()) => (Language::Metal4, None),
            Err(why) => (Language::Metal3, Some(why)),
        }
    }

    const fn version(self) -> MTLLanguageVersion {
        match self {
            Language::Metal3 => MTLLanguageVersion::Version3_0,
            Language::Metal4 => MTLLanguageVersion::Version4_0,
        }
    }

    const fn note(self) -> &'static str {
        match self {
            Language::Metal3 => "",
            Language::Metal4 => " with Metal 4 tensor operations",
        }
    }
}

/// The library compiled at build time, unless `FORGE_METAL_SOURCE=1` asks for the source. Both ways have to
/// give the same results, which tests compare.
pub(crate) fn metallib(program: &CompiledModel, language: Language) -> Option<&'static [u8]> {
    let compiled = match language {
        Language::Metal3 => program.metallib,
        Language::Metal4 => program.tensor_metallib,
    };
    compiled.filter(|_| std::env::var_os("FORGE_METAL_SOURCE").is_none_or(|value| value != "1"))
}

/// How the kernels were compiled, for users.
pub(crate) fn source(program: &CompiledModel, language: Language) -> String {
    let how = match metallib(program, language) {
        Some(_) => "precompiled by xcrun metal at build time",
        None if program.metallib.is_some() && language == Language::Metal3 => {
            "compiled from source (FORGE_METAL_SOURCE is set)"
        }
        None if language == Language::Metal4 => "compiled from source",
        None => "compiled from source (no xcrun metal at build time)",
    };
    format!("{how}{}", language.note())
}

/// The kernel library, and how it was compiled.
pub(crate) fn library(
    device: &Metal,
    program: &CompiledModel,
    language: Language,
) -> Result<(Retained<ProtocolObject<dyn MTLLibrary>>, String), String> {
    let source = source(program, language);
    let Some(compiled) = metallib(program, language) else {
        return Ok((from_text(device, program, language)?, source));
    };
    match device.newLibraryWithData_error(&DispatchData::from_bytes(compiled)) {
        Ok(library) => Ok((library, source)),
        // The metallib may target a newer system.
        Err(error) => Ok((
            from_text(device, program, language)?,
            format!("compiled from source, not {source}: {}", explain(&error)),
        )),
    }
}

fn from_text(
    device: &Metal,
    program: &CompiledModel,
    language: Language,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, String> {
    let options = compile_options(language);
    device
        .newLibraryWithSource_options_error(&NSString::from_str(program.metal), Some(&options))
        .map_err(|error| format!("kernels.metal does not compile: {}", explain(&error)))
}

/// Options of the compiler, equal to those of `build.rs`: the language version, safe math and precise
/// functions.
pub(crate) fn compile_options(language: Language) -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(language.version());
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
