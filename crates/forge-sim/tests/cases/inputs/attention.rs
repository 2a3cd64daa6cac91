//! Inputs of attention, with KV cache or latents, and of the kernels that prepare its rows.

use super::Content;
use crate::cases::{CONTEXT, Launch, SLOTS, Writer};
use forge_kernels::Spec;
use forge_kernels::spec::Kernel;
use forge_ops::{Attend, AttendCombine, Format, KvSource, MlaPrepare, Quantize};
use forge_oracle::KvCache;

impl Writer {
    /// The contents of a buffer of an attention kernel.
    pub(super) fn of_attention(&mut self, spec: &Spec, name: &str, rows: usize, launch: &Launch) -> Content {
        match (spec, name) {
            (Spec::RopeAppend(it), "qkv") => {
                self.floats(rows * it.kv_source.row_heads(it.query_heads, it.key_heads) * it.width)
            }
            (Spec::Rope(it), "x") => self.floats(rows * it.heads * it.width),
            (Spec::Rope(it), _) => Content::Unwritten(rows * it.heads * it.width * 4),
            (Spec::Append(it), "key" | "value") => self.floats(rows * it.key_heads * it.width),
            (Spec::Append(it), _) => unwritten_cache(it.cache, it.key_heads, it.width, it.ring),
            (Spec::RopeAppend(it), "query_gain" | "key_gain") => self.floats(it.width),
            (Spec::RopeAppend(it), "q") => Content::Unwritten(rows * it.query_heads * it.width * 4),
            (Spec::RopeAppend(it), _) => unwritten_cache(it.cache, it.key_heads, it.width, it.ring),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), "q") => {
                self.floats(rows * it.op.query_heads * it.op.width)
            }
            (Spec::AttendSplit(it), "qkv") => {
                let kv_source =
                    it.op.prologue.as_ref().map_or(KvSource::Nothing, |prologue| prologue.kv_source);
                self.floats(rows * kv_source.row_heads(it.op.query_heads, it.op.key_heads) * it.op.width)
            }
            (Spec::AttendSplit(it), "query_gain" | "key_gain") => self.floats(it.op.width),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), "sinks") => self.floats(it.op.query_heads),
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), "gates") => {
                self.floats(rows * it.op.gates.map_or(0, |gates| gates.pitch))
            }
            (Spec::AttendCombine(it), "gates") => {
                self.floats(rows * it.op.gates.map_or(0, |gates| gates.pitch))
            }
            (Spec::AttendSplit(it), "partials") => {
                let partial_bytes = (it.op.width + 2) * 4;
                Content::Unwritten(if launch.splits > 1 {
                    rows * it.op.query_heads * launch.splits as usize * partial_bytes
                } else {
                    0
                })
            }
            (Spec::AttendSplit(Kernel { op: Attend { query_heads, width, .. }, .. }), "quantized_heads")
            | (
                Spec::AttendCombine(Kernel { op: AttendCombine { query_heads, width, .. }, .. }),
                "quantized_heads",
            ) => Content::Unwritten(rows.next_multiple_of(4) * Quantize::row_words(query_heads * width) * 4),
            (Spec::AttendSplit(it), "heads") => Content::Unwritten(if launch.splits > 1 {
                0
            } else {
                rows * it.op.query_heads * it.op.width * 4
            }),
            (Spec::AttendTiled(it), "heads") => {
                Content::Unwritten(rows * it.op.query_heads * it.op.width * 4)
            }
            (Spec::AttendSplit(it) | Spec::AttendTiled(it), _) => {
                self.cache(it.op.cache, (it.op.key_heads, it.op.width), it.op.ring, launch, !it.op.appends())
            }
            (Spec::AttendCombine(it), "partials") => {
                self.floats(rows * it.op.query_heads * launch.splits as usize * (it.op.width + 2))
            }
            (Spec::AttendCombine(it), _) => Content::Unwritten(rows * it.op.query_heads * it.op.width * 4),
            (Spec::MlaAppend(it), name) => {
                let record = it.width + it.rope_width;
                match (name, &it.prepare) {
                    ("q_rope", Some(prepare)) => Content::Unwritten(rows * prepare.heads * it.rope_width * 4),
                    ("latents", _) => unwritten_cache(it.cache, 1, record, None),
                    ("latent", None) => self.floats(rows * it.width),
                    (_, None) => self.floats(rows * it.rope_width),
                    (name, Some(prepare)) => self.prepared(name, prepare, it.width, rows),
                }
            }
            (Spec::MlaAttention(it), name) => {
                let splits = launch.splits as usize;
                match (name, &it.prologue) {
                    ("q", _) => self.floats(rows * it.heads * it.width),
                    ("q_rope", _) => self.floats(rows * it.heads * it.rope_width),
                    ("latents", prologue) => {
                        self.cache(it.cache, (1, it.width + it.rope_width), None, launch, prologue.is_none())
                    }
                    ("partials", _) if splits > 1 => {
                        Content::Unwritten(rows * it.heads * splits * (it.width + 2) * 4)
                    }
                    ("heads", _) if splits == 1 => Content::Unwritten(rows * it.heads * it.width * 4),
                    ("partials" | "heads", _) | (_, None) => Content::Unwritten(0),
                    (name, Some(prepare)) => self.prepared(name, prepare, it.width, rows),
                }
            }
            (Spec::MlaLoadLatents(it), "latents") => {
                self.cache(it.cache, (1, it.width + it.rope_width), None, launch, true)
            }
            (Spec::MlaLoadLatents(it), "latent_tile") => Content::Unwritten(rows * it.width * 4),
            (Spec::MlaLoadLatents(it), _) => Content::Unwritten(rows * it.rope_width * 4),
            (Spec::MlaAttentionExpanded(it), name) => {
                let [begin, end] = launch.kv_range.map(|position| position as usize);
                match name {
                    "q" => self.floats(rows * it.op.queries_pitch),
                    "q_rope" => self.floats(rows * it.op.heads * it.op.rope_width),
                    "keys" => self.floats((end - begin) * it.op.heads * it.op.keys),
                    "k_rope" => self.floats((end - begin) * it.op.rope_width),
                    "values" => self.floats((end - begin) * it.op.heads * it.op.values),
                    // The softmax state before the first tile.
                    "heads" if begin == 0 => Content::Unwritten(rows * it.op.heads * it.op.values * 4),
                    "carried" if begin == 0 => Content::Unwritten(rows * it.op.heads * 2 * 4),
                    "heads" => self.floats(rows * it.op.heads * it.op.values),
                    _ => Content::Words([0.5_f32, 9.0].map(f32::to_bits).repeat(rows * it.op.heads)),
                }
            }
            _ => unreachable!("{name} is of another family"),
        }
    }

    /// A KV cache, initialized up to the length of each slot. With a prologue that appends, the kernel writes the
    /// last position of a slot.
    fn cache(
        &mut self,
        format: Format,
        (heads, width): (usize, usize),
        ring: Option<usize>,
        launch: &Launch,
        whole: bool,
    ) -> Content {
        let whole = whole || !launch.appends;
        let cache = kv_cache(format, heads, width, ring);
        let (bytes, _) = cache.random(&mut self.random, |_| cache.capacity());
        let rows = launch.positions.len();
        let mut parts = Vec::new();
        for slot in 0..SLOTS {
            let of_slot = |index: &usize| (*index < rows - launch.others) == (slot == 1);
            let reach = (0..rows).filter(of_slot).map(|index| launch.positions[index] as usize + 1).max();
            let written = reach.unwrap_or(usize::from(!whole)) - usize::from(!whole);
            for head in 0..heads {
                let at = cache.place(slot as u32, head, 0) / width * cache.head_bytes();
                let written = &bytes[at..][..written.min(cache.capacity()) * cache.head_bytes()];
                let words = written.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
                parts.push((at, words.collect()));
            }
        }
        Content::Parts(bytes.len(), parts)
    }

    /// The inputs of a row of latents.
    fn prepared(&mut self, name: &str, prepare: &MlaPrepare, width: usize, rows: usize) -> Content {
        match name {
            "queries" => self.floats(rows * prepare.columns.queries_pitch),
            "latent" => self.floats(rows * prepare.columns.latent_pitch),
            "key" => self.floats(rows * prepare.columns.key_pitch),
            _ => self.floats(width),
        }
    }
}

/// The cache of every slot, before anything is appended.
fn unwritten_cache(format: Format, heads: usize, width: usize, ring: Option<usize>) -> Content {
    Content::Unwritten(kv_cache(format, heads, width, ring).bytes())
}

fn kv_cache(format: Format, heads: usize, width: usize, ring: Option<usize>) -> KvCache {
    KvCache { slots: SLOTS, heads, context: CONTEXT, width, format, ring }
}
