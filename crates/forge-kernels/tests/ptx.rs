//! Translation of kernels to PTX: every kind of kernel, and the entry point of one.

mod common;

use forge_kernels::{KernelDecl, Spec, assemble, ptx, render};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn clang() -> PathBuf {
    ptx::find_clang().unwrap_or_else(|| {
        panic!("no clang of version 15 or later that writes PTX is installed; `apt-get install clang-19`")
    })
}

#[test]
fn every_kernel_family_translates_to_ptx() {
    // One kernel for each template and batch size, and one for each format: clang takes a second for some.
    let specs = [common::others(), common::projections(), common::attentions()].concat();
    let mut seen = BTreeSet::new();
    let specs = specs
        .into_iter()
        .filter(|spec| kinds(spec).into_iter().fold(false, |new, kind| seen.insert(kind) | new));
    let instances: Vec<_> = specs
        .enumerate()
        .map(|(index, spec)| {
            render(&format!("kernel_{index}"), &spec).unwrap_or_else(|error| panic!("{error}"))
        })
        .collect();
    let metal = assemble(&instances, "");
    for target in ptx::TARGETS {
        let text = ptx::translate(&clang(), &metal, target).unwrap_or_else(|error| panic!("{error}"));
        for instance in &instances {
            check_entry(&text, &instance.decl);
        }
        // Tensor core instructions are used on the targets that have them, and on no others.
        assert_eq!(text.contains("mma.sync"), target.capability >= 80);
        // If kernels may start early, each one waits for its predecessors.
        let waiting = text.matches("griddepcontrol.wait").count();
        assert_eq!(waiting, if target.waits { instances.len() } else { 0 });
    }
}

fn check_entry(text: &str, decl: &KernelDecl) {
    let KernelDecl { name, threads, buffers, .. } = decl;
    let entry = text.split_once(&format!(".entry {name}(")).unwrap_or_else(|| panic!("{name} is no entry")).1;
    let (parameters, rest) = entry.split_once(')').unwrap_or_else(|| panic!("{name} has no end"));
    assert_eq!(parameters.matches(".param").count(), buffers.len() + 1, "{name}: {parameters}");
    assert!(rest.starts_with(&format!("\n.reqntid {threads}, 1, 1")), "{name}");
}

/// A template's name with its batch size, with its format, with whether it uses MMA, and with
/// the query rows of attention.
fn kinds(spec: &Spec) -> [String; 4] {
    let text = format!("{spec:?}");
    let template = text.split('(').next().unwrap_or_default();
    let field = |name: &str| {
        text.split_once(name).map_or("", |(_, rest)| rest.split([',', ' ', ')']).next().unwrap_or(""))
    };
    let [rows, format, mma, lines] =
        ["rows: ", "format: ", "mma: ", "lines: "].map(|name| format!("{template} {}", field(name)));
    let with_mma = format!("{format} {mma}");
    [rows, format, with_mma, lines]
}

#[test]
fn translates_one_entry_to_ptx() {
    let text = "#include <metal_stdlib>\nusing namespace metal;\n\
        struct ScaleArgs {\n    uint rows;\n    uint kept;\n};\n\
        // grid: rows\n\
        [[max_total_threads_per_threadgroup(64)]]\n\
        kernel void scale(\n\
            device const float* x [[buffer(0)]],\n\
            device half* y [[buffer(1)]],\n\
            constant ScaleArgs& args [[buffer(2)]],\n\
            uint2 group [[threadgroup_position_in_grid]],\n\
            uint thread_id [[thread_index_in_threadgroup]]) {\n\
            threadgroup float tile[64];\n\
            tile[thread_id] = x[group.x * 64u + thread_id];\n\
            threadgroup_barrier(mem_flags::mem_threadgroup);\n\
            if (group.y < args.kept) {\n\
                y[group.x * 64u + thread_id] = half(tile[63u - thread_id]);\n\
            }\n\
        }\n";
    let text = ptx::translate(&clang(), text, ptx::TARGETS[0]).unwrap_or_else(|error| panic!("{error}"));
    let start = text.find(".visible").unwrap_or(0);
    let end = text.find("\n{").unwrap_or(text.len());
    insta::assert_snapshot!(&text[start..end].replace('\t', "    "), @r"
    .visible .entry scale(
        .param .u64 scale_param_0,
        .param .u64 scale_param_1,
        .param .align 4 .b8 scale_param_2[8]
    )
    .reqntid 64, 1, 1
    ");
}

/// The compiler moves other assembly into branches that not all lanes take, where such an instruction never ends.
#[test]
fn instructions_of_all_lanes_are_volatile() {
    let mut instructions = 0;
    for file in ["matrices.h", "metal_ptx.h"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx").join(file);
        let text = std::fs::read_to_string(&path).expect("the header exists");
        for statement in text.split("__asm__").skip(1) {
            let statement = statement.split_once(");").map_or(statement, |(statement, _)| statement);
            if statement.contains(".sync.") {
                assert!(statement.starts_with(" volatile("), "{file}: {statement}");
                instructions += 1;
            }
        }
    }
    assert!(instructions >= 9, "only {instructions} are found");
}

#[test]
fn rejects_functions_without_a_body() {
    let text = "struct CopyArgs {\n    uint rows;\n};\nuint elsewhere(uint);\n// grid: rows\n\
        [[max_total_threads_per_threadgroup(32)]]\n\
        kernel void copy(device uint* y [[buffer(0)]], constant CopyArgs& args [[buffer(1)]]) {\n\
            y[0] = elsewhere(args.rows);\n}\n";
    let error = ptx::translate(&clang(), text, ptx::TARGETS[1]).expect_err("it calls an undefined function");
    assert!(matches!(error, ptx::PtxError::MissingBody(_)), "{error}");
}
