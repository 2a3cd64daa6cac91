//! Real kernels and what they are given in tests: for a spec, buffers of exactly the sizes that it needs, with numbers
//! that make sense, as a recording.

pub(crate) mod experts;

use forge_ir::Format;
use forge_kernels::spec::{
    Brings, DeltaRule, Epilogue, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Function,
    LatentPrepare, Route, Rows, Summed,
};
use forge_kernels::{Instance, Spec, assemble, render};
use forge_sim::Recording;
use forge_sim::recording::{Binding, BufferSize, Command, Dispatch, Pass, Write};
use std::collections::BTreeMap;

/// A kernel, and how often and with which rows it is dispatched.
pub(crate) struct Case {
    pub(crate) spec: Spec,
    pub(crate) launches: Vec<Launch>,
}

/// Rows of a batch: the position of each. All are of slot 1, except that the last `others` are of slot 0.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) positions: Vec<u32>,
    pub(crate) others: usize,
    pub(crate) splits: u32,
    /// The share of the positions that is met, where they are met by shares.
    pub(crate) share: [u32; 2],
}

pub(crate) const CONTEXT: usize = 72;
const SLOTS: usize = 2;

impl Launch {
    /// `rows` rows that end at `last`.
    pub(crate) fn rows(rows: u32, last: u32) -> Launch {
        Launch { positions: (last + 1 - rows..=last).collect(), others: 0, splits: 1, share: [0, last + 1] }
    }

    pub(crate) fn split(self, splits: u32) -> Launch {
        Launch { splits, ..self }
    }

    pub(crate) fn share(self, begin: u32, end: u32) -> Launch {
        Launch { share: [begin, end], ..self }
    }

    /// The last `others` rows belong to another slot, from position 0.
    pub(crate) fn mixed(mut self, others: usize) -> Launch {
        let first = self.positions.len() - others;
        for (index, position) in self.positions[first..].iter_mut().enumerate() {
            *position = index as u32;
        }
        Launch { others, ..self }
    }
}

/// The text of all cases, its recording, and the weights.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) recording: Recording,
    pub(crate) weights: Vec<u8>,
}

/// Dispatches every case as often as it says, each in a pass of its own.
pub(crate) fn script(cases: &[Case]) -> Script {
    let instances: Vec<Instance> = cases
        .iter()
        .enumerate()
        .map(|(index, case)| {
            render(&format!("kernel_{index}"), &case.spec).unwrap_or_else(|error| panic!("{error:?}"))
        })
        .collect();
    let mut script = Writer::default();
    for (case, instance) in cases.iter().zip(&instances) {
        for launch in &case.launches {
            script.launch(case, instance, launch);
        }
    }
    let sizes = [("weights", true, script.weights.len()), ("scratch", false, script.end)];
    let buffers = sizes
        .map(|(name, file, bytes)| {
            (name.to_owned(), BufferSize { file: file.then(|| name.to_owned()), bytes })
        })
        .into_iter()
        .collect::<BTreeMap<_, _>>();
    Script {
        text: assemble(&instances, "Kernels under test."),
        recording: Recording { buffers, passes: script.passes },
        weights: script.weights,
    }
}

#[derive(Default)]
struct Writer {
    weights: Vec<u8>,
    end: usize,
    passes: Vec<Pass>,
    seed: u32,
}

/// What a buffer holds before a dispatch.
enum Content {
    /// Nothing yet.
    Unwritten(usize),
    /// Words.
    Words(Vec<u32>),
    /// So many bytes, of which some are written: words from a byte.
    Parts(usize, Vec<(usize, Vec<u32>)>),
    /// Of the weight file.
    Weights(Vec<u8>),
}

