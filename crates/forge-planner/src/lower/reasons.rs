//! Reasons for decode dispatches in excess of the minimum.
//!
//! A layer has at least five: the input projection of its mixer (attention or delta rule), the mixer, the
//! output projection, and two for its feed-forward network or experts. A prologue has at least one, and so
//! has an epilogue. [`reasons`] assigns every other operation of the finished list a reason: it needs
//! complete input, no kernel fuses it, or its fusion is disabled. Steps carry their reason to printed plans
//! and to the program's `info`.

use crate::fuse::list::{Epilogue, Function, Fused, Kind, Operation, UnaryOp, Value};
use crate::fuse::rules::Fusion;
use forge_ops::Format;
use std::collections::BTreeSet;

/// Reason of the step that combines KV splits.
pub(crate) const JOINS: &str = "KV splits of a long context are combined after all threadgroups finish";
/// Why rows that share a slot have steps of their own.
pub(crate) const SHARED: &str =
    "rows of one slot need what other threadgroups would write to its cache or state";

/// A reason for every operation of the list that is not part of the minimum.
pub(crate) fn reasons(list: &Fused, disabled: &BTreeSet<Fusion>) -> Vec<Option<String>> {
    let section = Section::of(list, disabled);
    let minimum = section.minimum();
    (0..list.operations.len())
        .map(|place| (!minimum.contains(&place)).then(|| section.reason(place)))
        .collect()
}

/// The list of a layer, or of the prologue or epilogue.
struct Section<'a> {
    list: &'a Fused,
    disabled: &'a BTreeSet<Fusion>,
    /// Index of the mixer, which only layers have.
    mixer: Option<usize>,
    /// Indices of the operations that the mixer's input and its cache entries depend on.
    prepared: BTreeSet<usize>,
}

