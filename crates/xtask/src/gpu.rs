//! `cargo xtask gpu`: programs for whoever has an NVIDIA GPU to judge, packed in a folder.
//!
//! The models of `tests/models` are compiled for CUDA in a few formats and linked into one program, `programs NAME …`,
//! which takes what each of them would take; beside it lie their files and `judge.sh`. A machine with a card needs that
//! folder and a driver, and nothing to build with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::member::make_member;

const JUDGE: &str = include_str!("../gpu/judge.sh");

/// Models in other formats than f32, in which all are; between them every kind of packing.
const FORMATS: [(&str, &[&str]); 5] = [
    ("llama", &["f16", "bf16", "q8_0", "q4_0", "affine4"]),
    ("qwen3", &["q8_0", "q4_0"]),
    ("qwen2_moe", &["q8_0"]),
    ("deepseek_v3", &["q8_0"]),
    ("qwen3_next", &["q8_0"]),
];

/// Compiles, builds and packs into `out`: all models, or those of `only`.
pub(crate) fn pack(out: &Path, only: &[String]) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = out.canonicalize().map_err(|error| error.to_string())?;
    let forge = build_forge(&root)?;
    let mut names = Vec::new();
    for (model, format) in programs(&root, only)? {
        let name = format!("{}-{}", model.replace('_', "-"), format.replace('_', "-"));
        let directory = out.join("crates").join(&name);
        let checkpoint = root.join("tests/models").join(&model);
        let options = ["--target", "cuda", "--force", "--name", &name, "--quant", &format];
        run(Command::new(&forge).arg("compile").arg(checkpoint).arg("-o").arg(&directory).args(options))?;
        make_member(&directory, &root.join("crates/forge-runtime"), "\"cuda\"")?;
        copy_files(&directory, &out.join("pack").join(&name))?;
        names.push(name);
    }
    link(&out.join("crates"), &root, &names)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = target.join("gpu/release/programs");
    let packed = out.join("pack/programs");
    fs::copy(&program, &packed).map_err(|error| format!("{}: {error}", program.display()))?;
    write(&out.join("pack/judge.sh"), JUDGE)?;
    println!("{}: on a machine with an NVIDIA GPU, sh judge.sh there", out.join("pack").display());
    Ok(())
}

/// Which models in which formats.
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

/// The compiler, as it is now.
fn build_forge(root: &Path) -> Result<PathBuf, String> {
    run(Command::new(env!("CARGO")).args(["build", "--quiet", "-p", "forge-cli"]).current_dir(root))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug/forge"))
}

/// What a program reads when it runs.
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

/// One program of all of them: a workspace, and in it a crate that hands its arguments on.
fn link(workspace: &Path, root: &Path, names: &[String]) -> Result<(), String> {
    let members: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    // Nothing is computed on the CPU but what few ids take; what starts kernels is as users have it.
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"programs\", {}]\n[profile.release]\nopt-level = 0\nstrip = true\n\
         [profile.release.package.forge-runtime]\nopt-level = 2\n",
        members.join(", ")
    );
    write(&workspace.join("Cargo.toml"), &manifest)?;
    let _ = fs::copy(root.join("Cargo.lock"), workspace.join("Cargo.lock"));
    let lines = |line: &dyn Fn(&str) -> String| names.iter().map(|name| line(name)).collect::<String>();
    let dependencies =
        lines(&|name| format!("{name} = {{ path = \"../{name}\", default-features = false }}\n"));
    let manifest = format!(
        "[package]\nname = \"programs\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\
         [dependencies]\nforge-runtime = {{ path = {:?}, default-features = false, features = [\"cuda\"] }}\n{dependencies}",
        root.join("crates/forge-runtime")
    );
    write(&workspace.join("programs/Cargo.toml"), &manifest)?;
    let mut arms = String::new();
    for name in names {
        let main = workspace.join(name).join("src/main.rs");
        let text = fs::read_to_string(&main).map_err(|error| format!("{}: {error}", main.display()))?;
        // What a program's own `main` runs its command line on.
        let run = text.split_once("cli::main::").and_then(|(_, rest)| rest.split_once(")"));
        let (run, _) = run.ok_or_else(|| format!("{} is not what it was: {text}", main.display()))?;
        arms += &format!("        Some({name:?}) => forge_runtime::cli::run::{run}, arguments),\n");
    }
    let text = format!(
        "//! Every program in one: the first argument says which.\n\nfn main() -> std::process::ExitCode {{\n    \
         let mut arguments = std::env::args_os();\n    arguments.next();\n    let name = std::env::args().nth(1);\n    \
         let outcome = match name.as_deref() {{\n{arms}        \
         _ => Err(forge_runtime::failure::Failure::misuse(\"which program? They are the folders here\")),\n    }};\n    \
         match outcome {{\n        Ok(code) => code.into(),\n        Err(failure) => {{\n            \
         eprintln!(\"{{failure}}\");\n            failure.exit_code().into()\n        }}\n    }}\n}}\n"
    );
    write(&workspace.join("programs/src/main.rs"), &text)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "-p", "programs"]).current_dir(workspace);
    run(command.env("CARGO_TARGET_DIR", target.join("gpu")))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let trouble = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(trouble)?;
    fs::write(path, text).map_err(trouble)
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed")) }
}
