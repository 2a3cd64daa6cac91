//! Binds weights of the weight file to the fields of each application. Each distinct weight is stored once.

use crate::fuse::list::{Kind, Value};
use crate::lower::section::{Place, Source, role};
use crate::lower::select::Select;
use crate::plan::{Application, Field, FieldKind};
use forge_ir::{Apply, Layout, Packed, ParamId, Records, State, StateId, WeightId};
use forge_ops::Format;

/// Tensor name of a layer's expert records.
const RECORDS: &str = "experts";

impl Select<'_> {
    /// Packs an application's weights.
    pub(crate) fn bind(&mut self, section: usize, this: (Place, &Apply), next: Option<(Place, &Apply)>) {
        let fields = self.plan.sections[section].fields.clone();
        let sources = self.sources[section].clone();
        let mut weights = Vec::new();
        for (field, source) in fields.iter().zip(sources) {
            let packed = match (source, next) {
                (Source::Own { params, layout, folded }, _) => {
                    Some(self.own(field, this, &params, layout, folded))
                }
                (Source::NextGain, Some(next)) => self.gain_of(next),
                (Source::NextGain, None) => None,
            };
            let Some(packed) = packed else { continue };
            let same = |other: &Packed| {
                (&other.parts, other.layout, other.format, other.gain)
                    == (&packed.parts, packed.layout, packed.format, packed.gain)
            };
            let index = self.plan.weights.iter().position(same).unwrap_or_else(|| {
                self.plan.weights.push(packed.clone());
                self.plan.weights.len() - 1
            });
            weights.push(index);
        }
        // Conv state and recurrent state are not caches.
        let is_cache = |id: &&StateId| matches!(self.graph.states[id.0], State::Cache(_) | State::Latents(_));
        let cache = this.1.states.iter().find(is_cache).map(|state| self.cache(*state));
        let first = this.1.parts.first().copied();
        self.plan.applications.push(Application { section, weights, cache, first });
    }

    /// Index of a state's cache.
    fn cache(&mut self, state: StateId) -> usize {
        self.caches.iter().position(|other| *other == state).unwrap_or_else(|| {
            self.caches.push(state);
            self.caches.len() - 1
        })
    }

    fn own(
        &self,
        field: &Field,
        (place, apply): (Place, &Apply),
        params: &[ParamId],
        layout: Layout,
        folded: Option<ParamId>,
    ) -> Packed {
        let body = self.graph.body(apply);
        let parts: Vec<WeightId> = params.iter().filter_map(|param| apply.weight(body, *param)).collect();
        let (format, shape, experts) = match field.kind {
            FieldKind::Matrix { rows, columns, .. } => (self.formats.of(&parts), vec![rows, columns], None),
            FieldKind::Experts { experts, rows, columns, .. } => {
                (self.formats.of(&parts), vec![experts * rows, columns], Some(experts))
            }
            FieldKind::Vector { width } => (Format::F32, vec![width], None),
        };
        let gain = folded.and_then(|gain| apply.weight(body, gain));
        let records =
            experts.map(|experts| Records { tensor: format!("{}{RECORDS}", place.prefix()), experts });
        Packed {
            name: format!("{}{}", place.prefix(), field.name),
            format,
            shape,
            layout,
            parts,
            gain,
            records,
        }
    }

    /// Gain of the first norm of an application.
    fn gain_of(&self, (place, apply): (Place, &Apply)) -> Option<Packed> {
        let body = self.graph.body(apply);
        let list = &self.lists.batch[apply.body.0];
        let gain = list.readers(Value::INPUT).find_map(|operation| match operation.kind {
            Kind::Norm { gain, .. } => gain,
            _ => None,
        })?;
        let weight = apply.weight(body, gain)?;
        let name = format!("{}{}", place.prefix(), role(place, body, &[gain], ""));
        let shape = vec![self.graph.weights[weight.0].columns()];
        Some(Packed {
            name,
            format: Format::F32,
            shape,
            layout: Layout::Rows,
            parts: vec![weight],
            gain: None,
            records: None,
        })
    }
}
