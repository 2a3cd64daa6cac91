//! Compiles C++ source to a shared library with clang. Libraries are cached by the hash of all inputs.

use forge_msl::DeclError;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};
use std::{env, fs, io};

/// Why a source could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Clang is not installed.
    #[error(
        "the kernel checker needs clang 15 or later, and none is on the PATH.\n  On Debian or Ubuntu type: sudo apt-get install clang-19 (or clang-16)\n  On macOS type: xcode-select --install"
    )]
    NoClang,
    /// A signature that cannot be read.
    #[error("kernels.metal: {0}")]
    Declaration(#[from] DeclError),
    /// Clang rejected the source.
    #[error("clang failed to compile the kernels:\n{0}")]
    Rejected(String),
    /// The compiled library could not be loaded.
    #[error("cannot load {path}: {message}")]
    Load {
        /// The library.
        path: PathBuf,
        /// Message of the loader.
        message: String,
    },
    /// A file could not be written or clang could not be started.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

const STANDARD_LIBRARY: &[(&str, &str)] = &[
    ("metal_stdlib", include_str!("../../stdlib/metal_stdlib")),
    ("metal_simdgroup", "#include \"metal_stdlib\"\n"),
    ("metal_simdgroup_matrix", "#include \"metal_stdlib\"\n"),
    ("metal_atomic", "#include \"metal_stdlib\"\n"),
    ("metal_math", "#include \"metal_stdlib\"\n"),
    ("metal_compute", "#include \"metal_stdlib\"\n"),
    ("metal_tensor", "#include \"metal_stdlib\"\n"),
    ("MetalPerformancePrimitives/MetalPerformancePrimitives.h", "#include \"tensor.h\"\n"),
    ("types.h", include_str!("../../stdlib/types.h")),
    ("hooks.h", include_str!("../../stdlib/hooks.h")),
    ("math.h", include_str!("../../stdlib/math.h")),
    ("integer.h", include_str!("../../stdlib/integer.h")),
    ("simd.h", include_str!("../../stdlib/simd.h")),
    ("matrix.h", include_str!("../../stdlib/matrix.h")),
    ("atomic.h", include_str!("../../stdlib/atomic.h")),
    ("tensor.h", include_str!("../../stdlib/tensor.h")),
];
/// Time that a library stays in the cache after its last use.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);
const HOOKS: &str = include_str!("../../stdlib/hooks.cpp");

const COMMON: &[&str] =
    &["-x", "c++", "-std=c++20", "-fPIC", "-w", "-nostdinc", "-fno-exceptions", "-fno-rtti", "-c"];

/// Compiler flags for instrumented code. A read before a write to the same address is instrumented too, because it may read
/// uninitialized memory. Thread variables start as a pattern, floats as NaN, so that uninitialized values show in results.
const INSTRUMENTED: &[&str] = &[
    "-O1",
    "-gline-tables-only",
    "-fvisibility=hidden",
    "-fsanitize=thread,array-bounds,integer-divide-by-zero",
    "-fsanitize-recover=array-bounds,integer-divide-by-zero",
    "-mllvm",
    "-tsan-instrument-read-before-write",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-ftrivial-auto-var-init=pattern",
    "-fno-optimize-sibling-calls",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
    // A sixth of clang's time, to no effect: most time is spent in what instrumentation calls.
    "-mllvm",
    "-disable-lsr",
];

/// An installed clang.
#[derive(Clone, Debug)]
pub struct Clang {
    /// Path of the executable.
    pub command: PathBuf,
    /// First line of `clang --version`.
    pub version: String,
}

/// Finds clang on this machine, like the address-space check does.
pub fn clang() -> Result<Clang, CompileError> {
    static FOUND: OnceLock<Option<Clang>> = OnceLock::new();
    FOUND.get_or_init(search).clone().ok_or(CompileError::NoClang)
}

fn search() -> Option<Clang> {
    let command = forge_kernels::check::find_clang()?;
    let output = Command::new(&command).arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned();
    Some(Clang { command, version })
}

/// The library of `source`, from the cache or newly compiled.
pub(crate) fn library(source: &str, cache: Option<&Path>) -> Result<PathBuf, CompileError> {
    let clang = clang()?;
    let folder = match cache {
        Some(folder) => folder.to_owned(),
        // Falls back to a temporary directory if the home directory is not writable.
        None => Some(default_cache()).filter(|folder| create(folder).is_ok()).unwrap_or_else(own_folder),
    };
    let target = folder.join(format!("{}.so", key(source, &clang)));
    if target.is_file() {
        // Marks the library as used; see `prune`.
        let _ = File::open(&target).and_then(|file| file.set_modified(SystemTime::now()));
        return Ok(target);
    }
    create(&folder)?;
    prune(&folder);
    let work = tempfile::Builder::new().prefix("compile-").tempdir_in(&folder).map_err(|source| {
        CompileError::Io { what: format!("cannot write in {}", folder.display()), source }
    })?;
    create(&work.path().join("MetalPerformancePrimitives"))?;
    for (name, text) in STANDARD_LIBRARY {
        write(&work.path().join(name), text)?;
    }
    write(&work.path().join("hooks.cpp"), HOOKS)?;
    write(&work.path().join("kernels.metal"), source)?;
    let machine = machine_flags(&clang);
    let run = |flags: &[&[&str]]| run(&clang, work.path(), flags);
    let hooks = folder.join(format!("hooks-{}.o", key(HOOKS, &clang)));
    if !hooks.is_file() {
        run(&[COMMON, &["-O2", "-o", "hooks.o"], &machine, &["hooks.cpp"]])?;
        rename(&work.path().join("hooks.o"), &hooks)?;
    }
    run(&[COMMON, INSTRUMENTED, &machine, &["-I.", "-o", "kernels.o", "kernels.metal"]])?;
    let hooks = hooks.to_string_lossy();
    let link = ["-shared", "-o", "kernels.so", "kernels.o", &hooks, "-lm"];
    if !link_directly(work.path(), &link) {
        run(&[&link])?;
    }
    if cfg!(target_os = "macos") {
        // Line numbers are in a bundle next to the library, which needs the object file.
        let bundle = target.with_extension("so.dSYM");
        let arguments = ["-o", "kernels.so.dSYM", "kernels.so"];
        let made = Command::new("dsymutil").args(arguments).current_dir(work.path()).output();
        if made.is_ok_and(|output| output.status.success()) {
            let _ = fs::rename(work.path().join("kernels.so.dSYM"), bundle);
        }
    }
    rename(&work.path().join("kernels.so"), &target)?;
    Ok(target)
}

/// Links with the system's linker, which starts much faster than clang. Returns whether that worked.
fn link_directly(folder: &Path, arguments: &[&str]) -> bool {
    cfg!(target_os = "linux")
        && Command::new("ld")
            .args(arguments)
            .current_dir(folder)
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Removes libraries that have not been used for two weeks from the cache.
fn prune(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let age =
            entry.metadata().and_then(|about| about.modified()).ok().and_then(|time| time.elapsed().ok());
        let ours = entry.path().extension().is_some_and(|extension| extension == "so" || extension == "o");
        if ours && age.is_some_and(|age| age > KEPT) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Flags for this machine: FMA and f16 instructions if available, and rounding of f16 after each operation if clang
/// has a flag for it.
fn machine_flags(clang: &Clang) -> Vec<&'static str> {
    let mut flags = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            flags.extend(["-mavx2", "-mfma", "-mf16c"]);
        }
        if !clang.version.contains("version 15") {
            flags.extend(["-Xclang", "-ffloat16-excess-precision=none"]);
        }
    }
    let _ = clang;
    flags
}

