//! Why a pass of one row has more dispatches than the least that it could have.
//!
//! The least of a layer is five: what its mixer reads, the mixer, and what it gives, projected; and two for what follows, a
//! feed-forward's or the experts'. The least of a prologue is one, and so is that of an epilogue. Whatever else is in a list has a
//! reason, which [`reasons`] finds in the finished list: what has to be whole before it is read on, what no kernel does on its
//! way, or a fusion that was switched off. A step carries its reason to whoever prints plans, and to the program's `info`.

use crate::fuse::list::{Epilogue, Function, Fused, Kind, Operation, UnaryOp, Value};
use crate::fuse::rules::Fusion;
use forge_ir::Format;
use std::collections::BTreeSet;

/// The reason of a step that joins the shares of a long cache.
pub(crate) const JOINS: &str =
    "threadgroups share a long cache, and what they found is joined when all are done";

/// A reason for every operation of the list that is none of the least.
pub(crate) fn reasons(list: &Fused, disabled: &BTreeSet<Fusion>) -> Vec<Option<String>> {
    let section = Section::of(list, disabled);
    let least = section.least();
    (0..list.operations.len()).map(|place| (!least.contains(&place)).then(|| section.reason(place))).collect()
}

/// The list of a layer, or of what is before or after layers.
struct Section<'a> {
    list: &'a Fused,
    disabled: &'a BTreeSet<Fusion>,
    /// The place of the mixer, which only layers have.
    mixer: Option<usize>,
    /// The places of all that the mixer reads was made of, what it finds in the cache included.
    prepared: BTreeSet<usize>,
}