impl Writer {
    fn launch(&mut self, case: &Case, instance: &Instance, launch: &Launch) {
        let rows = launch.positions.len();
        let mut writes = Vec::new();
        let mut bindings = Vec::new();
        for buffer in &instance.decl.buffers {
            let content = self.content(&case.spec, &buffer.name, rows, launch);
            let written = buffer.written;
            bindings.push(match content {
                Content::Weights(bytes) => {
                    let offset = self.weights.len().next_multiple_of(64);
                    self.weights.resize(offset, 0xff);
                    self.weights.extend_from_slice(&bytes);
                    Binding { buffer: "weights".to_owned(), offset, bytes: bytes.len(), written }
                }
                Content::Words(words) => {
                    let offset = self.reserve(words.len() * 4);
                    let bytes = words.len() * 4;
                    writes.push(Write { buffer: "scratch".to_owned(), offset, words });
                    Binding { buffer: "scratch".to_owned(), offset, bytes, written }
                }
                Content::Parts(bytes, parts) => {
                    let offset = self.reserve(bytes);
                    writes.extend(parts.into_iter().map(|(at, words)| Write {
                        buffer: "scratch".to_owned(),
                        offset: offset + at,
                        words,
                    }));
                    Binding { buffer: "scratch".to_owned(), offset, bytes, written }
                }
                Content::Unwritten(bytes) => {
                    let offset = self.reserve(bytes);
                    Binding { buffer: "scratch".to_owned(), offset, bytes, written }
                }
            });
        }
        let capacity = capacity(ring_of(&case.spec)) as u32;
        let context = CONTEXT as u32;
        let values: Vec<(&str, u32)> = vec![
            ("rows", rows as u32),
            ("context", context),
            ("capacity", capacity),
            ("splits", launch.splits),
            ("first", 5),
            ("begin", launch.share[0]),
            ("end", launch.share[1]),
        ];
        let scalar =
            |name: &String| values.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
        let scalars = instance.decl.scalars.iter().map(scalar).collect();
        let groups = [0, 1, 2].map(|axis| instance.decl.grid[axis].eval(&values).unwrap_or(0));
        let dispatch = Dispatch {
            kernel: instance.name.clone(),
            bindings,
            scalars,
            groups,
            threads: instance.decl.threads,
        };
        let commands = vec![Command::Dispatch(dispatch)];
        self.passes.push(Pass { label: instance.name.clone(), writes, commands, reads: Vec::new() });
    }

    fn reserve(&mut self, bytes: usize) -> usize {
        let offset = self.end.next_multiple_of(64);
        self.end = offset + bytes;
        offset
    }

    fn random(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.seed >> 8
    }

