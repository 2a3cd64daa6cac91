//! A kernel's CPU version, as an expression: the family's function and the same shape that the template was given.

use crate::names::number;
use forge_ir::{Activation, Format, Pairing, Rotation};
use forge_kernels::Spec;
use forge_kernels::spec::Epilogue;

/// `cpu::project(call, &cpu::Project { ... })`
pub(crate) fn expression(spec: &Spec) -> String {
    let (function, shape, fields) = match spec {
        Spec::Embed(embed) => {
            ("embed", "Embed", vec![("vocabulary", size(embed.vocabulary)), ("width", size(embed.width))])
        }
        Spec::RmsNorm(norm) => (
            "rms_norm",
            "RmsNorm",
            vec![
                ("width", size(norm.width)),
                ("epsilon", float(norm.epsilon)),
                ("gather", norm.gather.to_string()),
            ],
        ),
        Spec::Project(project) => (
            "project",
            "Project",
            vec![
                ("outputs", size(project.outputs)),
                ("inputs", size(project.inputs)),
                ("bias", project.bias.to_string()),
                ("epilogue", epilogue(project.epilogue)),
            ],
        ),
        Spec::RotateAppend(rotate) => (
            "rotate_append",
            "RotateAppend",
            vec![
                ("query_heads", size(rotate.query_heads)),
                ("key_heads", size(rotate.key_heads)),
                ("width", size(rotate.width)),
                ("cache", format(rotate.cache)),
                ("rotation", rotation(&rotate.rotation)),
            ],
        ),
        Spec::AttendSplit(attend) => {
            let shape = (attend.query_heads, attend.key_heads, attend.width, attend.cache, attend.scale);
            ("attend", "Attend", attend_fields(shape))
        }
        Spec::AttendTiled(attend) => {
            let shape = (attend.query_heads, attend.key_heads, attend.width, attend.cache, attend.scale);
            ("attend", "Attend", attend_fields(shape))
        }
        Spec::AttendJoin(join) => (
            "attend_join",
            "AttendJoin",
            vec![("query_heads", size(join.query_heads)), ("width", size(join.width))],
        ),
        Spec::Argmax(argmax) => ("argmax", "Argmax", vec![("vocabulary", size(argmax.vocabulary))]),
    };
    let fields: Vec<String> = fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    // Kernels that read weights are compiled for the format they are stored in.
    let stored = match spec {
        Spec::Embed(embed) => format!("::<{}>", stored(embed.format)),
        Spec::Project(project) => format!("::<{}>", stored(project.format)),
        _ => String::new(),
    };
    format!("cpu::{function}{stored}(call, &cpu::{shape} {{ {} }})", fields.join(", "))
}

fn attend_fields(
    (query_heads, key_heads, width, cache, scale): (usize, usize, usize, Format, f32),
) -> Vec<(&'static str, String)> {
    vec![
        ("query_heads", size(query_heads)),
        ("key_heads", size(key_heads)),
        ("width", size(width)),
        ("cache", format(cache)),
        ("scale", float(scale)),
    ]
}

fn size(value: usize) -> String {
    number(value as u64)
}

/// A float that Rust reads back as the same bits.
fn float(value: f32) -> String {
    format!("{value:?}")
}

fn format(format: Format) -> String {
    format!("cpu::Format::{}", crate::kernels_text::weight_type(format))
}

/// A format as the type that kernels are compiled for.
fn stored(format: Format) -> String {
    format!("cpu::{}", crate::kernels_text::weight_type(format))
}

fn epilogue(epilogue: Epilogue) -> String {
    match epilogue {
        Epilogue::Store => "cpu::Epilogue::Store".to_owned(),
        Epilogue::Add => "cpu::Epilogue::Add".to_owned(),
        Epilogue::Gate(Activation::Silu) => "cpu::Epilogue::Gate(cpu::Activation::Silu)".to_owned(),
    }
}

fn rotation(rotation: &Rotation) -> String {
    let frequencies: Vec<String> = rotation.frequencies.iter().map(|frequency| float(*frequency)).collect();
    let pairing = match rotation.pairing {
        Pairing::Half => "Half",
        Pairing::Interleaved => "Interleaved",
    };
    format!(
        "cpu::Rotation {{ frequencies: &[{}], pairing: cpu::Pairing::{pairing}, magnitude: {} }}",
        frequencies.join(", "),
        float(rotation.magnitude)
    )
}
