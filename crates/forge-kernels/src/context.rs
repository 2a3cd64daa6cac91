//! What templates read: a spec's own fields, and what follows from them. Arithmetic is done here, so that templates
//! only choose and print.

use forge_ir::{BLOCK, Format, Pairing};
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

use crate::spec::{
    Argmax, AttendJoin, AttendSplit, AttendTiled, Embed, Epilogue, Project, RmsNorm, RotateAppend, Rows, Spec,
};

/// Threadgroup memory that lets at least two threadgroups share a core.
pub(crate) const DEFAULT_MEMORY: usize = 16 * 1024;

/// Floats between rows of the tiles of `project/many`: a block and 4 that move neighbours to other banks.
pub(crate) const TILE_PITCH: usize = BLOCK + 4;

/// Columns in a packet: the 16 bytes of weights that a lane loads at once.
pub(crate) const fn packet_columns(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::F16 | Format::Bf16 => 8,
        Format::Q8_0 => 16,
        Format::Q4_0 => 32,
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
        Spec::Embed(embed) => (
            value(EmbedContext {
                base,
                spec: embed,
                weight: Weight::of(embed.format, embed.width),
                threads: 128,
            }),
            vec![embed.format.name()],
        ),
        Spec::RmsNorm(norm) => (value(RmsNormContext::of(base, norm)), vec![]),
        Spec::Project(project) => {
            let context = ProjectContext::of(base, project);
            let support =
                [project.format.name(), context.load].into_iter().chain(context.activation).collect();
            (value(context), support)
        }
        Spec::RotateAppend(rotate) => (value(RotateContext::of(base, rotate)), vec![]),
        Spec::AttendSplit(attend) => (value(SplitContext::of(base, attend)), vec![]),
        Spec::AttendJoin(join) => {
            (value(JoinContext { base, spec: join, threads: join.width.next_multiple_of(32) }), vec![])
        }
        Spec::AttendTiled(attend) => (value(TiledContext::of(base, attend)), vec![]),
        Spec::Argmax(argmax) => (value(ArgmaxContext { base, spec: argmax }), vec!["ordered"]),
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

/// The largest of 4 and 2 that divides an even width: elements moved at once.
fn step(width: usize) -> usize {
    if width.is_multiple_of(4) { 4 } else { 2 }
}

/// The Metal type of a cached element.
fn element(cache: Format) -> (&'static str, usize) {
    match cache {
        Format::F32 => ("float", 4),
        _ => ("half", 2),
    }
}

/// Lanes whose partial scores of one position are to be added, as distances, when a simdgroup holds `tile` positions.
fn distances(tile: usize) -> Vec<usize> {
    std::iter::successors(Some(tile), |distance| Some(distance * 2))
        .take_while(|&distance| distance < 32)
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

/// A weight matrix as packets.
#[derive(Serialize)]
struct Weight {
    planes: Vec<Plane>,
    /// Whether blocks have scales.
    scaled: bool,
    /// Of a packet.
    columns: usize,
    /// Of a packet, as float4.
    vectors: usize,
    /// That hold a row's columns.
    packets: usize,
    /// Packets of a padded row.
    stride: usize,
    /// Of a padded row.
    blocks: usize,
    /// Packets of a block.
    per_block: usize,
}

impl Weight {
    fn of(format: Format, width: usize) -> Weight {
        let columns = packet_columns(format);
        let blocks = width.div_ceil(BLOCK);
        let per_block = BLOCK / columns;
        let planes = format.planes().iter().map(|plane| Plane {
            name: plane.name,
            element: if plane.name == "scales" { "half" } else { "uint4" },
        });
        Weight {
            planes: planes.collect(),
            scaled: format.is_quantised(),
            columns,
            vectors: columns / 4,
            packets: width.div_ceil(columns),
            stride: blocks * per_block,
            blocks,
            per_block,
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
    threads: usize,
}

#[derive(Serialize)]
struct RmsNormContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a RmsNorm,
    /// The type in which a row is read.
    vector: &'static str,
    /// Of those in a row.
    count: usize,
    width_float: f32,
    threads: usize,
    simdgroups: usize,
}

impl<'a> RmsNormContext<'a> {
    fn of(base: Base<'a>, spec: &'a RmsNorm) -> RmsNormContext<'a> {
        let (vector, count) =
            if spec.width.is_multiple_of(4) { ("float4", spec.width / 4) } else { ("float", spec.width) };
        RmsNormContext {
            base,
            spec,
            vector,
            count,
            width_float: spec.width as f32,
            threads: 256,
            simdgroups: 8,
        }
    }
}

#[derive(Serialize)]
struct ProjectContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Project,
    #[serde(flatten)]
    weight: Weight,
    /// The support function that loads 4 columns of x.
    load: &'static str,
    /// Its last argument, where it has a bound.
    bound: String,
    /// The support function of a gate.
    activation: Option<&'static str>,
    /// How a result goes to y.
    assign: &'static str,
    rows_per_simdgroup: usize,
    simdgroups: usize,
    split: usize,
    tile_rows: usize,
    tile_outputs: usize,
    threads: usize,
    /// Outputs of a threadgroup.
    group_outputs: usize,
    /// Whether the last threadgroup has outputs past the last.
    ragged: bool,
    /// Floats between rows of a tile.
    pitch: usize,
    /// Floats of threadgroup memory.
    tile_floats: usize,
}

impl<'a> ProjectContext<'a> {
    fn of(base: Base<'a>, spec: &'a Project) -> ProjectContext<'a> {
        let weight = Weight::of(spec.format, spec.inputs);
        let knobs = spec.knobs;
        // What is loaded of x at once: a packet's columns, or a block's.
        let piece = if spec.rows == Rows::Many { BLOCK } else { weight.columns };
        let (load, bound) = if spec.inputs.is_multiple_of(piece) {
            ("load4_whole", String::new())
        } else if spec.inputs.is_multiple_of(4) {
            ("load4_guarded", format!(", {}u", spec.inputs))
        } else {
            ("load4_single", format!(", {}u", spec.inputs))
        };
        let group_outputs = match spec.rows {
            Rows::One => knobs.rows_per_simdgroup * (knobs.simdgroups / knobs.split),
            Rows::Few => knobs.rows_per_simdgroup * knobs.simdgroups,
            Rows::Many => knobs.tile_outputs,
        };
        ProjectContext {
            base,
            spec,
            weight,
            load,
            bound,
            activation: match spec.epilogue {
                Epilogue::Gate(forge_ir::Activation::Silu) => Some("silu"),
                Epilogue::Store | Epilogue::Add => None,
            },
            assign: if spec.epilogue == Epilogue::Add { "+=" } else { "=" },
            rows_per_simdgroup: knobs.rows_per_simdgroup,
            simdgroups: knobs.simdgroups,
            split: knobs.split,
            tile_rows: knobs.tile_rows,
            tile_outputs: knobs.tile_outputs,
            threads: 32 * knobs.simdgroups,
            group_outputs,
            ragged: !spec.outputs.is_multiple_of(group_outputs),
            pitch: TILE_PITCH,
            tile_floats: tile_floats(knobs.tile_rows, knobs.tile_outputs),
        }
    }
}