    /// A number between -1 and 1.
    fn float(&mut self) -> f32 {
        self.random() as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Content {
        Content::Words((0..count).map(|_| self.float().to_bits()).collect())
    }

    /// A convolution's tail: of the slot that goes on, what the rows before had; nothing else.
    fn tail(&mut self, taps: usize, width: usize, launch: &Launch) -> Content {
        let first = launch.positions[0] as usize;
        let mut part = |position: usize| {
            let at = (taps + position % taps) * width * 4;
            (at, (0..width).map(|_| self.float().to_bits()).collect())
        };
        let parts = (first.saturating_sub(taps - 1)..first).map(&mut part).collect();
        Content::Parts(SLOTS * taps * width * 4, parts)
    }

    /// What a slot that goes on has learnt.
    fn memory(&mut self, rule: &DeltaRule, launch: &Launch) -> Content {
        let numbers = rule.heads * rule.keys * rule.values;
        let known = if launch.positions[0] > 0 { numbers } else { 0 };
        let learnt = (0..known).map(|_| self.float().to_bits()).collect();
        Content::Parts(SLOTS * numbers * 4, vec![(numbers * 4, learnt)])
    }

    /// A plane of a weight; columns past the last are zeros.
    fn plane(&mut self, format: Format, plane: &str, rows: usize, columns: usize) -> Content {
        let group = format.group();
        let mut bytes = Vec::new();
        for row in 0..rows {
            for column in 0..columns.next_multiple_of(group) {
                // A block of zeros may have any exponent, one that makes an infinity of its scale included.
                let empty = format == Format::Mxfp4 && row == 0 && column < group;
                let value = if column < columns { self.float() } else { 0.0 };
                match (format, plane) {
                    // A half of 2^-8, and an offset.
                    (Format::Q4K | Format::Q5K, "scales") if column % group == 0 => {
                        // Halves of 2^-12 and 2^-8, and 6 bits for each 16 columns.
                        bytes.extend([0x0c00u16, 0x1c00u16].map(u16::to_le_bytes).concat());
                        bytes.extend((0..16).map(|_| self.random() as u8 & 63));
                    }
                    (Format::Q6K, "scales") if column % group == 0 => {
                        bytes.extend(0x0400u16.to_le_bytes());
                        bytes.extend((0..16).map(|_| self.random() as u8));
                    }
                    (Format::Mxfp4, "scales") if column % group == 0 => {
                        bytes.push(if empty { 241 } else { 122 })
                    }
                    (_, "scales") if column % group == 0 => {
                        bytes.extend(0x1c00u16.to_le_bytes());
                        if matches!(format, Format::Affine(_)) {
                            bytes.extend(0xb000u16.to_le_bytes());
                        }
                    }
                    (_, "scales") => {}
                    (Format::F32, _) => bytes.extend(value.to_le_bytes()),
                    (Format::F16, _) => {
                        bytes.extend((0x3000u16 | (value.to_bits() >> 16) as u16 & 0x83ff).to_le_bytes())
                    }
                    (Format::Bf16, _) => bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
                    (Format::Q8_0, _) => bytes.push((value * 127.0) as i8 as u8),
                    _ if column % 8 == 0 => {
                        let bits = format.bits().map_or(0, |bits| bits.count());
                        bytes.extend((0..bits).map(|_| if empty { 0 } else { self.random() as u8 }));
                    }
                    _ => {}
                }
            }
        }
        Content::Weights(bytes)
    }

    /// A cache, written as far as the positions of each slot reach and no further. With a prologue the last position of a
    /// slot is still to be written.
    fn cache(
        &mut self,
        format: Format,
        (heads, width): (usize, usize),
        ring: Option<usize>,
        launch: &Launch,
        whole: bool,
    ) -> Content {
        let capacity = capacity(ring);
        let head = capacity * record(format, width);
        let rows = launch.positions.len();
        let mut parts = Vec::new();
        for slot in 0..SLOTS {
            let of_slot = |index: &usize| (*index < rows - launch.others) == (slot == 1);
            let reach = (0..rows).filter(of_slot).map(|index| launch.positions[index] as usize + 1).max();
            for number in 0..heads {
                let written = (reach.unwrap_or(usize::from(!whole)) - usize::from(!whole)).min(capacity);
                let words = written * head / capacity / 4;
                // Of a record of codes the words after them are scales.
                let is_scale = |word: usize| word * 4 % record(format, width) >= width;
                let mut value = |word| match format {
                    Format::F16 => 0x3000_3400 ^ (self.random() & 0x83ff_83ff),
                    Format::Q8_0 if is_scale(word) => 0x1c00_2000,
                    Format::Q8_0 => self.random() ^ (self.random() << 16),
                    _ => self.float().to_bits(),
                };
                parts.push(((slot * heads + number) * head, (0..words).map(&mut value).collect()));
            }
        }
        Content::Parts(SLOTS * heads * head, parts)
    }

    /// Of experts, numbers of which the last one's are the largest: it is chosen.
    fn logits(&mut self, rows: usize, experts: usize) -> Content {
        let best = |index: usize| index % experts == experts - 1;
        let logit = |index| if best(index) { 2.0 } else { self.float() };
        Content::Words((0..rows * experts).map(logit).map(f32::to_bits).collect())
    }

    /// Each row has experts of its own, the last ones first, and weights.
    fn routes(&mut self, rows: usize, experts: usize, chosen: usize) -> Content {
        let mut words = Vec::new();
        for row in 0..rows {
            words.extend((0..chosen).map(|place| routed(row * chosen + place, experts) as u32));
            words.extend((0..chosen).map(|_| self.float().to_bits()));
        }
        Content::Words(words)
    }

    /// What a row of latents is prepared of.
    fn prepared(&mut self, name: &str, prepare: &LatentPrepare, width: usize, rows: usize) -> Content {
        match name {
            "queries" => self.floats(rows * prepare.columns.queries_pitch),
            "latent" => self.floats(rows * prepare.columns.latent_pitch),
            "key" => self.floats(rows * prepare.columns.key_pitch),
            _ => self.floats(width),
        }
    }

    fn content(&mut self, spec: &Spec, name: &str, rows: usize, launch: &Launch) -> Content {
        let slot = |index: usize| u32::from(index < rows - launch.others);
        match name {
            "slots" => return Content::Words((0..rows).map(slot).collect()),
            "positions" => return Content::Words(launch.positions.clone()),
            _ => {}
        }
        let plane = name.split('_').nth(1).unwrap_or_default().to_owned();
        match (spec, name) {
            (Spec::Embed(_), "ids") => {
                // The last is outside.
                Content::Words(
                    (0..rows).map(|row| if row + 1 < rows { row as u32 * 7 } else { 9999 }).collect(),
                )
            }
            (Spec::Embed(it), "stream") if it.adds => self.floats(rows * it.width),
            (Spec::Embed(it), "stream" | "gained") => Content::Unwritten(rows * it.width * 4),
            (Spec::Embed(it), "gain") => self.floats(it.width),
            (Spec::Embed(it), "squares") => {
                Content::Unwritten(it.squares.map_or(0, |squares| squares.partials) * 4)
            }
            (Spec::Embed(it), _) => self.plane(it.format, &plane, it.vocabulary, it.width),
            (Spec::LayerNorm(it), "x") => self.floats((rows + 3) * it.width),
            (Spec::LayerNorm(it), "gain" | "bias") => self.floats(it.width),
            (Spec::LayerNorm(_), "wanted") => Content::Words((0..rows).map(|row| row as u32 + 3).collect()),
            (Spec::LayerNorm(it), _) => Content::Unwritten(rows * it.width * 4),
            (Spec::NormAdd(it), "x" | "stream") => self.floats(rows * it.width),
            (Spec::NormAdd(it), "norm_gain" | "gain") => self.floats(it.width),
            (Spec::NormAdd(_), "factor") => self.floats(1),
            (Spec::NormAdd(it), "gained") => Content::Unwritten(rows * it.width * 4),
            (Spec::NormAdd(it), _) => {
                Content::Unwritten(it.squares.map_or(0, |squares| squares.partials) * 4)
            }
            (Spec::RmsNorm(it), "x") => self.floats((rows + 3) * it.pitch.unwrap_or(it.parts * it.width)),
            (Spec::RmsNorm(it), "gain") => self.floats(it.width),
            (Spec::RmsNorm(_), "wanted") => Content::Words((0..rows).map(|row| row as u32 + 3).collect()),
            (Spec::RmsNorm(it), _) => Content::Unwritten(rows * it.parts * it.width * 4),
            (Spec::Project(it), "bias") => self.floats(it.outputs),
            (Spec::Project(it), "x") => self.floats(rows * it.inputs),
            (Spec::Project(it), "y") => match it.epilogue {
                Epilogue::Store | Epilogue::Best | Epilogue::Multiply { .. } => {
                    Content::Unwritten(rows * it.outputs * 4)
                }
                Epilogue::Add | Epilogue::AddSquares(_) => self.floats(rows * it.outputs),
                Epilogue::Gate(_) => Content::Unwritten(rows * it.outputs / 2 * 4),
            },
            (Spec::Project(it), "squares") => {
                let partials = it.norm.map_or(0, |norm| norm.partials);
                Content::Words((0..partials).map(|_| self.float().abs().to_bits()).collect())
            }
            (Spec::Project(it), "x_gain") => self.floats(it.inputs),
            (Spec::Project(it), "factors") => match it.epilogue {
                Epilogue::Multiply { of } => self.floats(of),
                _ => Content::Unwritten(0),
            },
            (Spec::Project(it), "gain") => self.floats(it.outputs),
            (Spec::Project(it), "gained") => Content::Unwritten(it.outputs * 4),
            (Spec::Project(it), "squares_out") => match it.epilogue {
                Epilogue::AddSquares(squares) => Content::Unwritten(squares.partials * 4),
                _ => Content::Unwritten(0),
            },
            (Spec::Project(it), "candidates") => {
                let each = it.knobs.rows_per_simdgroup * it.knobs.simdgroups / it.knobs.split;
                Content::Unwritten(it.outputs.div_ceil(each) * 8)
            }
            (Spec::Project(it), _) => self.plane(it.format, &plane, it.outputs, it.inputs),
            (Spec::RotateAppend(it), "qkv") => {
                self.floats(rows * it.brings.row_heads(it.query_heads, it.key_heads) * it.width)
            }
            (Spec::Rotate(it), "x") => self.floats(rows * it.heads * it.width),
            (Spec::Rotate(it), _) => Content::Unwritten(rows * it.heads * it.width * 4),
            (Spec::Append(it), "key" | "value") => self.floats(rows * it.key_heads * it.width),
            (Spec::Append(it), _) => unwritten_cache(it.cache, it.key_heads, it.width, it.ring),
            (Spec::RotateAppend(it), "query_gain" | "key_gain") => self.floats(it.width),
            (Spec::RotateAppend(it), "q") => Content::Unwritten(rows * it.query_heads * it.width * 4),
            (Spec::RotateAppend(it), _) => unwritten_cache(it.cache, it.key_heads, it.width, it.ring),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), "q") => {
                self.floats(rows * it.query_heads * it.width)
            }
            (Spec::AttendSplit(it), "qkv") => {
                let brings = it.prologue.as_ref().map_or(Brings::Nothing, |prologue| prologue.brings);
                self.floats(rows * brings.row_heads(it.query_heads, it.key_heads) * it.width)
            }
            (Spec::AttendSplit(it), "query_gain" | "key_gain") => self.floats(it.width),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), "sinks") => self.floats(it.query_heads),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), "gates") => {
                self.floats(rows * it.gates.map_or(0, |gates| gates.pitch))
            }
            (Spec::AttendJoin(it), "gates") => self.floats(rows * it.gates.map_or(0, |gates| gates.pitch)),
            (Spec::AttendSplit(it), "partials") => {
                let share = (it.width + 2) * 4;
                Content::Unwritten(if launch.splits > 1 {
                    rows * it.query_heads * launch.splits as usize * share
                } else {
                    0
                })
            }
            (Spec::AttendSplit(it), "heads") => {
                Content::Unwritten(if launch.splits > 1 { 0 } else { rows * it.query_heads * it.width * 4 })
            }
            (Spec::AttendTiled(it), "heads") => Content::Unwritten(rows * it.query_heads * it.width * 4),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), _) => {
                self.cache(it.cache, (it.key_heads, it.width), it.ring, launch, !it.appends())
            }
            (Spec::AttendJoin(it), "partials") => {
                self.floats(rows * it.query_heads * launch.splits as usize * (it.width + 2))
            }
            (Spec::AttendJoin(it), _) => Content::Unwritten(rows * it.query_heads * it.width * 4),
            (Spec::Route(it), "logits") => self.logits(rows, it.logits()),
            (Spec::Route(it), "routes") => Content::Unwritten(rows * 2 * it.routes() * 4),
            (Spec::Route(it), _) => self.logits(1, it.experts),
            (Spec::ExpertsInner(ExpertsInner { experts, .. }), "seats")
            | (Spec::ExpertsSum(ExpertsSum { experts, .. }), "seats")
            | (Spec::ExpertsTiles(ExpertsTiles { experts, .. }), "seats") => seats(*experts),
            (Spec::ExpertsInner(it), "routes") => match it.route {
                Some(_) => Content::Unwritten(rows * 2 * it.chosen * 4),
                None => self.routes(rows, it.experts, it.chosen),
            },
            (Spec::ExpertsInner(it), "logits") => {
                self.logits(rows, it.route.as_ref().map_or(0, Route::logits))
            }
            (Spec::ExpertsInner(it), "correction" | "scale") => {
                self.logits(1, it.route.as_ref().map_or(0, |route| route.experts))
            }
            (Spec::ExpertsInner(it), "x") => self.floats(rows * it.inputs),
            (Spec::ExpertsInner(it), "bias") => {
                // One gate of the last expert is no number.
                let first = (it.experts - 1) * it.outputs;
                let bias = |index| if index == first { f32::NAN } else { self.float() };
                Content::Words((0..it.experts * it.outputs).map(bias).map(f32::to_bits).collect())
            }
            (Spec::ExpertsInner(it), "squares") => {
                let partials = it.norm.map_or(0, |norm| norm.partials);
                Content::Words((0..partials).map(|_| self.float().abs().to_bits()).collect())
            }
            (Spec::ExpertsInner(it), "y") => Content::Unwritten(rows * it.chosen * it.outputs / 2 * 4),
            (Spec::ExpertsInner(it), _) => {
                let whole = self.plane(it.format, &plane, it.experts * it.outputs, it.inputs);
                apart(whole, it.experts, it.record)
            }
            (Spec::ExpertsSum(it), "routes") => self.routes(rows, it.experts, it.chosen),
            (Spec::ExpertsSum(it), "x") => self.floats(rows * it.chosen * it.inputs),
            (Spec::ExpertsSum(it), "y") => match it.ending {
                Summed::Store => Content::Unwritten(rows * it.outputs * 4),
                Summed::Add | Summed::AddSquares(_) => self.floats(rows * it.outputs),
            },
            (Spec::ExpertsSum(it), "bias") => self.floats(it.experts * it.outputs),
            (Spec::ExpertsSum(it), "gain") => self.floats(it.outputs),
            (Spec::ExpertsSum(it), "gained") => Content::Unwritten(it.outputs * 4),
            (Spec::ExpertsSum(it), "squares_out") => match it.ending {
                Summed::AddSquares(squares) => Content::Unwritten(squares.partials * 4),
                Summed::Store | Summed::Add => Content::Unwritten(0),
            },
            (Spec::ExpertsSum(it), _) => {
                let whole = self.plane(it.format, &plane, it.experts * it.outputs, it.inputs);
                apart(whole, it.experts, it.record)
            }
            (Spec::ExpertsGroup(it), "routes") => self.routes(rows, it.experts, it.chosen),
            (Spec::ExpertsGroup(it), "pairs") => Content::Unwritten(rows * it.chosen * 4),
            (Spec::ExpertsGroup(it), _) => Content::Unwritten(it.tiles(rows) * 12),
            (Spec::ExpertsTiles(it), "pairs") => Content::Words(grouped(it, rows).0),
            (Spec::ExpertsTiles(it), "tiles") => Content::Words(grouped(it, rows).1),
            (Spec::ExpertsTiles(it), "x") => {
                self.floats(rows * it.inputs * if it.gating.is_some() { 1 } else { it.chosen })
            }
            (Spec::ExpertsTiles(it), "bias") => self.floats(it.experts * it.outputs),
            (Spec::ExpertsTiles(it), "y") => Content::Unwritten(
                rows * it.chosen * it.outputs / if it.gating.is_some() { 2 } else { 1 } * 4,
            ),
            (Spec::ExpertsTiles(it), _) => {
                let whole = self.plane(it.format, &plane, it.experts * it.outputs, it.inputs);
                apart(whole, it.experts, it.record)
            }
            (Spec::ExpertsJoin(it), "routes") => self.routes(rows, 2 * it.chosen, it.chosen),
            (Spec::ExpertsJoin(it), "each") => self.floats(rows * it.chosen * it.width),
            (Spec::ExpertsJoin(it), _) if it.adds => self.floats(rows * it.width),
            (Spec::ExpertsJoin(it), _) => Content::Unwritten(rows * it.width * 4),
            (Spec::Argmax(it), "logits") => self.floats(rows * it.vocabulary),
            (Spec::Argmax(_), _) => Content::Unwritten(rows * 4),
            // Few different logits, of which hundreds are equal, but in the second row; of the third row none is a number.
            (Spec::Sample(it), "logits") => {
                // One peak, neither first nor last of what a thread looks at.
                let logit = |row: usize, id: usize, random: u32| match row {
                    1 => -(id as f32 - 300.0).abs(),
                    2 => f32::NAN,
                    _ if random.is_multiple_of(31) => f32::NAN,
                    _ => (random % 7) as f32 * 0.75 - 3.0,
                };
                let logits = (0..rows * it.vocabulary)
                    .map(|i| logit(i / it.vocabulary, i % it.vocabulary, self.random()));
                Content::Words(logits.map(f32::to_bits).collect())
            }
            // A scale, the first of the heaviest, a share, a least weight, a seed, a number. The second row is greedy, and of the
            // fourth all is kept.
            (Spec::Sample(_), "draws") => {
                let draw = |row| match row {
                    1 => [0; 8],
                    3 => [1.5_f32.to_bits(), 0, 0, 0, 7, 9, 3, 0],
                    _ => [1.5_f32.to_bits(), 250, 0xe000_0000, 0x0400_0000, 7, 9, row as u32, 0],
                };
                Content::Words((0..rows).flat_map(draw).collect())
            }
            (Spec::Sample(_), _) => Content::Unwritten(rows * 4),
            (Spec::ArgmaxJoin(it), "candidates") => {
                let pairs = rows * it.candidates;
                Content::Words((0..2 * pairs).map(|_| self.random()).collect())
            }
            (Spec::Elementwise(it), "y") => Content::Unwritten(rows * it.width * 4),
            (Spec::Elementwise(it), "b") if it.function == Function::ScaleBy => self.floats(1),
            (Spec::Elementwise(it), _) => self.floats(rows * it.width),
            (Spec::Take(it), "y") => Content::Unwritten(rows * it.width * 4),
            (Spec::Take(it), _) => self.floats(rows * it.of),
            (Spec::EachHead(it), "x") => self.floats(rows * it.pitch),
            (Spec::EachHead(it), "y") => {
                Content::Unwritten(rows * it.heads * if it.turned { it.columns } else { it.rows } * 4)
            }
            (Spec::EachHead(it), _) => self.plane(it.format, &plane, it.heads * it.rows, it.columns),
            (Spec::LatentAppend(it), name) => {
                let record = it.width + it.turned;
                match (name, &it.prepare) {
                    ("turned", Some(prepare)) => Content::Unwritten(rows * prepare.heads * it.turned * 4),
                    ("latents", _) => unwritten_cache(it.cache, 1, record, None),
                    ("latent", None) => self.floats(rows * it.width),
                    (_, None) => self.floats(rows * it.turned),
                    (name, Some(prepare)) => self.prepared(name, prepare, it.width, rows),
                }
            }
            (Spec::LatentAttend(it), name) => {
                let splits = launch.splits as usize;
                match (name, &it.prologue) {
                    ("q", _) => self.floats(rows * it.heads * it.width),
                    ("turned", _) => self.floats(rows * it.heads * it.turned),
                    ("latents", prologue) => {
                        self.cache(it.cache, (1, it.width + it.turned), None, launch, prologue.is_none())
                    }
                    ("partials", _) if splits > 1 => {
                        Content::Unwritten(rows * it.heads * splits * (it.width + 2) * 4)
                    }
                    ("heads", _) if splits == 1 => Content::Unwritten(rows * it.heads * it.width * 4),
                    ("partials" | "heads", _) | (_, None) => Content::Unwritten(0),
                    (name, Some(prepare)) => self.prepared(name, prepare, it.width, rows),
                }
            }
            (Spec::LatentShare(it), "latents") => {
                self.cache(it.cache, (1, it.width + it.turned), None, launch, true)
            }
            (Spec::LatentShare(it), "share") => Content::Unwritten(rows * it.width * 4),
            (Spec::LatentShare(it), _) => Content::Unwritten(rows * it.turned * 4),
            (Spec::AttendUnfolded(it), name) => {
                let [begin, end] = launch.share.map(|position| position as usize);
                match name {
                    "q" => self.floats(rows * it.queries_pitch),
                    "turned" => self.floats(rows * it.heads * it.turned),
                    "keys" => self.floats((end - begin) * it.heads * it.keys),
                    "turned_keys" => self.floats((end - begin) * it.turned),
                    "values" => self.floats((end - begin) * it.heads * it.values),
                    // Nothing has been met yet.
                    "heads" if begin == 0 => Content::Unwritten(rows * it.heads * it.values * 4),
                    "carried" if begin == 0 => Content::Unwritten(rows * it.heads * 2 * 4),
                    "heads" => self.floats(rows * it.heads * it.values),
                    _ => Content::Words([0.5_f32, 9.0].map(f32::to_bits).repeat(rows * it.heads)),
                }
            }
            (Spec::Convolve(it), "x") => self.floats(rows * it.pitch),
            (Spec::Convolve(it), "taps") => self.floats(it.width * it.taps),
            (Spec::Convolve(it), "tail") => self.tail(it.taps, it.width, launch),
            (Spec::Convolve(it), _) => Content::Unwritten(rows * it.width * 4),
            (Spec::DeltaRule(it), "query" | "key") => self.floats(rows * it.key_heads * it.keys),
            (Spec::DeltaRule(it), "value") => self.floats(rows * it.heads * it.values),
            (Spec::DeltaRule(it), "time" | "strength") => self.floats(rows * it.heads),
            (Spec::DeltaRule(it), "rate" | "bias") => self.floats(it.heads),
            (Spec::DeltaRule(it), "convolved") => self.floats(rows * it.channels()),
            (Spec::DeltaRule(it), "inputs") => self.floats(rows * it.inputs()),
            (Spec::DeltaRule(it), "gain") => self.floats(it.values),
            (Spec::DeltaRule(it), "memory") => self.memory(it, launch),
            (Spec::DeltaChunks(it), "query" | "key") => self.floats(rows * it.rule.key_heads * it.rule.keys),
            (Spec::DeltaChunks(it), "value") => self.floats(rows * it.rule.heads * it.rule.values),
            (Spec::DeltaChunks(it), "time" | "strength") => self.floats(rows * it.rule.heads),
            (Spec::DeltaChunks(it), "rate" | "bias") => self.floats(it.rule.heads),
            (Spec::DeltaChunks(it), "convolved") => self.floats(rows * it.rule.channels()),
            (Spec::DeltaChunks(it), "inputs") => self.floats(rows * it.rule.inputs()),
            (Spec::DeltaChunks(it), "memory") => self.memory(&it.rule, launch),
            (Spec::DeltaChunks(it), _) => Content::Unwritten(rows * it.rule.heads * it.rule.values * 4),
            (Spec::LetThrough(it), "inputs") => self.floats(rows * it.pitch),
            (Spec::LetThrough(it), "gain") => self.floats(it.values),
            (Spec::LetThrough(it), _) => self.floats(rows * it.heads * it.values),
            (Spec::DeltaStep(it), "inputs") => self.floats(rows * it.rule.inputs()),
            (Spec::DeltaStep(it), "taps") => self.floats(it.taps * it.rule.channels()),
            (Spec::DeltaStep(it), "rate" | "bias") => self.floats(it.rule.heads),
            (Spec::DeltaStep(it), "gain") => self.floats(it.rule.values),
            (Spec::DeltaStep(it), "tail") => self.tail(it.taps, it.rule.channels(), launch),
            (Spec::DeltaStep(it), "memory") => self.memory(&it.rule, launch),
            (Spec::DeltaStep(it), _) => Content::Unwritten(rows * it.rule.heads * it.rule.values * 4),
            (Spec::DeltaRule(it), _) => Content::Unwritten(rows * it.heads * it.values * 4),
            (Spec::ArgmaxJoin(_), _) => Content::Unwritten(rows * 4),
        }
    }
}

