//! Tensor layout of checkpoints written by MLX converters, apart from `quantization`. Values are the same
//! except for norm gains.
//!
//! * Experts of a layer are one tensor per projection; `experts` recognizes them by name.
//! * The text model of a multimodal checkpoint has another name prefix, recognized by its embedding table:
//!   [`TensorPrefixes`].
//! * Convolution taps are transposed, and gains that were stored minus 1 include the 1. A converter does both
//!   or neither, so the taps' layout also determines how gains are stored.
//! * MLA's key and value matrices are recognized by name in `layers::mla`.

use crate::checkpoint::safetensors_header::Tensor;
use crate::checkpoint::tensors::Tensors;
use crate::decoder::{Decoder, TensorPrefixes};

impl Decoder {
    /// Adjusts the description to the tensors: name prefixes, head, and layout of convolution taps. Returns
    /// notes for the user.
    pub(crate) fn find(&mut self, tensors: &Tensors) -> Vec<String> {
        let exists =
            |place: &TensorPrefixes| tensors.get(&format!("{}embed_tokens.weight", place.scope)).is_some();
        let converted = self.converted.filter(exists);
        self.place = converted.unwrap_or(self.place);
        if !exists(&self.place)
            && self.place.scope == TensorPrefixes::STANDARD.scope
            && exists(&TensorPrefixes::BASE)
        {
            self.place.scope = TensorPrefixes::BASE.scope;
        }
        if let Some(nested) = self.nested.filter(exists).filter(|_| !exists(&self.place)) {
            self.place = nested;
        }
        let notes = self.find_head(tensors);
        self.find_transposed(tensors, converted.is_some());
        notes
    }

    /// Finds the number of rows of the head and the embedding table, and whether there is a head at all.
    fn find_head(&mut self, tensors: &Tensors) -> Vec<String> {
        let mut notes = Vec::new();
        let rows = |name: &str| tensors.get(name).and_then(|tensor| tensor.shape.first()).copied();
        let (table, head) = (rows(&self.table()), rows(&self.head()));
        if let (false, Some(_), None) = (self.tied, table, head) {
            self.tied = true;
            notes.push(format!(
                "missing {} although tie_word_embeddings is false: using the embedding table as the head",
                self.head()
            ));
        }
        let rows = table.filter(|rows| self.tied || head == Some(*rows)).unwrap_or(0);
        if rows > self.vocabulary {
            self.table_rows = rows;
            notes.push(format!(
                "the embedding table has {rows} rows and vocab_size is {}: the last {} rows are not used",
                self.vocabulary,
                rows - self.vocabulary
            ));
        }
        notes
    }

    /// Finds the layout of convolution taps, and how gains are stored as a consequence.
    fn find_transposed(&mut self, tensors: &Tensors, is_converted: bool) {
        let Some((block, marked)) = &mut self.linear else { return };
        let first = marked.iter().position(|is_linear| *is_linear).unwrap_or(0);
        let layer = format!("{}layers.{first}", self.place.scope);
        let taps = tensors.get(&format!("{layer}.linear_attn.conv1d.weight"));
        let stack = tensors.get(&format!("{layer}.mlp.switch_mlp.gate_proj.weight"));
        // Binding checks later that all taps have this layout.
        block.transposed = match self.converted {
            Some(_) => is_converted,
            None => stack.is_some() || taps.is_some_and(is_transposed),
        };
        if block.transposed {
            let head_norm = self.attention.head_norm.as_mut().map(|norm| &mut norm.norm);
            [Some(&mut self.norm), head_norm].into_iter().flatten().for_each(|norm| norm.plus_one = false);
        }
    }
}

/// Whether the last axis of the taps is the single input channel, as in a transposed layout.
fn is_transposed(taps: &Tensor) -> bool {
    taps.shape.last() == Some(&1)
}
