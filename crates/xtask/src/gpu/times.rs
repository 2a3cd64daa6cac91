//! `cargo xtask gpu-times`: packages programs of real model shapes for benchmarks on an NVIDIA GPU.
//!
//! No checkpoint is needed. The package only contains the headers of the weight files; `bench_programs.sh` fills in random weights on
//! the GPU machine, more than 1 GB/s, and runs each program's `bench`.

use super::linked::{RUNTIME, link, write};
use forge_codegen::{CrateOptions, LAYOUTS, layouts_ptx, render};
use forge_frontend::{DummyWeights, Options as Reading, read_model};
use forge_ir::{Diagnostic, Format, Graph};
use forge_kernels::ptx;
use forge_planner::{Chip, Options, Plan, Quant, Tuned, plan};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::member::make_member;

const BENCH_PROGRAMS: &str = include_str!("../../gpu/bench_programs.sh");

/// Packages programs of `shapes` into `out`. A shape is `NAME=FORMAT,FORMAT`; NAME is a configuration in tests/shapes or a path.
pub(crate) fn pack(out: &Path, shapes: &[String], tunable: bool, tuned: Option<&Path>) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = out.canonicalize().map_err(|error| error.to_string())?;
    let clang = ptx::find_clang().ok_or("no clang with NVPTX support on the PATH")?;
    let tuned = match tuned {
        None => None,
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(Tuned::parse(&text).map_err(|why| format!("{}: {why}", path.display()))?)
        }
    };
    let mut names = Vec::new();
    for (config, format) in programs(&root, shapes)? {
        let stem = config.file_stem().unwrap_or_default().to_string_lossy().to_lowercase().replace('.', "-");
        let name = format!("{stem}-{}", format.name().replace('_', "-"));
        let (graph, plan) = planned(&config, &name, format, tuned.clone())?;
        let crate_options = CrateOptions {
            name: name.clone(),
            parameters: graph
                .weights
                .iter()
                .map(|it| it.shape.iter().map(|n| *n as u64).product::<u64>())
                .sum(),
            chip: Chip::common_card(),
            has_chat_template: false,
            cuda: true,
            tunable,
            runtime: Some(RUNTIME.to_owned()),
            command: "cargo xtask gpu-times".to_owned(),
            version: env!("CARGO_PKG_VERSION"),
        };
        let mut files = render(&plan, &crate_options).map_err(|error| error.to_string())?;
        translate(&clang, "src/kernels.metal", |target| format!("src/{}", target.file), &mut files)?;
        if tunable {
            translate(&clang, LAYOUTS, layouts_ptx, &mut files)?;
        }
        let directory = out.join("crates").join(&name);
        for (path, bytes) in files {
            write(&directory.join(path), &bytes)?;
        }
        make_member(&directory)?;
        let header = forge_weights::header(&graph, &plan.weights).map_err(|fault| fault.to_string())?;
        write(&out.join("pack").join(&name).join("weights.header"), &header)?;
        println!("{name}: {:.2} GB of weights", plan.weight_bytes() as f64 / 1e9);
        names.push(name);
    }
    link(&out, &root, &names)?;
    write(&out.join("pack/bench_programs.sh"), BENCH_PROGRAMS.as_bytes())?;
    println!(
        "{}: copy it to a machine with an NVIDIA GPU and run `sh bench_programs.sh` there",
        out.join("pack").display()
    );
    Ok(())
}

/// The packaged configurations with their formats.
fn programs(root: &Path, shapes: &[String]) -> Result<Vec<(PathBuf, Format)>, String> {
    let mut programs = Vec::new();
    for shape in shapes {
        let (name, formats) = shape
            .split_once('=')
            .ok_or_else(|| format!("invalid shape `{shape}`: expected NAME=FORMAT,FORMAT"))?;
        let own = root.join("tests/shapes").join(format!("{name}.json"));
        let config = if own.is_file() { own } else { PathBuf::from(name) };
        for format in formats.split(',') {
            let format = Format::from_name(format).ok_or_else(|| format!("unknown format `{format}`"))?;
            programs.push((config.clone(), format));
        }
    }
    Ok(programs)
}

/// Graph and plan of a configuration, as by `forge compile --target cuda`.
fn planned(config: &Path, name: &str, format: Format, tuned: Option<Tuned>) -> Result<(Graph, Plan), String> {
    let message = |faults: Vec<Diagnostic>| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        format!("{}: {}", config.display(), faults.join("; "))
    };
    let text = fs::read_to_string(config).map_err(|error| format!("{}: {error}", config.display()))?;
    let reading = Reading { name: name.to_owned(), ..Reading::default() };
    let shapes = DummyWeights::new(&text, &reading).map_err(message)?;
    let chip = Chip::common_card();
    let options = Options {
        quant: Quant::To(format),
        chip: Some(chip),
        chunk: chip.chunk(),
        tuned,
        ..Options::default()
    };
    let graph = read_model(&shapes, &reading).map_err(message)?.graph;
    let graph = forge_planner::untie(graph, &options).map_err(message)?;
    let plan = plan(&graph, &options).map_err(message)?;
    Ok((graph, plan))
}

/// Adds the PTX of a kernel source for each target.
fn translate(
    clang: &Path,
    text: &str,
    name: impl Fn(&ptx::Target) -> String,
    files: &mut forge_codegen::CrateFiles,
) -> Result<(), String> {
    let translated = ptx::translate_all(clang, &String::from_utf8_lossy(&files[text]));
    for (target, ptx) in ptx::TARGETS.iter().zip(translated.map_err(|error| error.to_string())?) {
        files.insert(name(target), ptx.into_bytes());
    }
    Ok(())
}
