//! Compute pipelines of all kernels, from a metallib compiled at build time or from source, and their binary
//! archive.
//!
//! The archive caches the driver's output between starts. It is a file in the user's cache, named after a
//! hash of the kernels. It contains all pipelines, or is rebuilt, for example after a system update. If it
//! cannot be written, programs only start more slowly.

use crate::device::Kernel;
use crate::program::CompiledModel;
use dispatch2::DispatchData;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSArray, NSError, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLCompileOptions, MTLComputePipelineDescriptor,
    MTLComputePipelineState, MTLDevice, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLPipelineOption,
};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The SIMD width that the kernels need.
const SIMD_WIDTH: usize = 32;

type Metal = ProtocolObject<dyn MTLDevice>;
pub(crate) type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;
type Descriptor = Retained<MTLComputePipelineDescriptor>;
type Archive = Retained<ProtocolObject<dyn MTLBinaryArchive>>;

/// The pipelines of a program by kernel name.
pub(crate) struct Pipelines {
    pub(crate) by_name: HashMap<&'static str, Pipeline>,
    /// Where they come from, for users.
    pub(crate) route: String,
}

/// How the kernels were compiled, for users.
pub(crate) fn source(program: &CompiledModel) -> &'static str {
    match program.metallib {
        Some(_) => "precompiled by xcrun metal at build time",
        None => "compiled from source (no xcrun metal at build time)",
    }
}

/// Path of a program's archive.
pub(crate) fn archive_path(program: &CompiledModel, cache: &Path) -> PathBuf {
    let mut content = DefaultHasher::new();
    program.metal.hash(&mut content);
    program.metallib.hash(&mut content);
    cache.join(format!("pipelines-{:016x}.metalarchive", content.finish()))
}

impl Pipelines {
    /// Creates the pipelines, with the archive in the folder `cache` if given.
    pub(crate) fn make(
        device: &Metal,
        program: &CompiledModel,
        cache: Option<&Path>,
    ) -> Result<Pipelines, String> {
        let start = Instant::now();
        let (library, source) = library(device, program)?;
        let mut described = Vec::new();
        for kernel in program.kernels {
            let function = library
                .newFunctionWithName(&NSString::from_str(kernel.name))
                .ok_or_else(|| format!("kernels.metal has no kernel {}", kernel.name))?;
            let descriptor = MTLComputePipelineDescriptor::new();
            descriptor.setComputeFunction(Some(&function));
            described.push((*kernel, descriptor));
        }
        let archive = cache.map(|cache| archive_path(program, cache));
        let found = archive.as_deref().and_then(|path| found(device, &described, path));
        let (pipelines, kept) = match (found, archive) {
            (Some(pipelines), Some(path)) => (pipelines, format!("pipelines from {}", path.display())),
            (_, Some(path)) => match keep(device, &described, &path) {
                Ok(pipelines) => (pipelines, format!("pipelines saved to {}", path.display())),
                Err(why) => (compile(device, &described)?, format!("pipelines not saved: {why}")),
            },
            (_, None) => (compile(device, &described)?, "pipelines not saved".to_owned()),
        };
        let mut by_name = HashMap::new();
        for ((kernel, _), pipeline) in described.iter().zip(pipelines) {
            check(kernel, &pipeline)?;
            by_name.insert(kernel.name, pipeline);
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Pipelines { by_name, route: format!("kernels {source}; {kept}; {seconds:.2} s") })
    }
}

fn explain(error: Retained<NSError>) -> String {
    error.localizedDescription().to_string()
}

/// The kernel library, and how it was compiled.
fn library(
    device: &Metal,
    program: &CompiledModel,
) -> Result<(Retained<ProtocolObject<dyn MTLLibrary>>, String), String> {
    let source = source(program);
    let Some(compiled) = program.metallib else {
        return Ok((from_text(device, program)?, source.to_owned()));
    };
    match device.newLibraryWithData_error(&DispatchData::from_bytes(compiled)) {
        Ok(library) => Ok((library, source.to_owned())),
        // The metallib may target a newer system.
        Err(error) => Ok((
            from_text(device, program)?,
            format!("compiled from source, not {source}: {}", explain(error)),
        )),
    }
}

fn from_text(
    device: &Metal,
    program: &CompiledModel,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, String> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_0);
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(MTLMathMode::Safe);
    } else {
        // The equivalent before macOS 15.
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    device
        .newLibraryWithSource_options_error(&NSString::from_str(program.metal), Some(&options))
        .map_err(|error| format!("kernels.metal does not compile: {}", explain(error)))
}

/// Loads all pipelines from an existing archive; none if any is missing.
fn found(device: &Metal, described: &[(&Kernel, Descriptor)], path: &Path) -> Option<Vec<Pipeline>> {
    if !path.is_file() {
        return None;
    }
    let archive = MTLBinaryArchiveDescriptor::new();
    archive.setUrl(Some(&url(path)));
    let archive = device.newBinaryArchiveWithDescriptor_error(&archive).ok()?;
    let missing_is_an_error = MTLPipelineOption::FailOnBinaryArchiveMiss;
    let pipelines = described.iter().map(|(_, descriptor)| {
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive])));
        let made = device.newComputePipelineStateWithDescriptor_options_reflection_error(
            descriptor,
            missing_is_an_error,
            None,
        );
        descriptor.setBinaryArchives(None);
        made.ok()
    });
    pipelines.collect()
}

/// Creates the pipelines and writes their archive atomically.
fn keep(device: &Metal, described: &[(&Kernel, Descriptor)], path: &Path) -> Result<Vec<Pipeline>, String> {
    let archive: Archive =
        device.newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new()).map_err(explain)?;
    for (_, descriptor) in described {
        archive.addComputePipelineFunctionsWithDescriptor_error(descriptor).map_err(explain)?;
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive])));
    }
    let pipelines = compile(device, described);
    described.iter().for_each(|(_, descriptor)| descriptor.setBinaryArchives(None));
    let folder = path.parent().ok_or("the path has no parent folder")?;
    let trouble = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(trouble)?;
    let unfinished = path.with_extension(format!("{}", std::process::id()));
    archive.serializeToURL_error(&url(&unfinished)).map_err(explain)?;
    std::fs::rename(&unfinished, path).map_err(trouble)?;
    pipelines
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

fn compile(device: &Metal, described: &[(&Kernel, Descriptor)]) -> Result<Vec<Pipeline>, String> {
    let pipeline = |(kernel, descriptor): &(&Kernel, Descriptor)| {
        device
            .newComputePipelineStateWithDescriptor_options_reflection_error(
                descriptor,
                MTLPipelineOption::None,
                None,
            )
            .map_err(|error| {
                format!("cannot create the pipeline of kernel {}: {}", kernel.name, explain(error))
            })
    };
    described.iter().map(pipeline).collect()
}

/// Checks that this GPU supports the kernel's threadgroup size and SIMD width.
fn check(kernel: &Kernel, pipeline: &Pipeline) -> Result<(), String> {
    let most = pipeline.maxTotalThreadsPerThreadgroup();
    if most < kernel.threads as usize {
        return Err(format!(
            "kernel {} needs threadgroups of {} threads; this GPU supports at most {most}",
            kernel.name, kernel.threads
        ));
    }
    let width = pipeline.threadExecutionWidth();
    if width != SIMD_WIDTH {
        return Err(format!(
            "kernel {} is written for a SIMD width of {SIMD_WIDTH}, not {width}",
            kernel.name
        ));
    }
    Ok(())
}
