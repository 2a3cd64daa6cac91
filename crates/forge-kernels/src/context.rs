//! Template contexts: a spec's fields and values derived from them. Arithmetic is done here, so that
//! templates only select and print.

use forge_ops::{Affine, BLOCK, Bits, Format, SUPERBLOCK, Scales};
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

pub(crate) use crate::matmul::context::{Tile, group_outputs};

use crate::attention::context::{CombineContext, SplitContext, TiledContext};
pub(crate) use crate::attention::context::{
    channels, element, expanded_bytes, queries_fit, sums_bytes, tile_bytes,
};
use crate::attention::direct::DirectContext;
pub(crate) use crate::attention::direct::{DIRECT_LINES, WIDEST_DIRECT};
use crate::attention::grouped::GroupedContext;
pub(crate) use crate::attention::grouped::{LINES, LINES_MEMORY, WIDEST_LINE, grouped_bytes};
use crate::attention::rope::{AppendContext, RopeAppendContext, RopeContext};
use crate::matmul::context::{LinearContext, QuantizeContext};
use crate::mla::context::{
    ExpandedContext, LoadLatentsContext, MlaAppendContext, MlaAttentionContext, PerHeadContext,
};
use crate::moe::context::{InnerContext, RouteContext, SumContext};
use crate::moe::grouped::{CombineContext as ExpertsCombineContext, GroupContext, TilesContext};
use crate::norm::context::{
    ElementwiseContext, LayerNormContext, NormAddContext, RmsNormContext, SliceContext,
};
pub(crate) use crate::recurrent::context::LANES;
use crate::recurrent::context::{ConvolveContext, DeltaChunksContext, DeltaRuleContext, GatedRmsNormContext};
use crate::spec::Spec;
use forge_ops::{Argmax, ArgmaxCombine, Embed, Sample};

/// Threadgroup memory in bytes that allows at least two threadgroups per core.
pub(crate) const DEFAULT_MEMORY: usize = 16 * 1024;

/// Maximum head width with one packet of channels per lane.
pub(crate) const WIDEST_HEAD: usize = 256;

/// Maximum threadgroup memory of attention in bytes, for heads of this width. With wide heads an Apple core
/// holds one threadgroup.
pub(crate) fn head_memory(width: usize) -> usize {
    if width <= WIDEST_HEAD { DEFAULT_MEMORY } else { LINES_MEMORY }
}

/// Columns of a packet, which a lane loads at once: 16 bytes of weights, or a block if the format does not
/// divide so.
pub(crate) const fn packet_columns(format: Format) -> usize {
    match (format, format.bits()) {
        (Format::F32, _) => 4,
        (Format::F16 | Format::Bf16, _) => 8,
        (Format::Fp8 | Format::Q8_0, _) | (_, Some(Bits::Eight)) => 16,
        _ => 32,
    }
}

/// Elements of the packed values' plane in a packet.
pub(crate) const fn packet_elements(format: Format) -> usize {
    match format.bits() {
        Some(Bits::Six | Bits::Three) => 3,
        Some(Bits::Five) => 5,
        _ => 1,
    }
}

