//! What templates read: a spec's own fields, and what follows from them. Arithmetic is done here, so that templates
//! only choose and print.

mod attention;
mod project;
mod rotation;
mod vectors;

use forge_ir::{Affine, BLOCK, Bits, Format};
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

pub(crate) use project::{Tile, group_outputs};

pub(crate) use self::attention::queries_fit;
use self::attention::{JoinContext, SplitContext, TiledContext};
use self::project::ProjectContext;
use self::rotation::{AppendContext, RotateAppendContext, RotateContext};
use self::vectors::{ElementwiseContext, LayerNormContext, RmsNormContext};
use crate::spec::{Argmax, ArgmaxJoin, Embed, Spec};

/// Threadgroup memory that lets at least two threadgroups share a core.
pub(crate) const DEFAULT_MEMORY: usize = 16 * 1024;

/// Columns in a packet: the 16 bytes of weights that a lane loads at once.
pub(crate) const fn packet_columns(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::F16 | Format::Bf16 => 8,
        Format::Q8_0 | Format::Affine(Affine { bits: Bits::Eight, .. }) => 16,
        Format::Q4_0 | Format::Affine(Affine { bits: Bits::Four, .. }) => 32,
    }
}

/// A template's variables, and the support units that the rendered text calls.
pub(crate) struct Context {
    pub(crate) variables: Value,
    pub(crate) support: Vec<&'static str>,
}

/// Computes the context of a spec that `limits` has passed.
pub(crate) fn context(name: &str, spec: &Spec) -> Context {
    let base = Base { name, args: format!("{}Args", camel_case(name)) };
    let (variables, support) = match spec {
        Spec::Embed(embed) => (value(EmbedContext::of(base, embed)), vec![decoder(embed.format)]),
        Spec::RmsNorm(norm) => (value(RmsNormContext::of(base, norm)), vec![]),
        Spec::LayerNorm(norm) => (value(LayerNormContext::of(base, norm)), vec![]),
        Spec::Project(project) => {
            let context = ProjectContext::of(base, project);
            let support = context.support();
            (value(context), support)
        }
        Spec::Rotate(rotate) => (value(RotateContext::of(base, rotate)), vec!["turn"]),
        Spec::Append(append) => (value(AppendContext::of(base, append)), vec![]),
        Spec::RotateAppend(rotate) => (value(RotateAppendContext::of(base, rotate)), vec!["turn"]),
        Spec::AttendSplit(attend) => {
            let context = SplitContext::of(base, attend);
            let support = context.support();
            (value(context), support)
        }
        Spec::AttendJoin(join) => (value(JoinContext::of(base, join)), vec![]),
        Spec::AttendTiled(attend) => {
            let support = attend.softcap.map(|_| "softcap").into_iter().collect();
            (value(TiledContext::of(base, attend)), support)
        }
        Spec::Elementwise(elementwise) => {
            let context = ElementwiseContext::of(base, elementwise);
            let support = context.support.into_iter().collect();
            (value(context), support)
        }
        Spec::Argmax(argmax) => (value(ArgmaxContext::of(base, argmax)), vec!["ordered"]),
        Spec::ArgmaxJoin(join) => (value(ArgmaxJoinContext::of(base, join)), vec![]),
    };
    Context { variables, support }
}

fn value(context: impl Serialize) -> Value {
    Value::from(Serde(context))
}

/// `qkv_one` -> `QkvOne`.
fn camel_case(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut characters = word.chars();
            characters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(characters)
        })
        .collect()
}

#[derive(Serialize)]
struct Base<'a> {
    name: &'a str,
    /// The type of the scalars' struct.
    args: String,
}

/// A plane as a kernel's parameter.
#[derive(Serialize)]
struct Plane {
    name: &'static str,
    element: &'static str,
}

/// The support unit that decodes packets of a format.
pub(crate) const fn decoder(format: Format) -> &'static str {
    match format {
        Format::Affine(Affine { bits: Bits::Eight, .. }) => "affine8",
        Format::Affine(Affine { bits: Bits::Four, .. }) => "affine4",
        plain => plain.name(),
    }
}

/// A weight matrix as packets.
#[derive(Serialize)]
struct Weight {
    /// Its format's name.
    stored: &'static str,
    /// What decodes it.
    decoder: &'static str,
    planes: Vec<Plane>,
    /// Whether groups have scales.
    scaled: bool,
    /// Whether groups have offsets.
    offset: bool,
    /// Of a packet.
    columns: usize,
    /// Of a packet, as float4.
    vectors: usize,
    /// That hold a row's columns.
    packets: usize,
    /// Packets of a padded row.
    stride: usize,
    /// Of a padded row.
    groups: usize,
    /// Packets of a group.
    per_group: usize,
    /// That hold a row's columns.
    blocks: usize,
    /// Packets of a block.
    per_block: usize,
}

impl Weight {
    fn of(format: Format, width: usize) -> Weight {
        let columns = packet_columns(format);
        let groups = width.div_ceil(format.group());
        let per_group = format.group() / columns;
        let offset = matches!(format, Format::Affine(_));
        let planes = format.planes().iter().map(|plane| Plane {
            name: plane.name,
            element: match plane.name {
                // A group's scale and offset are loaded at once.
                "scales" if offset => "half2",
                "scales" => "half",
                _ => "uint4",
            },
        });
        Weight {
            stored: format.name(),
            decoder: decoder(format),
            planes: planes.collect(),
            scaled: format.is_quantised(),
            offset,
            columns,
            vectors: columns / 4,
            packets: width.div_ceil(columns),
            stride: groups * per_group,
            groups,
            per_group,
            blocks: width.div_ceil(BLOCK),
            per_block: BLOCK / columns,
        }
    }
}

#[derive(Serialize)]
struct EmbedContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Embed,
    #[serde(flatten)]
    weight: Weight,
    /// The scale as text: strings are put together in the template.
    factor: String,
    threads: usize,
    simdgroups: usize,
}

impl<'a> EmbedContext<'a> {
    fn of(base: Base<'a>, spec: &'a Embed) -> EmbedContext<'a> {
        let weight = Weight::of(spec.format, spec.width);
        // A packet a thread, as far as a threadgroup is worth its barrier.
        let threads = weight.packets.next_multiple_of(32).min(256);
        let factor = literal(spec.scale);
        EmbedContext { base, spec, weight, factor, threads, simdgroups: threads / 32 }
    }
}

#[derive(Serialize)]
struct ArgmaxContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Argmax,
    threads: usize,
    simdgroups: usize,
}

impl<'a> ArgmaxContext<'a> {
    fn of(base: Base<'a>, spec: &'a Argmax) -> ArgmaxContext<'a> {
        // A power of two of simdgroups, with a few logits a thread.
        let threads = (spec.vocabulary / 4).next_power_of_two().clamp(32, 1024);
        ArgmaxContext { base, spec, threads, simdgroups: threads / 32 }
    }
}

#[derive(Serialize)]
struct ArgmaxJoinContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a ArgmaxJoin,
    threads: usize,
    simdgroups: usize,
}

impl<'a> ArgmaxJoinContext<'a> {
    fn of(base: Base<'a>, spec: &'a ArgmaxJoin) -> ArgmaxJoinContext<'a> {
        let threads = (spec.candidates / 4).next_power_of_two().clamp(32, 1024);
        ArgmaxJoinContext { base, spec, threads, simdgroups: threads / 32 }
    }
}

/// A number as a literal of Metal, exact.
pub(crate) fn literal(number: f32) -> String {
    format!("{number:?}f")
}
