//! A compiled and loaded Metal source: kernels that can be called for one thread, with line information.

use crate::compile::clang::{CompileError, library};
use crate::compile::rewrite::rewrite;
use crate::execute::hooks::{TABLE, Table};
use addr2line::Loader;
use forge_msl::Signature;
use libloading::{Library, Symbol};
use std::cell::OnceCell;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// A function that calls a kernel for one thread, with its pointers and launch builtins.
pub(crate) type Call = unsafe extern "C" fn(*const *mut c_void, *const u32);

/// A compiled kernel.
pub struct Kernel {
    /// Its signature in the source.
    pub signature: Signature,
    /// Size of its scalar struct in bytes.
    pub scalar_bytes: usize,
    /// `None` if a GPU runs it.
    pub(crate) call: Option<Call>,
}

/// Options of a compilation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'o> {
    /// Compile only these kernels.
    pub only: Option<&'o [&'o str]>,
    /// Cache directory of compiled libraries, instead of the user's cache.
    pub cache: Option<&'o Path>,
}

/// A compiled source.
pub struct Program {
    kernels: Vec<Kernel>,
    path: PathBuf,
    base: usize,
    lines: OnceCell<Option<Loader>>,
    #[cfg(feature = "gpu")]
    pub(crate) gpu: Option<crate::gpu::Module>,
    // Holds the kernels' code, so it is dropped last.
    _library: Option<Library>,
}

impl Program {
    /// Compiles all kernels of a source.
    pub fn compile(text: &str) -> Result<Program, CompileError> {
        Program::compile_with(text, Options::default())
    }

    /// Compiles a source with options.
    pub fn compile_with(text: &str, options: Options<'_>) -> Result<Program, CompileError> {
        let (source, signatures) = rewrite(text, options.only)?;
        #[cfg(feature = "gpu")]
        if let Some(module) = crate::gpu::Module::of(text)? {
            let kernel = |signature: Signature| {
                let scalar_bytes = module.scalar_bytes(&signature.name);
                Kernel { signature, scalar_bytes, call: None }
            };
            let kernels = signatures.into_iter().map(kernel).collect();
            return Ok(Program { gpu: Some(module), ..Program::new(kernels, PathBuf::new(), 0, None) });
        }
        let path = library(&source, options.cache)?;
        // SAFETY: `library` compiled it; loading runs only an empty initializer.
        unsafe { Program::load(&path, signatures) }
            .map_err(|error| CompileError::Load { path: path.clone(), message: error.to_string() })
    }

    /// # Safety
    /// The library must have been compiled from a source with these signatures.
    unsafe fn load(path: &Path, signatures: Vec<Signature>) -> Result<Program, libloading::Error> {
        // SAFETY: names and types of the symbols match those in `rewrite` and `hooks.cpp`.
        unsafe {
            let library = Library::new(path)?;
            let bind: Symbol<'_, unsafe extern "C" fn(*const Table)> = library.get(b"forge_bind")?;
            bind(&TABLE);
            let base = base_of(*bind as *const c_void);
            let mut kernels = Vec::new();
            for signature in signatures {
                let call = library.get::<Call>(format!("forge_call_{}", signature.name).as_bytes())?;
                let bytes =
                    library.get::<*const u32>(format!("forge_scalars_{}", signature.name).as_bytes())?;
                let (call, scalar_bytes) = (*call, **bytes as usize);
                kernels.push(Kernel { signature, scalar_bytes, call: Some(call) });
            }
            Ok(Program::new(kernels, path.to_owned(), base, Some(library)))
        }
    }

    fn new(kernels: Vec<Kernel>, path: PathBuf, base: usize, library: Option<Library>) -> Program {
        Program {
            kernels,
            path,
            base,
            lines: OnceCell::new(),
            #[cfg(feature = "gpu")]
            gpu: None,
            _library: library,
        }
    }

    /// All kernels, in source order.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The index of the kernel of this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.signature.name == name)
    }

    /// A code address as an offset from the start of the library.
    pub(crate) fn site(&self, address: *const c_void) -> u32 {
        (address as usize).wrapping_sub(self.base) as u32
    }

    /// The source line of the instruction before a location, which is a return address; 0 if unknown.
    pub(crate) fn line(&self, site: u32) -> usize {
        let lines = self.lines.get_or_init(|| Loader::new(&self.path).ok());
        let Some(lines) = lines else { return 0 };
        let address = u64::from(site).saturating_sub(1) + lines.relative_address_base();
        let Ok(mut frames) = lines.find_frames(address) else { return 0 };
        while let Ok(Some(frame)) = frames.next() {
            if let Some(location) = frame.location
                && location.file.is_some_and(|file| file.ends_with("kernels.metal"))
            {
                return location.line.unwrap_or(0) as usize;
            }
        }
        0
    }
}

/// The load address of the library that contains `symbol`.
fn base_of(symbol: *const c_void) -> usize {
    // SAFETY: all zeros is a value of this struct of pointers, and dladdr fills it in.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(symbol, &mut info);
        info.dli_fbase as usize
    }
}