/// Template variables of a spec that has passed `limits`.
pub(crate) fn context(name: &str, spec: &Spec) -> Value {
    let base = Base { name, args: format!("{}Args", camel_case(name)) };
    match spec {
        Spec::Embed(embed) => value(EmbedContext::of(base, embed)),
        Spec::RmsNorm(norm) => value(RmsNormContext::of(base, norm)),
        Spec::NormAdd(norm) => value(NormAddContext::of(base, norm)),
        Spec::LayerNorm(norm) => value(LayerNormContext::of(base, norm)),
        Spec::Linear(linear) => value(LinearContext::of(base, linear)),
        Spec::Quantize(quantize) => value(QuantizeContext::of(base, quantize)),
        Spec::Rope(rope) => value(RopeContext::of(base, rope)),
        Spec::Append(append) => value(AppendContext::of(base, append)),
        Spec::RopeAppend(rope) => value(RopeAppendContext::of(base, rope)),
        Spec::AttendSplit(attend) => value(SplitContext::of(base, attend)),
        Spec::AttendCombine(combine) => value(CombineContext::of(base, combine)),
        Spec::AttendTiled(attend) if attend.layout.knobs.lines == LINES => {
            value(GroupedContext::of(base, attend))
        }
        Spec::AttendTiled(attend) if attend.layout.knobs.lines == DIRECT_LINES => {
            value(DirectContext::of(base, attend))
        }
        Spec::AttendTiled(attend) => value(TiledContext::of(base, attend)),
        Spec::PerHeadLinear(each) => value(PerHeadContext::of(base, each)),
        Spec::MlaAppend(append) => value(MlaAppendContext::of(base, append)),
        Spec::MlaAttention(attend) => value(MlaAttentionContext::of(base, attend)),
        Spec::MlaLoadLatents(load) => value(LoadLatentsContext::of(base, load)),
        Spec::MlaAttentionExpanded(attend) => value(ExpandedContext::of(base, attend)),
        Spec::Convolve(convolve) => value(ConvolveContext::of(base, convolve)),
        Spec::DeltaRule(rule) => value(DeltaRuleContext::of(base, rule)),
        Spec::DeltaChunks(chunks) => value(DeltaChunksContext::of(base, chunks)),
        Spec::GatedRmsNorm(through) => value(GatedRmsNormContext::of(base, through)),
        Spec::DeltaStep(step) => value(DeltaRuleContext::of_step(base, step)),
        Spec::Route(route) => value(RouteContext::of(base, route)),
        Spec::ExpertsInner(inner) => value(InnerContext::of(base, inner)),
        Spec::ExpertsSum(sum) => value(SumContext::of(base, sum)),
        Spec::ExpertsGroup(group) => value(GroupContext::of(base, group)),
        Spec::ExpertsTiles(tiles) => value(TilesContext::of(base, tiles)),
        Spec::ExpertsCombine(combine) => value(ExpertsCombineContext::of(base, combine)),
        Spec::Elementwise(elementwise) => value(ElementwiseContext::of(base, elementwise)),
        Spec::SliceColumns(take) => value(SliceContext::of(base, take)),
        Spec::Argmax(argmax) => value(ArgmaxContext::of(base, argmax)),
        Spec::Sample(sample) => value(SampleContext::of(base, sample)),
        Spec::ArgmaxCombine(combine) => value(ArgmaxCombineContext::of(base, combine)),
    }
}

fn value(context: impl Serialize) -> Value {
    Value::from(Serde(context))
}

/// Converts `snake_case` to `CamelCase`: `qkv_one` to `QkvOne`.
fn camel_case(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut characters = word.chars();
            characters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(characters)
        })
        .collect()
}

#[derive(Serialize)]
pub(crate) struct Base<'a> {
    pub(crate) name: &'a str,
    /// Type name of the scalars' struct.
    args: String,
}

/// A plane as a kernel parameter.
#[derive(Serialize)]
struct Plane {
    name: &'static str,
    element: &'static str,
}

/// Support unit that dequantizes packets of a format. Formats with offsets share those of the affine formats;
/// others have a unit of their name, or share that of the same codes.
pub(crate) const fn decoder(format: Format) -> &'static str {
    match format.bits() {
        Some(bits) if format.has_offsets() => of_bits(bits),
        _ if matches!(format, Format::Nvfp4) => "mxfp4",
        _ if matches!(format, Format::Iq4Nl | Format::Iq4Xs) => "iq4",
        _ => format.name(),
    }
}

/// Support unit of an affine format.
const fn of_bits(bits: Bits) -> &'static str {
    match bits {
        Bits::Eight => "affine8",
        Bits::Six => "affine6",
        Bits::Five => "affine5",
        Bits::Four => "affine4",
        Bits::Three => "affine3",
        Bits::Two => "affine2",
    }
}

/// Support unit that loads packets from the plane, if they are structs. Other packets are 16 bytes.
fn loader(format: Format) -> Option<&'static str> {
    format.bits().filter(|bits| !matches!(bits, Bits::Eight | Bits::Four)).map(of_bits)
}

/// A weight matrix as packets.
#[derive(Serialize)]
pub(crate) struct Weight {
    /// Name of the format.
    stored: &'static str,
    /// Support unit that dequantizes it.
    decoder: &'static str,
    /// Whether a packet is a struct, and the unit that loads it.
    packed: bool,
    loader: &'static str,
    packet_type: &'static str,
    /// Function that converts loaded scales to floats.
    widened: &'static str,
    /// Type of the converted scales.
    scale_type: &'static str,
    planes: Vec<Plane>,
    /// Whether groups have scales.
    scaled: bool,
    /// Whether groups have offsets.
    offset: bool,
    /// Whether each half of a packet has its own scale, and offset: scales are `x` and `y`, offsets `z` and `w`.
    half_block_scales: bool,
    /// Whether scales of several packets are stored together. Then `widened` selects a packet's scale by its index.
    nested: bool,
    /// Columns of a packet.
    pub(crate) columns: usize,
    packet_bytes: usize,
    /// float4 vectors of a packet.
    vectors: usize,
    /// Packets that contain a row's columns.
    pub(crate) packets: usize,
    /// Packets of a padded row.
    pub(crate) stride: usize,
    /// Groups of a padded row.
    groups: usize,
    /// Packets of a group.
    per_group: usize,
    /// Blocks that contain a row's columns.
    pub(crate) blocks: usize,
    /// Packets of a block.
    pub(crate) per_block: usize,
}

