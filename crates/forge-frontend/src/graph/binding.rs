//! Binds the checkpoint's tensors to the graph's weights.
//!
//! A tensor that is missing or has the wrong shape is recorded and replaced by a placeholder, so that all
//! problems are found at once. Tensors that are unused, or not fully used, are errors too.

use crate::checkpoint::safetensors_header::{EncodedAs, Tensor};
use crate::checkpoint::tensors::Tensors;
use crate::quantization::mlx;
use crate::quantization::mlx::Quantization;
use crate::quantization::mxfp4;
use crate::suggest::nearest;
use forge_ir::{Diagnostic, Format, Stack, Weight, WeightId, WeightSlice};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The weights bound so far.
pub(crate) struct Bindings<'a> {
    /// The checkpoint's tensors; with `None`, every requested tensor exists, in bf16.
    tensors: Option<&'a Tensors>,
    /// The configuration of quantized tensors.
    pub(crate) quantization: Option<Quantization>,
    /// Every weight bound so far.
    pub(crate) weights: Vec<Weight>,
    /// For each tensor, the weights that are slices of it.
    bound: BTreeMap<String, Vec<WeightId>>,
    /// Scales and biases of quantized tensors.
    companions_bound: BTreeSet<String>,
    ignored: BTreeSet<String>,
    /// Rows of tensors beyond those that the model has, by tensor name.
    further_rows: BTreeMap<String, Range<usize>>,
    /// Missing tensors, with their shapes.
    missing: Vec<(String, Vec<usize>)>,
    faults: Vec<Diagnostic>,
}

/// A request for a weight.
#[derive(Clone, Copy)]
pub(crate) struct TensorRequest<'a> {
    /// Name of its tensor. For a stack with one tensor per matrix, `*` stands for the index.
    pub(crate) tensor: &'a str,
    /// Shape of the weight.
    pub(crate) shape: &'a [usize],
    /// How it is stored, if it is a stack.
    pub(crate) stack: Option<Stack>,
    /// Which slice of the tensor it is.
    pub(crate) cut: Option<WeightSlice>,
    /// Whether 1 is added to the stored values.
    pub(crate) plus_one: bool,
    /// The tensor's dimensions after the first, if it has more dimensions than the weight.
    pub(crate) lies: &'a [usize],
}

impl<'a> TensorRequest<'a> {
    /// A weight that is a whole tensor.
    pub(crate) fn whole(tensor: &'a str, shape: &'a [usize]) -> TensorRequest<'a> {
        TensorRequest { tensor, shape, stack: None, cut: None, plus_one: false, lies: &[] }
    }

    /// The tensor's shape, if it differs from the weight's.
    fn own_shape(&self, weight: &Weight) -> Option<Vec<usize>> {
        let all = weight.tensor_shape().iter().product::<usize>();
        let each = self.lies.iter().product::<usize>().max(1);
        (!self.lies.is_empty()).then(|| [&[all / each], self.lies].concat())
    }
}

/// Maximum number of problems of one kind that are reported; the rest are counted.
const MAX_REPORTED: usize = 16;

/// Number of missing tensors after which the search stops.
const MAX_MISSING: usize = 1000;

/// Maximum number of tensors. A header could not hold more.
const MAX_TENSORS: usize = 1 << 18;