/// The cache of every slot, before anything is appended.
fn unwritten_cache(format: Format, heads: usize, width: usize, ring: Option<usize>) -> Content {
    Content::Unwritten(SLOTS * heads * capacity(ring) * record(format, width))
}

/// Bytes of a head of a position.
fn record(format: Format, width: usize) -> usize {
    match format {
        Format::F16 => 2 * width,
        Format::Q8_0 => width + width / 16,
        _ => 4 * width,
    }
}

/// Positions that a slot has room for.
fn capacity(ring: Option<usize>) -> usize {
    ring.unwrap_or(CONTEXT).min(CONTEXT)
}

/// The ring that a kernel's cache is.
fn ring_of(spec: &Spec) -> Option<usize> {
    match spec {
        Spec::Append(append) => append.ring,
        Spec::RotateAppend(rotate) => rotate.ring,
        Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => attend.ring,
        _ => None,
    }
}

/// A row count that a projection of this kind is made for, and that fills no tile.
pub(crate) fn rows_for(rows: Rows) -> Vec<Launch> {
    match rows {
        Rows::One => vec![Launch::rows(1, 0)],
        Rows::Few => vec![Launch::rows(1, 0), Launch::rows(13, 12)],
        Rows::Many => vec![Launch::rows(17, 16), Launch::rows(70, 69)],
    }
}