impl Weight {
    pub(crate) fn of(format: Format, width: usize) -> Weight {
        let columns = packet_columns(format);
        let groups = width.div_ceil(format.group());
        let per_group = format.group() / columns;
        let (offset, half_block_scales) = (format.has_offsets(), format.has_half_scales());
        let loader = loader(format);
        // Element type of the scales plane (a group's scale and offset together), and the function that
        // converts it to floats.
        let (scales, widened) = match format {
            Format::Q6K | Format::Q3K => ("ushort", "q6_k_scales"),
            Format::Q2K => ("uint", "q2_k_scales"),
            Format::Iq4Xs => ("ushort", "iq4_xs_scale"),
            Format::Q5K | Format::Q4K => ("uint", "q4_k_scales"),
            Format::Affine(Affine { scales: Scales::Bf16, .. }) => ("uint", "bf16_pair"),
            Format::Affine(_) => ("half2", "float2"),
            Format::Mxfp4 => ("uchar", "mxfp4_scale"),
            Format::Fp8 => ("float", "fp8_scale"),
            Format::Nvfp4 => ("uint", "nvfp4_scales"),
            _ => ("half", "float"),
        };
        let planes = format.planes().iter().map(|plane| Plane {
            name: plane.name,
            element: match (plane.name, format.bits()) {
                ("scales", _) => scales,
                (_, Some(Bits::Six | Bits::Two)) => "uint2",
                (_, Some(Bits::Five | Bits::Three)) => "uint",
                _ => "uint4",
            },
        });
        Weight {
            stored: format.name(),
            decoder: decoder(format),
            packed: loader.is_some(),
            loader: loader.unwrap_or_default(),
            packet_type: match format.bits() {
                Some(Bits::Six) => "Affine6",
                Some(Bits::Five) => "Affine5",
                Some(Bits::Three) => "Affine3",
                Some(Bits::Two) => "Affine2",
                _ => "uint4",
            },
            widened,
            scale_type: match (half_block_scales, offset) {
                (true, true) => "float4",
                (false, false) => "float",
                _ => "float2",
            },
            planes: planes.collect(),
            scaled: format.is_quantized(),
            offset,
            half_block_scales,
            nested: format.group() == SUPERBLOCK || format == Format::Nvfp4,
            columns,
            packet_bytes: format.planes()[0].per_group * format.planes()[0].element.bytes() * columns
                / format.group(),
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
    /// The scale as text, since the template concatenates strings.
    factor: String,
    threads: usize,
    simdgroups: usize,
}

impl<'a> EmbedContext<'a> {
    fn of(base: Base<'a>, spec: &'a Embed) -> EmbedContext<'a> {
        let weight = Weight::of(spec.format, spec.width);
        // One packet per thread, up to a size where the barrier still pays off.
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
        // A power of two of simdgroups, with a few logits per thread.
        let threads = (spec.vocabulary / 4).next_power_of_two().clamp(32, 1024);
        ArgmaxContext { base, spec, threads, simdgroups: threads / 32 }
    }
}

#[derive(Serialize)]
struct SampleContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Sample,
    /// Bits of a token id in whole radix digits, and the largest such number.
    id_bits: u32,
    id_mask: u64,
    threads: usize,
    simdgroups: usize,
}

impl<'a> SampleContext<'a> {
    fn of(base: Base<'a>, spec: &'a Sample) -> SampleContext<'a> {
        let threads = (spec.vocabulary / 4).next_power_of_two().clamp(32, 1024);
        let bits = usize::BITS - (spec.vocabulary - 1).leading_zeros();
        let id_bits = bits.next_multiple_of(8).max(8);
        let id_mask = (1 << id_bits) - 1;
        SampleContext { base, spec, id_bits, id_mask, threads, simdgroups: threads / 32 }
    }
}

#[derive(Serialize)]
struct ArgmaxCombineContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a ArgmaxCombine,
    threads: usize,
    simdgroups: usize,
}

impl<'a> ArgmaxCombineContext<'a> {
    fn of(base: Base<'a>, spec: &'a ArgmaxCombine) -> ArgmaxCombineContext<'a> {
        let threads = (spec.candidates / 4).next_power_of_two().clamp(32, 1024);
        ArgmaxCombineContext { base, spec, threads, simdgroups: threads / 32 }
    }
}

/// Exact Metal literal of a number.
pub(crate) fn literal(number: f32) -> String {
    format!("{number:?}f")
}
