//! A pipeline for each kernel: of the library that Apple's compiler made when the program was built, where it was there, or
//! of the text. What the driver makes of them is kept from one start to the next, in an archive.
//!
//! An archive is a file in the user's cache that is named after what the kernels are made of. It has all pipelines or is made
//! anew, as after the system was brought up to date; where it cannot be written programs only start later.

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

/// The SIMD width that kernels are written for.
const SIMD_WIDTH: usize = 32;

type Metal = ProtocolObject<dyn MTLDevice>;
pub(crate) type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;
type Descriptor = Retained<MTLComputePipelineDescriptor>;
type Archive = Retained<ProtocolObject<dyn MTLBinaryArchive>>;

/// The pipelines of a program, by kernel.
pub(crate) struct Pipelines {
    pub(crate) by_name: HashMap<&'static str, Pipeline>,
    /// How they came about, for people.
    pub(crate) route: String,
}

/// What kernels are made of, for people.
pub(crate) fn source(program: &CompiledModel) -> &'static str {
    match program.metallib {
        Some(_) => "of the library that xcrun metal made when this program was built",
        None => "of their text, since there was no xcrun metal when this program was built",
    }
}

/// Where the archive of a program is kept.
pub(crate) fn archive_path(program: &CompiledModel, cache: &Path) -> PathBuf {
    let mut content = DefaultHasher::new();
    program.metal.hash(&mut content);
    program.metallib.hash(&mut content);
    cache.join(format!("pipelines-{:016x}.metalarchive", content.finish()))
}

impl Pipelines {
    /// Makes them, with the archive in the folder `cache` if there is one.
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
                Ok(pipelines) => (pipelines, format!("pipelines kept in {}", path.display())),
                Err(why) => (compile(device, &described)?, format!("pipelines not kept: {why}")),
            },
            (_, None) => (compile(device, &described)?, "pipelines not kept".to_owned()),
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

/// The library of kernels, and what it was made of.
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
        // It may have been made for a newer system.
        Err(error) => {
            Ok((from_text(device, program)?, format!("of their text, not {source}: {}", explain(error))))
        }
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
        // Before macOS 15 the same was said so.
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    device
        .newLibraryWithSource_options_error(&NSString::from_str(program.metal), Some(&options))
        .map_err(|error| format!("kernels.metal does not compile: {}", explain(error)))
}

/// The pipelines that an earlier start left, if all are there.
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

/// Makes pipelines in an archive, and writes it: as a whole, or not at all.
fn keep(device: &Metal, described: &[(&Kernel, Descriptor)], path: &Path) -> Result<Vec<Pipeline>, String> {
    let archive: Archive =
        device.newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new()).map_err(explain)?;
    for (_, descriptor) in described {
        archive.addComputePipelineFunctionsWithDescriptor_error(descriptor).map_err(explain)?;
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive])));
    }
    let pipelines = compile(device, described);
    described.iter().for_each(|(_, descriptor)| descriptor.setBinaryArchives(None));
    let folder = path.parent().ok_or("it has no folder")?;
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
            .map_err(|error| format!("kernel {} makes no pipeline: {}", kernel.name, explain(error)))
    };
    described.iter().map(pipeline).collect()
}

/// Whether this GPU runs a kernel as it is written.
fn check(kernel: &Kernel, pipeline: &Pipeline) -> Result<(), String> {
    let most = pipeline.maxTotalThreadsPerThreadgroup();
    if most < kernel.threads as usize {
        return Err(format!(
            "kernel {} needs threadgroups of {} threads, and this GPU runs it with at most {most}",
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