/// Floats of threadgroup memory that `project/many` needs: both tiles, or the results that take their place.
pub(crate) fn tile_floats(rows: usize, outputs: usize) -> usize {
    ((rows + outputs) * TILE_PITCH).max(rows * (outputs + 4))
}

#[derive(Serialize)]
struct RotateContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    query_heads: usize,
    key_heads: usize,
    width: usize,
    pairing: Pairing,
    magnitude: f32,
    /// Of the cache.
    element: &'static str,
    /// The frequencies, six a line.
    table: Vec<String>,
    /// Frequencies.
    pairs: usize,
    /// Pairs of channels of a head.
    half: usize,
    /// Pairs of channels of a row.
    row_pairs: usize,
    row_width: usize,
    threads: usize,
}

impl<'a> RotateContext<'a> {
    fn of(base: Base<'a>, spec: &RotateAppend) -> RotateContext<'a> {
        let row_width = (spec.query_heads + 2 * spec.key_heads) * spec.width;
        let line = |line: &[f32]| line.iter().map(|&x| literal(x)).collect::<Vec<_>>().join(", ");
        RotateContext {
            base,
            query_heads: spec.query_heads,
            key_heads: spec.key_heads,
            width: spec.width,
            pairing: spec.pairing,
            magnitude: spec.rotation.magnitude,
            element: element(spec.cache).0,
            table: spec.rotation.frequencies.chunks(6).map(line).collect(),
            pairs: spec.rotation.frequencies.len(),
            half: spec.width / 2,
            row_pairs: row_width / 2,
            row_width,
            threads: 128,
        }
    }
}

/// A number as a literal of Metal, exact.
pub(crate) fn literal(number: f32) -> String {
    format!("{number:?}f")
}

#[derive(Serialize)]
struct SplitContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendSplit,
    element: &'static str,
    /// Query heads that read one key head.
    group: usize,
    /// Heads of a simdgroup.
    heads_each: usize,
    /// Whether the last simdgroup has heads past the last.
    idle_heads: bool,
    threads: usize,
    /// Positions staged at once.
    tile: usize,
    /// Elements between positions.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// The type of a lane's sums of values.
    sum: &'static str,
    /// Of those, for each head.
    sums_each: usize,
    /// Whether lanes have channels past the last.
    ragged: bool,
    distances: Vec<usize>,
}

