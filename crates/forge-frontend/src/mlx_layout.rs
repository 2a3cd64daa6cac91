//! What becomes of a model's tensors in a checkpoint that a converter for MLX wrote, beside codes, which `quantised` reads: the
//! numbers are the same, but for gains of norms, and lie elsewhere.
//!
//! * All experts of a layer are one tensor for each projection: `experts` finds those by their names.
//! * The text model that others wrap lies at a place of its own, which its embedding table tells: [`Place`].
//! * Taps of convolutions lie along another axis, and then gains that were kept less 1 have it in them. A converter does both or
//!   neither, so that the one tells of the other.
//! * Of latents that heads make keys and values of, `latent` finds the matrices by their names.

use crate::decoder::Decoder;
use crate::safetensors_header::Tensor;
use crate::tensors::Tensors;

/// Where the tensors of a text model lie.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// What the names of all tensors begin with but the head's.
    pub(crate) scope: &'static str,
    /// The head's module, where it is not the embedding's table.
    pub(crate) head: &'static str,
    /// What the names of tensors begin with that the model does not use.
    pub(crate) ignored: &'static [&'static str],
}

impl Place {
    /// Of a text model by itself.
    pub(crate) const ALONE: Place = Place { scope: "model.", head: "lm_head", ignored: &[] };

    /// Of one that was saved without its head, by the class of the model inside: no name begins with `model.`.
    pub(crate) const BASE: Place = Place { scope: "", ..Place::ALONE };

    /// Of one that converters for MLX find beside something else, whatever it was called there.
    pub(crate) const CONVERTED: Place = Place {
        scope: "language_model.model.",
        head: "language_model.lm_head",
        ignored: &[
            "vision_tower.",
            "vision_embedder.",
            "multi_modal_projector.",
            "audio_tower.",
            "embed_vision.",
            "embed_audio.",
            "language_model.mtp.",
            "mtp.",
        ],
    };
}

impl Decoder {
    /// Takes in what the tensors alone tell: where they lie, and as what.
    /// Gives notes for the user on what was decided by them.
    pub(crate) fn find(&mut self, tensors: &Tensors) -> Vec<String> {
        let is_there = |place: &Place| tensors.get(&format!("{}embed_tokens.weight", place.scope)).is_some();
        let converted = self.converted.filter(is_there);
        self.place = converted.unwrap_or(self.place);
        if !is_there(&self.place) && self.place.scope == Place::ALONE.scope && is_there(&Place::BASE) {
            self.place.scope = Place::BASE.scope;
        }
        if let Some(nested) = self.nested.filter(is_there).filter(|_| !is_there(&self.place)) {
            self.place = nested;
        }
        let notes = self.find_head(tensors);
        self.find_turned(tensors, converted.is_some());
        notes
    }

    /// The head and the embeddings' table: how many rows they have, and whether there is a head at all.
    fn find_head(&mut self, tensors: &Tensors) -> Vec<String> {
        let mut notes = Vec::new();
        let rows = |name: &str| tensors.get(name).and_then(|tensor| tensor.shape.first()).copied();
        let (table, head) = (rows(&self.table()), rows(&self.head()));
        if let (false, Some(_), None) = (self.tied, table, head) {
            self.tied = true;
            notes.push(format!(
                "the checkpoint has no {}, though tie_word_embeddings is false: the embedding table is used as the head",
                self.head()
            ));
        }
        let rows = table.filter(|rows| self.tied || head == Some(*rows)).unwrap_or(0);
        if rows > self.vocabulary {
            self.table_rows = rows;
            notes.push(format!(
                "the embedding table has {rows} rows, and vocab_size is {}: the last {} are left out",
                self.vocabulary,
                rows - self.vocabulary
            ));
        }
        notes
    }

    /// Which axis of convolutions' taps is that of the taps, and what follows from that for gains.
    fn find_turned(&mut self, tensors: &Tensors, is_converted: bool) {
        let Some((block, marked)) = &mut self.linear else { return };
        let first = marked.iter().position(|is_linear| *is_linear).unwrap_or(0);
        let layer = format!("{}layers.{first}", self.place.scope);
        let taps = tensors.get(&format!("{layer}.linear_attn.conv1d.weight"));
        let stack = tensors.get(&format!("{layer}.mlp.switch_mlp.gate_proj.weight"));
        // The axes of all taps have to agree with what the place or a stack says: that is seen when they are bound.
        block.turned = match self.converted {
            Some(_) => is_converted,
            None => stack.is_some() || taps.is_some_and(lies_turned),
        };
        if block.turned {
            let head_norm = self.attention.head_norm.as_mut().map(|norm| &mut norm.norm);
            [Some(&mut self.norm), head_norm].into_iter().flatten().for_each(|norm| norm.plus_one = false);
        }
    }
}

/// Whether the last axis of a convolution's taps is that of its one input, and not that of the taps, of which there are several.
fn lies_turned(taps: &Tensor) -> bool {
    taps.shape.last() == Some(&1)
}