impl<'a> Bindings<'a> {
    /// No weights.
    pub(crate) fn new(tensors: Option<&'a Tensors>) -> Bindings<'a> {
        Bindings {
            tensors,
            quantization: None,
            weights: Vec::new(),
            bound: BTreeMap::new(),
            companions_bound: BTreeSet::new(),
            ignored: BTreeSet::new(),
            further_rows: BTreeMap::new(),
            missing: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Marks tensors that may stay unused.
    pub(crate) fn ignore(&mut self, which: impl Fn(&str) -> bool) {
        let names = self.tensors().map(|tensor| &tensor.name).filter(|name| which(name)).cloned();
        self.ignored.extend(names);
    }

    /// Marks the last rows of a tensor as unused.
    pub(crate) fn ignore_rows(&mut self, tensor: &str, rows: Range<usize>) {
        self.further_rows.insert(tensor.to_owned(), rows);
    }

    /// Whether so much is missing or requested that building the graph further is useless.
    pub(crate) fn has_too_many_faults(&self) -> bool {
        self.missing.len() > MAX_MISSING || self.bound.len() > MAX_TENSORS
    }

    /// Whether the checkpoint has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.is_some_and(|tensors| tensors.get(name).is_some())
    }

    fn tensors(&self) -> impl Iterator<Item = &'a Tensor> + use<'a> {
        self.tensors.into_iter().flat_map(Tensors::iter)
    }

    /// Records a problem.
    pub(crate) fn fault(&mut self, fault: Diagnostic) {
        self.faults.push(fault);
    }

    /// Binds a weight. Problems with its tensors are recorded.
    pub(crate) fn bind(&mut self, request: TensorRequest<'_>) -> WeightId {
        let TensorRequest { tensor, shape, stack, cut, plus_one, .. } = request;
        let (tensor, shape) = (tensor.to_owned(), shape.to_vec());
        let mut weight =
            Weight { tensor, stack, cut, shape, format: Format::F32, blocks: None, encoding: None, plus_one };
        let first = weight.tensor_of(0);
        let parts = self.bound.get(&first).map_or(&[][..], |ids| ids);
        if let Some(id) = parts.iter().find(|id| self.weights[id.0].cut == cut) {
            return *id;
        }
        let id = WeightId(self.weights.len());
        let stored = self.tensors.and_then(|tensors| tensors.get(&first));
        weight.blocks = stored.and_then(|tensor| tensor.blocks);
        weight.encoding = stored.and_then(|tensor| tensor.encoded).map(|encoded| encoded.encoding);
        // Slices of a tensor share the format of the first, which was checked then.
        weight.format = match parts.first() {
            Some(part) => self.weights[part.0].format,
            None => self.common_format(&weight, request),
        };
        for tensor in weight.tensors() {
            self.bound.entry(tensor).or_default().push(id);
        }
        self.weights.push(weight);
        id
    }

    /// The common format of all tensors of a weight. Problems are recorded.
    fn common_format(&mut self, weight: &Weight, request: TensorRequest<'_>) -> Format {
        let mut tensors = weight.tensors();
        let Some(first) = tensors.next() else { return Format::F32 };
        let format = self.format(&first, weight, request);
        for tensor in tensors {
            let other = self.format(&tensor, weight, request);
            let stored = |name: &str| {
                let tensor = self.tensors?.get(name)?;
                Some((tensor.blocks, tensor.encoded.map(|encoded| encoded.encoding)))
            };
            let differs = other != format || stored(&first) != stored(&tensor);
            if self.has(&first) && self.has(&tensor) && differs {
                let message = format!("{first} is stored as {format} and {tensor} as {other}");
                self.faults.push(
                    Diagnostic::new("F0304", message)
                        .note("all experts of a layer must have the same format"),
                );
                break;
            }
        }
        format
    }

    /// The format of one tensor of a weight. Problems are recorded.
    fn format(&mut self, name: &str, weight: &Weight, request: TensorRequest<'_>) -> Format {
        let flat = weight.tensor_shape();
        let shape = request.own_shape(weight).unwrap_or_else(|| flat.clone());
        let Some(tensors) = self.tensors else { return Format::Bf16 };
        let Some(tensor) = tensors.get(name) else {
            self.missing.push((name.to_owned(), shape));
            return Format::F32;
        };
        if let Some(encoded) = tensor.encoded {
            return self.format_of_encoded(tensor, encoded, weight, &shape);
        }
        if tensor.dtype == "U32" {
            return self.format_of_codes(tensors, tensor, weight, &shape);
        }
        if let Some(scales) = mxfp4::companion(tensor) {
            self.companions_bound.insert(scales);
            let format = mxfp4::format(tensors, tensor, &flat);
            return format.map_err(|fault| self.faults.push(fault)).unwrap_or(Format::F32);
        }
        if tensor.shape != shape && tensor.shape != flat {
            let message =
                format!("{name}: expected shape {shape:?} from the configuration, found {:?}", tensor.shape);
            self.faults.push(Diagnostic::new("F0302", message).note(format!("in file {}", tensor.file)));
        }
        if let Some(blocks) = tensor.blocks {
            if weight.cut.is_some_and(WeightSlice::transposes) {
                let message =
                    format!("{name} is quantized; column slices of quantized tensors are unsupported");
                self.faults.push(Diagnostic::new("F0304", message).note(format!("in file {}", tensor.file)));
                return Format::F32;
            }
            return blocks.format();
        }
        match tensor.dtype.as_str() {
            "F32" => Format::F32,
            "F16" => Format::F16,
            "BF16" => Format::Bf16,
            _ => {
                let message = format!("{name}: unsupported type {}", tensor.dtype);
                self.faults.push(
                    Diagnostic::new("F0304", message)
                        .note("expected F32, F16, BF16 or a quantization that config.json names"),
                );
                Format::F32
            }
        }
    }

    /// The format of a matrix that is stored as several tensors. Problems are recorded.
    fn format_of_encoded(
        &mut self,
        tensor: &Tensor,
        encoded: EncodedAs,
        weight: &Weight,
        shape: &[usize],
    ) -> Format {
        let name = &tensor.name;
        let fault = if tensor.shape != shape && tensor.shape != weight.tensor_shape() {
            let found = &tensor.shape;
            let message = format!("{name}: expected shape {shape:?} from the configuration, found {found:?}");
            Diagnostic::new("F0302", message).note(format!("stored as {}", encoded.encoding))
        } else if weight.cut.is_some_and(WeightSlice::transposes) {
            let message = format!("{name} is quantized; column slices of quantized tensors are unsupported");
            Diagnostic::new("F0304", message)
        } else {
            return encoded.format;
        };
        self.faults.push(fault.note(format!("in file {}", tensor.file)));
        Format::F32
    }

    /// The format of a quantized weight.
    fn format_of_codes(
        &mut self,
        tensors: &Tensors,
        tensor: &Tensor,
        weight: &Weight,
        shape: &[usize],
    ) -> Format {
        if weight.cut.is_some_and(WeightSlice::transposes) {
            let message =
                format!("{} is quantized; column slices of quantized tensors are unsupported", tensor.name);
            self.faults.push(Diagnostic::new("F0304", message).note(format!("in file {}", tensor.file)));
            return Format::F32;
        }
        let format = mlx::format(tensors, self.quantization.as_ref(), tensor, shape);
        // Scales and biases that this format does not have stay unused and are reported.
        let companions_bound = if format == Ok(Format::Mxfp4) { 1 } else { 2 };
        self.companions_bound.extend(mlx::companions(&tensor.name).into_iter().take(companions_bound));
        format.map_err(|fault| self.faults.push(fault)).unwrap_or(Format::F32)
    }

    /// Errors for tensors whose slices do not cover them.
    fn partly_used(&self) -> Vec<Diagnostic> {
        let mut faults = Vec::new();
        for (name, ids) in &self.bound {
            let weight = |id: &WeightId| &self.weights[id.0];
            let mut parts: Vec<_> = ids.iter().map(|id| weight(id).part()).collect();
            parts.sort_by_key(|part| part.start);
            let used =
                parts.iter().fold(0, |used, part| if part.start <= used { used.max(part.end) } else { used });
            if let Some(of) = weight(&ids[0]).cut.map(WeightSlice::of)
                && used < of
                && self.further_rows.get(name) != Some(&(used..of))
            {
                let message = format!("unused part of tensor {name}: from {used} on, of {of}");
                faults.push(Diagnostic::new("F0303", message));
            }
        }
        faults
    }

    /// Names of tensors that were left unused on purpose, or all problems found.
    pub(crate) fn finish(&mut self) -> Result<Vec<String>, Vec<Diagnostic>> {
        let mut faults = truncate(std::mem::take(&mut self.faults).into_iter(), "tensor errors");
        let unused: Vec<&Tensor> = self
            .tensors()
            .filter(|tensor| {
                let name = &tensor.name;
                !self.bound.contains_key(name)
                    && !self.companions_bound.contains(name)
                    && !self.ignored.contains(name)
            })
            .collect();
        faults.extend(self.partly_used());
        let lacking = self.missing.iter().map(|(name, shape)| {
            let message = format!("missing tensor {name} {shape:?}");
            let fault = Diagnostic::new("F0301", message);
            let mut others = self.tensors().map(|tensor| tensor.name.as_str());
            match nearest(name, unused.iter().map(|tensor| tensor.name.as_str())) {
                Some(near) => fault.note(format!("nearest unused tensor: {near}")),
                None => match nearest(name, &mut others) {
                    Some(near) => fault.note(format!("nearest tensor: {near}")),
                    None => fault,
                },
            }
        });
        let left = unused.iter().map(|tensor| {
            let message = format!("unused tensor {} {:?}", tensor.name, tensor.shape);
            let fault = Diagnostic::new("F0303", message).note(format!("in file {}", tensor.file));
            let fault = match nearest(&tensor.name, self.missing.iter().map(|(name, _)| name.as_str())) {
                Some(near) => fault.note(format!("nearest missing tensor: {near}")),
                None => match nearest(&tensor.name, self.bound.keys().map(String::as_str)) {
                    Some(near) => fault.note(format!("nearest used tensor: {near}")),
                    None => fault,
                },
            };
            fault.note("ignoring it could change the output")
        });
        faults.extend(truncate(lacking, "missing tensors"));
        faults.extend(truncate(left, "unused tensors"));
        if !faults.is_empty() {
            return Err(faults);
        }
        let rows =
            self.further_rows.iter().map(|(name, rows)| format!("{name}[{}..{}]", rows.start, rows.end));
        let ignored = self.ignored.iter().filter(|name| !self.bound.contains_key(*name));
        Ok(ignored.cloned().chain(rows).collect())
    }
}

/// The first few errors and the number of further ones.
fn truncate(faults: impl ExactSizeIterator<Item = Diagnostic>, what: &str) -> Vec<Diagnostic> {
    let count = faults.len();
    let mut reported: Vec<Diagnostic> = faults.take(MAX_REPORTED).collect();
    if let (Some(first), true) = (reported.first(), count > MAX_REPORTED) {
        reported.push(Diagnostic::new(first.code, format!("and {} more {what}", count - MAX_REPORTED)));
    }
    reported
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a tensor of 9 rows of which these are bound.
    fn binding_errors(parts: &[(usize, usize)]) -> String {
        let mut bindings = Bindings::new(None);
        for &(first, rows) in parts {
            let cut = Some(WeightSlice::Rows { first, of: 9 });
            bindings.bind(TensorRequest { cut, ..TensorRequest::whole("joined", &[rows, 4]) });
        }
        let faults = bindings.finish().err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn reports_unused_parts_of_tensors() {
        assert_eq!(binding_errors(&[(0, 9)]), "");
        assert_eq!(binding_errors(&[(5, 4), (0, 3), (3, 2)]), "");
        assert!(binding_errors(&[(0, 3), (3, 5)]).contains("unused part of tensor joined: from 8 on, of 9"));
        assert!(binding_errors(&[(0, 3), (5, 4)]).contains("unused part of tensor joined: from 3 on, of 9"));
        assert!(binding_errors(&[(1, 8)]).contains("from 0 on"));
    }

    #[test]
    fn binds_each_part_once() {
        let mut bindings = Bindings::new(None);
        let mut bind = |first| {
            let cut = Some(WeightSlice::Columns { first, of: 8 });
            bindings.bind(TensorRequest { cut, ..TensorRequest::whole("joined", &[4, 4]) })
        };
        assert_eq!([0, 4, 0].map(&mut bind), [WeightId(0), WeightId(1), WeightId(0)]);
    }
}