impl<'a> Section<'a> {
    fn of(list: &'a Fused, disabled: &'a BTreeSet<Fusion>) -> Section<'a> {
        let mixes =
            |kind: &Kind| matches!(kind, Kind::Attend(_) | Kind::MlaAttention(_) | Kind::DeltaRule(_));
        let appends = |kind: &Kind| matches!(kind, Kind::Append { .. } | Kind::MlaAppend(_));
        let mixer = list.operations.iter().position(|operation| mixes(&operation.kind));
        let appended = (0..mixer.unwrap_or(0)).filter(|place| appends(&list.operations[*place].kind));
        let prepared = appended.chain(mixer).flat_map(|place| dependencies(list, place)).collect();
        Section { list, disabled, mixer, prepared }
    }

    /// Indices of the minimum operations.
    fn minimum(&self) -> BTreeSet<usize> {
        let position =
            |fits: fn(&Kind) -> bool| self.list.operations.iter().position(|operation| fits(&operation.kind));
        let is_projection = |kind: &Kind| matches!(kind, Kind::Linear(_));
        let projections = || {
            (0..self.list.operations.len()).filter(|place| is_projection(&self.list.operations[*place].kind))
        };
        let Some(mixer) = self.mixer else {
            let embedding = position(|kind| matches!(kind, Kind::Embed { .. }));
            return embedding.or(projections().next_back()).into_iter().collect();
        };
        let first = projections().find(|place| self.prepared.contains(place));
        let last = projections().find(|place| dependencies(self.list, *place).contains(&mixer));
        let before = last.map_or_else(BTreeSet::new, |last| dependencies(self.list, last));
        let others = || {
            let elsewhere = |place: &usize| !before.contains(place) && !self.prepared.contains(place);
            projections().filter(move |place| Some(*place) != last && elsewhere(place))
        };
        let inner = position(|kind| matches!(kind, Kind::ExpertsInner(_))).or_else(|| others().next());
        let outer = position(|kind| matches!(kind, Kind::ExpertsSum(_))).or_else(|| {
            others().find(|place| inner.is_some_and(|inner| dependencies(self.list, *place).contains(&inner)))
        });
        [first, Some(mixer), last, inner, outer].into_iter().flatten().collect()
    }

    fn reason(&self, place: usize) -> String {
        let operation = &self.list.operations[place];
        let (fusions, otherwise): (&[Fusion], String) = match &operation.kind {
            Kind::Linear(_) => return self.of_projection(place),
            Kind::Norm { .. } => (self.of_norm(place), self.reason_of_unfused(operation)),
            Kind::LayerNorm { .. } => (&[], "LayerNorm needs the mean before the variance".to_owned()),
            Kind::NormAdd(_) => {
                let normed = self.producer(operation.inputs[0]);
                (&[], format!("the norm of `{normed}` needs its complete row before the addition"))
            }
            Kind::Rope { .. } | Kind::Append { .. } | Kind::RopeAppend(_) | Kind::MlaAppend(_) => {
                let text = "not fusable into attention: the heads exceed its threadgroup memory, or are prepared differently";
                (&[Fusion::FuseRopeKvAppend, Fusion::AttentionPrologue], text.to_owned())
            }
            Kind::PerHeadLinear(each) => {
                let text = match each.transposed {
                    true => "absorbed MLA multiplies the queries of each head by a matrix before attention",
                    false => "absorbed MLA multiplies the output of each head by a matrix after attention",
                };
                (&[], text.to_owned())
            }
            Kind::Convolve(_) => {
                (&[Fusion::FuseDeltaNet, Fusion::DeltaPrologue], self.reason_of_unfused(operation))
            }
            Kind::Route(_) => (
                &[Fusion::FuseRouting],
                "the routes are also read by other operations than experts".to_owned(),
            ),
            Kind::Elementwise(function) => (of_elementwise(*function), self.reason_of_unfused(operation)),
            Kind::ScaleBy { .. } => (&[Fusion::NormAdd], self.reason_of_unfused(operation)),
            Kind::PerLayerInput => (&[Fusion::FusePerLayerInput], self.reason_of_unfused(operation)),
            Kind::Embed { .. } => (&[], "per-layer inputs come from a second embedding table".to_owned()),
            Kind::PositionEmbedding { .. } => (&[], "position embeddings have their own table".to_owned()),
            Kind::Attend(_) | Kind::MlaAttention(_) | Kind::DeltaRule(_) => {
                (&[], "the layer has more than one attention or recurrent operation".to_owned())
            }
            Kind::ExpertsInner(_) | Kind::ExpertsSum(_) => {
                (&[], "the layer has more than one set of experts".to_owned())
            }
            Kind::Slice { .. } | Kind::StorePerLayerInputs | Kind::Unplanned => {
                (&[], self.reason_of_unfused(operation))
            }
        };
        self.disabled_fusion(fusions).unwrap_or(otherwise)
    }

    /// Why a projection is not part of the minimum.
    fn of_projection(&self, place: usize) -> String {
        let operation = &self.list.operations[place];
        if self.chooses(operation.output) {
            return "routing needs all router logits of a row".to_owned();
        }
        if self.gates_taken(place)
            || dependencies(self.list, place).into_iter().any(|producer| self.gates_taken(producer))
        {
            return "the per-layer input is gated and projected".to_owned();
        }
        let reads = operation.inputs[0];
        let same_input =
            |other: &&Operation| matches!(other.kind, Kind::Linear(_)) && other.inputs[0] == reads;
        let sibling = self.list.operations[..place].iter().find(same_input);
        let formats = |other: &Operation| (self.format(operation), self.format(other));
        if let Some(other) = sibling
            && let (format, others) = formats(other)
            && format != others
        {
            let name = &other.name;
            return format!("not merged with `{name}`: formats differ ({format}, {others})");
        }
        if self.is_shared_expert(place) {
            let otherwise = "the shared expert is not merged with the routed experts";
            return self
                .disabled_fusion(&[Fusion::MergeSharedExperts])
                .unwrap_or_else(|| otherwise.to_owned());
        }
        let Some(other) = sibling else {
            return format!("the multiplication needs the complete row of `{}`", self.producer(reads));
        };
        let fusions = [Fusion::FuseGateUp, Fusion::FuseAttentionGate, Fusion::FuseQkv, Fusion::FuseDeltaNet];
        let merges = if self.prepared.contains(&place) { &fusions[2..] } else { &fusions[..2] };
        let otherwise = || format!("no kernel reads its result together with that of `{}`", other.name);
        self.disabled_fusion(merges).unwrap_or_else(otherwise)
    }

    /// Whether a value selects experts.
    fn chooses(&self, logits: Value) -> bool {
        self.list.readers(logits).any(|reader| match &reader.kind {
            Kind::Route(_) => true,
            Kind::ExpertsInner(inner) => inner.choice.is_some() && reader.inputs[1] == logits,
            Kind::Elementwise(Function::Unary(_)) => self.chooses(reader.output),
            _ => false,
        })
    }

    /// Whether an operation reads columns of the per-layer inputs.
    fn gates_taken(&self, place: usize) -> bool {
        match &self.list.operations[place].kind {
            Kind::PerLayerInput => true,
            Kind::Linear(linear) => {
                let output = self.list.operations[place].output;
                let takes = |reader: &Operation| {
                    let taken = |input: &Value| {
                        self.list.definition(*input).map(|place| &self.list.operations[place].kind)
                    };
                    reader.inputs.iter().any(|input| taken(input) == Some(&Kind::PerLayerInput))
                };
                linear.ending == Epilogue::MultiplyPerLayerInput || self.list.readers(output).any(takes)
            }
            _ => false,
        }
    }

    /// Whether the layer has experts, and the operation belongs neither to its mixer nor to its routing.
    fn is_shared_expert(&self, place: usize) -> bool {
        let inner =
            self.list.operations.iter().position(|operation| matches!(operation.kind, Kind::ExpertsInner(_)));
        inner.is_some_and(|inner| {
            !self.prepared.contains(&place) && !dependencies(self.list, inner).contains(&place)
        }) && self.mixer.is_some_and(|mixer| place > mixer)
    }

    /// Fusions that remove the dispatch of a norm.
    fn of_norm(&self, place: usize) -> &'static [Fusion] {
        let norm = &self.list.operations[place];
        let made_of_heads = self.prepared.contains(&place) && self.list.definition(norm.inputs[0]).is_some();
        let is_added = |reader: &Operation| reader.kind == Kind::Elementwise(Function::Add);
        match made_of_heads {
            true => &[Fusion::FuseRopeKvAppend, Fusion::FuseDeltaNet],
            false if self.list.readers(norm.output).any(is_added) => &[Fusion::NormAdd],
            false => &[Fusion::DeferredNorm, Fusion::FuseDeltaNet],
        }
    }

    /// The reason for the first of these fusions that is disabled.
    fn disabled_fusion(&self, fusions: &[Fusion]) -> Option<String> {
        let off = |fusion: &Fusion| self.disabled.contains(fusion);
        let first = fusions.iter().find(|fusion| off(fusion) || fusion.needs().as_ref().is_some_and(off))?;
        let fusion = if off(first) { *first } else { first.needs()? };
        Some(format!("fusion `{}` is disabled", fusion.name()))
    }

    /// Format of a projection's matrices.
    fn format(&self, operation: &Operation) -> Format {
        let first = operation.kind.matrices().and_then(|matrices| matrices.first().copied());
        first.map_or(Format::F32, |first| self.list.format(first))
    }

    /// Name of the operation that defines a value.
    fn producer(&self, value: Value) -> &str {
        self.list.definition(value).map_or("stream", |place| &self.list.operations[place].name)
    }

    /// Reason of an operation that neither its producers nor its readers can include.
    fn reason_of_unfused(&self, operation: &Operation) -> String {
        let producers: BTreeSet<&str> = operation.inputs.iter().map(|input| self.producer(*input)).collect();
        let readers: BTreeSet<&str> =
            self.list.readers(operation.output).map(|reader| reader.name.as_str()).collect();
        let names: Vec<String> =
            producers.into_iter().chain(readers).map(|name| format!("`{name}`")).collect();
        format!("not fusable into {}", names.join(" or "))
    }
}

/// Indices of all operations that an operation's inputs depend on.
fn dependencies(list: &Fused, place: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut left: Vec<Value> = list.operations[place].inputs.clone();
    while let Some(value) = left.pop() {
        let Some(producer) = list.definition(value) else { continue };
        if found.insert(producer) {
            left.extend(&list.operations[producer].inputs);
        }
    }
    found
}

/// Fusions that include an elementwise function in another step.
fn of_elementwise(function: Function) -> &'static [Fusion] {
    match function {
        Function::Unary(UnaryOp::Activate(_)) => &[Fusion::FuseGateUp, Fusion::FuseUnary],
        Function::Unary(_) => &[Fusion::FuseUnary, Fusion::NormAdd],
        Function::Multiply | Function::ScaleRows => {
            &[Fusion::FuseAttentionGate, Fusion::FuseGateUp, Fusion::HoistGate, Fusion::FusePerLayerInput]
        }
        Function::ScaleBy => &[Fusion::NormAdd],
        Function::Add => &[Fusion::Residual, Fusion::NormAdd],
    }
}