impl<'a> SplitContext<'a> {
    fn of(base: Base<'a>, spec: &'a AttendSplit) -> SplitContext<'a> {
        let group = spec.query_heads / spec.key_heads;
        let heads_each = group.div_ceil(8);
        let simdgroups = group.div_ceil(heads_each);
        let (element, bytes) = element(spec.cache);
        let pitch = spec.width + step(spec.width);
        let tile = [32, 16, 8].into_iter().find(|tile| tile * pitch * bytes <= DEFAULT_MEMORY).unwrap_or(8);
        let (sum, channels) = if spec.width.is_multiple_of(64) { ("float2", 64) } else { ("float", 32) };
        SplitContext {
            base,
            spec,
            element,
            group,
            heads_each,
            idle_heads: !group.is_multiple_of(heads_each),
            threads: 32 * simdgroups,
            tile,
            pitch,
            step: step(spec.width),
            sum,
            sums_each: spec.width.div_ceil(channels),
            ragged: !spec.width.is_multiple_of(channels),
            distances: distances(tile),
        }
    }
}

#[derive(Serialize)]
struct JoinContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendJoin,
    threads: usize,
}

#[derive(Serialize)]
struct TiledContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a AttendTiled,
    element: &'static str,
    /// Query heads that read one key head.
    group: usize,
    /// Positions staged at once.
    tile: usize,
    /// The width, up to a multiple of 8.
    padded: usize,
    /// Floats between staged rows.
    pitch: usize,
    /// Elements loaded at once.
    step: usize,
    /// 8 by 8 matrices in 8 rows of a head.
    matrices: usize,
    /// Simdgroups that share the channels of one score.
    parts: usize,
    /// Matrices of queries of a simdgroup.
    queries_each: usize,
    /// Matrices of the result of a simdgroup.
    sums_each: usize,
    distances: Vec<usize>,
}

impl<'a> TiledContext<'a> {
    fn of(base: Base<'a>, spec: &'a AttendTiled) -> TiledContext<'a> {
        let padded = spec.width.next_multiple_of(8);
        let pitch = padded + 4;
        // Scores and the diagonal take 288 and 64 floats.
        let room = DEFAULT_MEMORY / 4 - 288 - 64;
        let tile = [32, 16, 8].into_iter().find(|tile| tile * pitch <= room).unwrap_or(8);
        let matrices = padded / 8;
        let parts = 32 / tile;
        TiledContext {
            base,
            spec,
            element: element(spec.cache).0,
            group: spec.query_heads / spec.key_heads,
            tile,
            padded,
            pitch,
            step: step(spec.width),
            matrices,
            parts,
            queries_each: matrices.div_ceil(parts),
            sums_each: matrices.div_ceil(4),
            distances: distances(tile),
        }
    }
}

#[derive(Serialize)]
struct ArgmaxContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Argmax,
}