impl<'a> Section<'a> {
    fn of(list: &'a Fused, disabled: &'a BTreeSet<Fusion>) -> Section<'a> {
        let mixes =
            |kind: &Kind| matches!(kind, Kind::Attend(_) | Kind::LatentAttend(_) | Kind::DeltaRule(_));
        let appends = |kind: &Kind| matches!(kind, Kind::Append { .. } | Kind::LatentAppend(_));
        let mixer = list.operations.iter().position(|operation| mixes(&operation.kind));
        let appended = (0..mixer.unwrap_or(0)).filter(|place| appends(&list.operations[*place].kind));
        let prepared = appended.chain(mixer).flat_map(|place| made_of(list, place)).collect();
        Section { list, disabled, mixer, prepared }
    }

    /// The places of the operations that any list of its kind has.
    fn least(&self) -> BTreeSet<usize> {
        let position =
            |fits: fn(&Kind) -> bool| self.list.operations.iter().position(|operation| fits(&operation.kind));
        let is_projection = |kind: &Kind| matches!(kind, Kind::Project(_));
        let projections = || {
            (0..self.list.operations.len()).filter(|place| is_projection(&self.list.operations[*place].kind))
        };
        let Some(mixer) = self.mixer else {
            let embedding = position(|kind| matches!(kind, Kind::Embed { .. }));
            return embedding.or(projections().next_back()).into_iter().collect();
        };
        let first = projections().find(|place| self.prepared.contains(place));
        let last = projections().find(|place| made_of(self.list, *place).contains(&mixer));
        let before = last.map_or_else(BTreeSet::new, |last| made_of(self.list, last));
        let others = || {
            let elsewhere = |place: &usize| !before.contains(place) && !self.prepared.contains(place);
            projections().filter(move |place| Some(*place) != last && elsewhere(place))
        };
        let inner = position(|kind| matches!(kind, Kind::ExpertsInner(_))).or_else(|| others().next());
        let outer = position(|kind| matches!(kind, Kind::ExpertsSum(_))).or_else(|| {
            others().find(|place| inner.is_some_and(|inner| made_of(self.list, *place).contains(&inner)))
        });
        [first, Some(mixer), last, inner, outer].into_iter().flatten().collect()
    }

    fn reason(&self, place: usize) -> String {
        let operation = &self.list.operations[place];
        let (fusions, otherwise): (&[Fusion], String) = match &operation.kind {
            Kind::Project(_) => return self.of_projection(place),
            Kind::Norm { .. } => (self.of_norm(place), self.alone(operation)),
            Kind::LayerNorm { .. } => {
                (&[], "a mean has to be known before it is taken off, and that before squares are".to_owned())
            }
            Kind::NormAdd(_) => {
                let normed = self.maker(operation.inputs[0]);
                (&[], format!("{normed} is normed before it is added, and has to be whole for that"))
            }
            Kind::Rotate { .. } | Kind::Append { .. } | Kind::RotateAppend(_) | Kind::LatentAppend(_) => {
                let text =
                    "attention has no room for the heads of a row, or prepares none that are made like these";
                (&[Fusion::FuseRopeKvAppend, Fusion::AttentionPrologue], text.to_owned())
            }
            Kind::EachHead(each) => {
                let text = match each.turned {
                    true => "queries become what latents are asked, each head's by a matrix of its own",
                    false => "values are made of what attention finds, each head's by a matrix of its own",
                };
                (&[], text.to_owned())
            }
            Kind::Convolve(_) => (&[Fusion::FuseDeltaNet, Fusion::DeltaPrologue], self.alone(operation)),
            Kind::Route(_) => {
                (&[Fusion::FuseRouting], "others than experts read which were chosen".to_owned())
            }
            Kind::Elementwise(function) => (of_elementwise(*function), self.alone(operation)),
            Kind::ScaleBy { .. } => (&[Fusion::NormAdd], self.alone(operation)),
            Kind::Take => (&[Fusion::FusePerLayerInput], self.alone(operation)),
            Kind::Embed { .. } => (&[], "layers have inputs of their own, from a second table".to_owned()),
            Kind::Place { .. } => (&[], "positions have a table of their own".to_owned()),
            Kind::Attend(_) | Kind::LatentAttend(_) | Kind::DeltaRule(_) => {
                (&[], "a layer mixes more than once".to_owned())
            }
            Kind::ExpertsInner(_) | Kind::ExpertsSum(_) => {
                (&[], "a layer has experts more than once".to_owned())
            }
            Kind::Slice { .. } | Kind::Leave | Kind::Unplanned => (&[], self.alone(operation)),
        };
        self.switched_off(fusions).unwrap_or(otherwise)
    }

    /// Why a projection is none of the least.
    fn of_projection(&self, place: usize) -> String {
        let operation = &self.list.operations[place];
        if self.chooses(operation.output) {
            return "which experts a row has is known when all of its logits are".to_owned();
        }
        if self.gates_taken(place)
            || made_of(self.list, place).into_iter().any(|maker| self.gates_taken(maker))
        {
            return "the layer has an input of its own, gated and projected".to_owned();
        }
        let reads = operation.inputs[0];
        let same_input =
            |other: &&Operation| matches!(other.kind, Kind::Project(_)) && other.inputs[0] == reads;
        let sibling = self.list.operations[..place].iter().find(same_input);
        let formats = |other: &Operation| (self.format(operation), self.format(other));
        if let Some(other) = sibling
            && let (format, others) = formats(other)
            && format != others
        {
            let name = &other.name;
            return format!("it is {format} and {name} is {others}: matrices of two formats are not merged");
        }
        if self.is_beside_experts(place) {
            let otherwise = "what every row is multiplied by is apart from the experts that are chosen";
            return self.switched_off(&[Fusion::MergeSharedExperts]).unwrap_or_else(|| otherwise.to_owned());
        }
        let Some(other) = sibling else {
            return format!("{} has to be whole before it is multiplied", self.maker(reads));
        };
        let fusions = [Fusion::FuseGateUp, Fusion::FuseAttentionGate, Fusion::FuseQkv, Fusion::FuseDeltaNet];
        let merges = if self.prepared.contains(&place) { &fusions[2..] } else { &fusions[..2] };
        let otherwise = || format!("no kernel takes what it gives beside what {} gives", other.name);
        self.switched_off(merges).unwrap_or_else(otherwise)
    }

    /// Whether experts are chosen by a value.
    fn chooses(&self, logits: Value) -> bool {
        self.list.readers(logits).any(|reader| match &reader.kind {
            Kind::Route(_) => true,
            Kind::ExpertsInner(inner) => inner.choice.is_some() && reader.inputs[1] == logits,
            Kind::Elementwise(Function::Each(_)) => self.chooses(reader.output),
            _ => false,
        })
    }

    /// Whether an operation brings columns of the aside in.
    fn gates_taken(&self, place: usize) -> bool {
        match &self.list.operations[place].kind {
            Kind::Take => true,
            Kind::Project(project) => {
                let output = self.list.operations[place].output;
                let takes = |reader: &Operation| {
                    let taken = |input: &Value| {
                        self.list.definition(*input).map(|place| &self.list.operations[place].kind)
                    };
                    reader.inputs.iter().any(|input| taken(input) == Some(&Kind::Take))
                };
                project.ending == Epilogue::MultiplyTaken || self.list.readers(output).any(takes)
            }
            _ => false,
        }
    }

    /// Whether a layer has experts, and an operation is neither of its mixer nor of what chooses them.
    fn is_beside_experts(&self, place: usize) -> bool {
        let inner =
            self.list.operations.iter().position(|operation| matches!(operation.kind, Kind::ExpertsInner(_)));
        inner.is_some_and(|inner| {
            !self.prepared.contains(&place) && !made_of(self.list, inner).contains(&place)
        }) && self.mixer.is_some_and(|mixer| place > mixer)
    }

    /// The fusions that do a norm without a step.
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

    /// That the first of these fusions that is switched off is.
    fn switched_off(&self, fusions: &[Fusion]) -> Option<String> {
        let off = |fusion: &Fusion| self.disabled.contains(fusion);
        let first = fusions.iter().find(|fusion| off(fusion) || fusion.needs().as_ref().is_some_and(off))?;
        let fusion = if off(first) { *first } else { first.needs()? };
        Some(format!("{} is switched off", fusion.name()))
    }

    /// What the matrices of a projection are stored as.
    fn format(&self, operation: &Operation) -> Format {
        let first = operation.kind.matrices().and_then(|matrices| matrices.first().copied());
        first.map_or(Format::F32, |first| self.list.format(first))
    }

    /// What defines a value, by name.
    fn maker(&self, value: Value) -> &str {
        self.list.definition(value).map_or("the stream", |place| &self.list.operations[place].name)
    }

    /// That neither its makers nor its readers do it.
    fn alone(&self, operation: &Operation) -> String {
        let makers = operation.inputs.iter().map(|input| self.maker(*input));
        let readers = self.list.readers(operation.output).map(|reader| reader.name.as_str());
        let join = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(" and ");
        let (makers, readers) = (join(makers.collect()), join(readers.collect()));
        match readers.is_empty() {
            true => format!("{makers} cannot end in it"),
            false => format!("{makers} cannot end in it, nor {readers} begin with it"),
        }
    }
}

/// The places of all that an operation's inputs were made of.
fn made_of(list: &Fused, place: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut left: Vec<Value> = list.operations[place].inputs.clone();
    while let Some(value) = left.pop() {
        let Some(maker) = list.definition(value) else { continue };
        if found.insert(maker) {
            left.extend(&list.operations[maker].inputs);
        }
    }
    found
}

/// The fusions that do a function of each number at the end of another step.
fn of_elementwise(function: Function) -> &'static [Fusion] {
    match function {
        Function::Each(UnaryOp::Activate(_)) => &[Fusion::FuseGateUp, Fusion::FuseUnary],
        Function::Each(_) => &[Fusion::FuseUnary, Fusion::NormAdd],
        Function::Multiply | Function::Times => {
            &[Fusion::FuseAttentionGate, Fusion::FuseGateUp, Fusion::HoistGate, Fusion::FusePerLayerInput]
        }
        Function::ScaleBy => &[Fusion::NormAdd],
        Function::Add => &[Fusion::Residual, Fusion::NormAdd],
    }
}