fn run(clang: &Clang, folder: &Path, flags: &[&[&str]]) -> Result<(), CompileError> {
    let output = Command::new(&clang.command)
        .args(flags.iter().copied().flatten())
        .current_dir(folder)
        .output()
        .map_err(|source| CompileError::Io {
            what: format!("cannot run {}", clang.command.display()),
            source,
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(CompileError::Rejected(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// The cache key of a source, for this machine and this compiler.
fn key(source: &str, clang: &Clang) -> String {
    let parts = (COMMON, INSTRUMENTED, machine_flags(clang), STANDARD_LIBRARY, HOOKS, &clang.version);
    let mut words = [0u64; 2];
    for (salt, word) in words.iter_mut().enumerate() {
        let mut hasher = DefaultHasher::new();
        (salt, &parts, source).hash(&mut hasher);
        *word = hasher.finish();
    }
    format!("{:016x}{:016x}", words[0], words[1])
}

/// The cache directory. It belongs to the user, because a directory that others can write to would allow them to inject
/// code.
fn default_cache() -> PathBuf {
    if let Some(folder) = env::var_os("FORGE_SIM_CACHE").or_else(|| env::var_os("XDG_CACHE_HOME")) {
        return PathBuf::from(folder).join("forge-sim");
    }
    match env::var_os("HOME") {
        Some(home) if cfg!(target_os = "macos") => PathBuf::from(home).join("Library/Caches/forge-sim"),
        Some(home) => PathBuf::from(home).join(".cache/forge-sim"),
        None => own_folder(),
    }
}

/// A temporary directory of this process.
fn own_folder() -> PathBuf {
    env::temp_dir().join(format!("forge-sim-{}", std::process::id()))
}

fn create(folder: &Path) -> Result<(), CompileError> {
    fs::create_dir_all(folder)
        .map_err(|source| CompileError::Io { what: format!("cannot create {}", folder.display()), source })
}

fn write(path: &Path, text: &str) -> Result<(), CompileError> {
    fs::write(path, text)
        .map_err(|source| CompileError::Io { what: format!("cannot write {}", path.display()), source })
}

fn rename(from: &Path, to: &Path) -> Result<(), CompileError> {
    fs::rename(from, to)
        .map_err(|source| CompileError::Io { what: format!("cannot write {}", to.display()), source })
}
