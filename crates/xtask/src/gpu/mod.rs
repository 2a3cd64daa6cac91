//! `cargo xtask gpu`: packages programs and kernel tests for a machine with an NVIDIA GPU.
//!
//! The models of `tests/models` are compiled for CUDA in several formats and linked into one program, `programs NAME …`. The
//! package also contains their weights, `verify_programs.sh` and the kernel tests ([`kernels`]). The GPU machine needs a driver, but no
//! build tools. `cargo xtask gpu-times` packages models of real shapes for benchmarks ([`times`]).

mod kernels;
mod linked;
pub(crate) mod times;

use linked::{RUNTIME, link, run, write};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::member::make_member;

const VERIFY_PROGRAMS: &str = include_str!("../../gpu/verify_programs.sh");

/// Additional formats of some models; together they cover all kinds of packing. All models are also compiled in f32.
const FORMATS: [(&str, &[&str]); 5] = [
    ("llama", &["f16", "bf16", "q8_0", "q4_0", "affine4", "affine8"]),
    ("qwen3", &["q8_0", "q4_0"]),
    ("qwen2_moe", &["q8_0"]),
    ("deepseek_v3", &["q8_0"]),
    ("qwen3_next", &["q8_0"]),
];

/// Packages models and kernel tests into `out`. `models` selects models by name; empty selects all, `None` none.
pub(crate) fn pack(out: &Path, models: Option<&[String]>, with_kernels: bool) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = out.canonicalize().map_err(|error| error.to_string())?;
    if with_kernels {
        kernels::pack_kernels(&root, &out.join("pack"))?;
    }
    if let Some(only) = models {
        pack_models(&root, &out, only)?;
    }
    write(&out.join("pack/verify_programs.sh"), VERIFY_PROGRAMS.as_bytes())?;
    println!(
        "{}: copy it to a machine with an NVIDIA GPU and run `sh verify_programs.sh` there",
        out.join("pack").display()
    );
    Ok(())
}

fn pack_models(root: &Path, out: &Path, only: &[String]) -> Result<(), String> {
    let forge = build_forge(root)?;
    let mut names = Vec::new();
    for (model, format) in programs(root, only)? {
        let name = format!("{}-{}", model.replace('_', "-"), format.replace('_', "-"));
        let directory = out.join("crates").join(&name);
        let checkpoint = root.join("tests/models").join(&model);
        let options =
            ["--target", "cuda", "--force", "--name", &name, "--quant", &format, "--runtime", RUNTIME];
        run(Command::new(&forge).arg("compile").arg(checkpoint).arg("-o").arg(&directory).args(options))?;
        make_member(&directory)?;
        copy_files(&directory, &out.join("pack").join(&name))?;
        names.push(name);
    }
    link(out, root, &names)
}

/// The packaged models with their formats.
fn programs(root: &Path, only: &[String]) -> Result<Vec<(String, String)>, String> {
    let folder = root.join("tests/models");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut models: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    models.retain(|model| only.is_empty() || only.contains(model));
    models.sort();
    let formats = |model: &str| {
        let more = FORMATS.iter().filter(|(of, _)| *of == model).flat_map(|(_, formats)| formats.iter());
        std::iter::once(&"f32").chain(more).map(|format| (*format).to_owned()).collect::<Vec<_>>()
    };
    Ok(models
        .iter()
        .flat_map(|model| formats(model).into_iter().map(move |format| (model.clone(), format)))
        .collect())
}

/// Builds the compiler and returns its path.
fn build_forge(root: &Path) -> Result<PathBuf, String> {
    run(Command::new(env!("CARGO")).args(["build", "--quiet", "-p", "forge-cli"]).current_dir(root))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug/forge"))
}

/// Copies the files that a program reads.
fn copy_files(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    for name in ["weights.safetensors", "golden.json", "tokenizer.json", "generation_config.json"] {
        let file = from.join(name);
        if file.is_file() {
            fs::copy(&file, to.join(name)).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(())
}
