//! Compute pipelines of all kernels, and their binary archive. Metal compiles them in parallel.
//!
//! The archive caches the driver's output between starts. It is a file in the user's cache, named after a
//! hash of the kernels. It contains all pipelines, or is rebuilt, for example after a system update. If it
//! cannot be written, programs only start more slowly.

use crate::device::Kernel;
use crate::gpu::metal::library::{Language, explain, library, metallib};
use crate::gpu::metal_backend::validation_layer;
use crate::program::CompiledModel;
use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineReflection,
    MTLComputePipelineState, MTLDevice, MTLLibrary, MTLPipelineOption,
};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
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

/// Path of a program's archive.
pub(crate) fn archive_path(program: &CompiledModel, language: Language, cache: &Path) -> PathBuf {
    let mut content = DefaultHasher::new();
    (program.metal, language).hash(&mut content);
    metallib(program, language).hash(&mut content);
    cache.join(format!("pipelines-{:016x}.metalarchive", content.finish()))
}

/// Reports progress: pipelines done, and all.
pub(crate) type Report<'a> = &'a mut dyn FnMut(usize, usize);

impl Pipelines {
    /// Creates the pipelines, with the archive in the folder `cache` if given. If products of tensors do not
    /// work, those of matrices replace them.
    pub(crate) fn make(
        device: &Metal,
        program: &CompiledModel,
        cache: Option<&Path>,
        report: Report<'_>,
    ) -> Result<Pipelines, String> {
        let (language, mut trouble) = Language::of(device, program);
        if language == Language::Metal4 {
            match Pipelines::of_language(device, program, language, cache, report) {
                Ok(pipelines) => return Ok(pipelines),
                Err(why) => trouble = Some(why),
            }
        }
        let mut pipelines = Pipelines::of_language(device, program, Language::Metal3, cache, report)?;
        if let Some(why) = trouble {
            pipelines.route = format!("{}; without tensor operations: {why}", pipelines.route);
        }
        Ok(pipelines)
    }

    fn of_language(
        device: &Metal,
        program: &CompiledModel,
        language: Language,
        cache: Option<&Path>,
        report: Report<'_>,
    ) -> Result<Pipelines, String> {
        let start = Instant::now();
        let (library, source) = library(device, program, language)?;
        let mut described = Vec::new();
        for kernel in program.kernels {
            let name = NSString::from_str(kernel.name);
            let function = library
                .newFunctionWithName(&name)
                .ok_or_else(|| format!("kernels.metal has no kernel {}", kernel.name))?;
            let descriptor = MTLComputePipelineDescriptor::new();
            descriptor.setComputeFunction(Some(&function));
            descriptor.setLabel(Some(&name));
            described.push((*kernel, descriptor));
        }
        let layer = validation_layer();
        let archive = cache.filter(|_| layer.is_none()).map(|cache| archive_path(program, language, cache));
        let found = archive.as_deref().and_then(|path| found(device, &described, path));
        let (pipelines, kept) = match (found, archive) {
            (Some(pipelines), Some(path)) => (pipelines, format!("pipelines from {}", path.display())),
            (_, path) => {
                let pipelines = compile(device, &described, report)?;
                let kept = match (path.map(|path| (keep(device, &described, &path), path)), layer) {
                    (Some((Ok(()), path)), _) => format!("pipelines saved to {}", path.display()),
                    (Some((Err(why), _)), _) => format!("pipelines not saved: {why}"),
                    (None, Some(layer)) => format!("pipelines not saved: {layer} is set"),
                    (None, None) => "pipelines not saved".to_owned(),
                };
                (pipelines, kept)
            }
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

/// Writes an archive of the pipelines atomically. They are compiled already.
fn keep(device: &Metal, described: &[(&Kernel, Descriptor)], path: &Path) -> Result<(), String> {
    let archive: Archive = device
        .newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new())
        .map_err(|error| explain(&error))?;
    for (_, descriptor) in described {
        archive
            .addComputePipelineFunctionsWithDescriptor_error(descriptor)
            .map_err(|error| explain(&error))?;
    }
    let folder = path.parent().ok_or("the path has no parent folder")?;
    let trouble = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(trouble)?;
    let unfinished = path.with_extension(format!("{}", std::process::id()));
    archive.serializeToURL_error(&url(&unfinished)).map_err(|error| explain(&error))?;
    std::fs::rename(&unfinished, path).map_err(trouble)
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

/// Compiles the pipelines in parallel, on threads of Metal's.
fn compile(
    device: &Metal,
    described: &[(&Kernel, Descriptor)],
    report: Report<'_>,
) -> Result<Vec<Pipeline>, String> {
    let (sender, receiver) = mpsc::channel();
    for (index, (_, descriptor)) in described.iter().enumerate() {
        let sender = sender.clone();
        let handler = RcBlock::new(
            move |pipeline: *mut ProtocolObject<dyn MTLComputePipelineState>,
                  _: *mut MTLComputePipelineReflection,
                  error: *mut NSError| {
                // SAFETY: Metal passes a pipeline or an error, which live at least as long as the call.
                let (pipeline, error) = unsafe { (Retained::retain(pipeline), error.as_ref()) };
                let reason = || error.map_or_else(|| "unknown error".to_owned(), explain);
                let _ = sender.send((index, pipeline.ok_or_else(reason)));
            },
        );
        // SAFETY: Metal copies the block.
        unsafe {
            device.newComputePipelineStateWithDescriptor_options_completionHandler(
                descriptor,
                MTLPipelineOption::None,
                RcBlock::as_ptr(&handler),
            );
        }
    }
    // The channel ends with the last handler.
    drop(sender);
    let mut pipelines = vec![None; described.len()];
    let mut failed = None;
    for (done, (index, outcome)) in receiver.iter().enumerate() {
        report(done + 1, described.len());
        let name = described[index].0.name;
        match outcome {
            Ok(pipeline) => pipelines[index] = Some(pipeline),
            Err(why) => failed = Some(format!("cannot create the pipeline of kernel {name}: {why}")),
        }
    }
    match (failed, pipelines.into_iter().collect::<Option<Vec<Pipeline>>>()) {
        (None, Some(pipelines)) => Ok(pipelines),
        (failed, _) => Err(failed.unwrap_or_else(|| "Metal did not create all pipelines".to_owned())),
    }
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