/// The expert of a pair: rows take turns.
fn routed(pair: usize, experts: usize) -> usize {
    experts - 1 - pair % experts
}

/// Experts lie the other way round, but for the last one, which rows have: past the end of its matrix there is nothing.
fn seats(experts: usize) -> Content {
    let last = experts as u32 - 1;
    Content::Words((0..last).rev().chain([last]).collect())
}

/// A plane of all experts' matrices, so many bytes apart; between them lies what would be noticed.
fn apart(plane: Content, experts: usize, record: usize) -> Content {
    let Content::Weights(plane) = plane else { return plane };
    let of_one = plane.len() / experts;
    let mut bytes = vec![0xff; (experts - 1) * record + of_one];
    for (to, from) in bytes.chunks_mut(record).zip(plane.chunks_exact(of_one)) {
        to[..of_one].copy_from_slice(from);
    }
    Content::Weights(bytes)
}

/// Pairs and tiles of those routes.
fn grouped(spec: &ExpertsTiles, rows: usize) -> (Vec<u32>, Vec<u32>) {
    let ExpertsTiles { experts, chosen, tile_rows, .. } = *spec;
    let (mut pairs, mut tiles) = (Vec::new(), Vec::new());
    for expert in 0..experts {
        let own: Vec<u32> = (0..rows * chosen)
            .filter(|pair| routed(*pair, experts) == expert)
            .map(|pair| pair as u32)
            .collect();
        for some in own.chunks(tile_rows) {
            tiles.extend([expert as u32, pairs.len() as u32, some.len() as u32]);
            pairs.extend(some);
        }
    }
    tiles.resize(3 * ExpertsGroup { experts, chosen, tile_rows }.tiles(rows), 0);
    (pairs, tiles)
}
