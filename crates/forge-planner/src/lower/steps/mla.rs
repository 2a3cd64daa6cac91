//! Steps of MLA: per-head matrices, append to the latent cache, and attention over it. Queries, latents and
//! keys may be columns of wider buffers.

use crate::fuse::list::{Fused, Kind, MlaAppend, MlaAttention, MlaPrepare, Operation, PerHeadLinear, Value};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::plan::regime::{Regime, Schedule};
use crate::plan::{BatchColumn, Condition, Operand, RowsOf, State};
use forge_ir::{LatentCache, Layout, ParamId};
use forge_kernels::{Spec, spec};

const SLOTS: (&str, Operand) = ("slots", Operand::Batch(BatchColumn::Slots));
const POSITIONS: (&str, Operand) = ("positions", Operand::Batch(BatchColumn::Positions));
const LATENTS: (&str, Operand) = ("latents", Operand::Latents);

/// A range of columns of a buffer.
pub(crate) struct Columns {
    pub(crate) buffer: usize,
    /// The first column.
    pub(crate) first: usize,
    /// Elements per row of the buffer.
    pub(crate) pitch: usize,
}

impl Select<'_> {
    /// Location of a value, which may be a slice of another.
    pub(crate) fn columns(&self, draft: &Draft<'_>, list: &Fused, value: Value) -> Columns {
        let buffer = draft.buffers.get(&value).copied().unwrap_or(self.stream);
        let definition = list.definition(value).map(|place| &list.operations[place]);
        match definition {
            Some(Operation { kind: Kind::Slice { first }, inputs, .. }) => {
                Columns { buffer, first: *first, pitch: list.widths[inputs[0].0] }
            }
            _ => Columns { buffer, first: 0, pitch: list.widths[value.0] },
        }
    }

    /// Name of a slice of a wider buffer: `query of inputs`.
    pub(crate) fn columns_name(&self, draft: &Draft<'_>, list: &Fused, value: Value) -> Option<String> {
        let slice = &list.operations[list.definition(value)?];
        let Kind::Slice { .. } = slice.kind else { return None };
        let buffer = draft.buffers.get(&value).copied()?;
        Some(format!("{} of {}", slice.name, self.scratch_name(buffer)))
    }

    /// If expanded MLA is possible, the attention operation adds all steps that depend on the choice.
    pub(crate) fn per_head_linear(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        each: &PerHeadLinear,
    ) {
        if !self.expandable(draft, list).is_some_and(|expandable| expandable.has(operation)) {
            self.heads_matrices(draft, list, operation, each);
        }
    }

    pub(crate) fn heads_matrices(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        each: &PerHeadLinear,
    ) {
        let PerHeadLinear { weight, heads, transposed } = *each;
        let (field, format, all_rows) = self.matrix(draft, &[weight], Layout::Rows, None, "");
        let (rows, columns) = (all_rows / heads, draft.shape(weight).last().copied().unwrap_or(0));
        let Columns { buffer: x, pitch, .. } = self.columns(draft, list, operation.inputs[0]);
        let y = self.target(draft, list, operation, &operation.name);
        // Rows of x that a threadgroup computes. Their number does not change the sums of a row.
        let together_of = |regime: Regime| {
            let at_most = spec::PerHeadLayout::together(format, transposed);
            regime.max_rows().map_or(at_most, |rows| rows.min(at_most))
        };
        let shape = |together: usize| {
            let each = self.heads_knob(format, [heads, rows, columns], transposed);
            Spec::PerHeadLinear(spec::Kernel {
                op: forge_ops::PerHeadLinear { format, heads, rows, columns, transposed, pitch },
                layout: spec::PerHeadLayout { together, each },
            })
        };
        let variants: Vec<(&[Regime], Spec)> = draft
            .regimes()
            .chunk_by(|one, next| together_of(*one) == together_of(*next))
            .map(|regimes| (regimes, shape(together_of(regimes[0]))))
            .collect();
        let product = |weight: &str, x: &str| format!("{weight}{} · {x}", if transposed { "ᵀ" } else { "" });
        let general = format!("y = {}, per head", product("weight", "x"));
        let name = draft.param_name(weight);
        let function = self.function(&draft.function_name(&name), &general, &variants);
        let y_name = self.scratch_name(y);
        let part =
            self.columns_name(draft, list, operation.inputs[0]).unwrap_or_else(|| self.scratch_name(x));
        let formula = format!("{y_name} = {}, per head", product("W", &part));
        draft.step(
            &operation.name,
            &formula,
            function,
            &[("weight", Operand::Field(field)), ("x", Operand::Scratch(x)), ("y", Operand::Scratch(y))],
        );
    }

    pub(crate) fn mla_append(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        append: &MlaAppend,
    ) {
        let Some(LatentCache { width, rope_width }) = self.latents(draft, append.cache) else { return };
        let cache = self.plan.cache;
        let Some(prepare) = &append.prepare else {
            let [latent, key] = operation.inputs[..] else { return };
            let buffer = |value| Operand::Scratch(draft.buffers.get(&value).copied().unwrap_or(self.stream));
            let (latent, key) = (buffer(latent), buffer(key));
            let spec = Spec::MlaAppend(forge_ops::MlaAppend { width, rope_width, cache, prepare: None });
            let general = "cache[slots, positions] = latent, key";
            let function = self.function("mla_append", general, &[(draft.regimes(), spec)]);
            let arguments = [("latent", latent), ("key", key), SLOTS, POSITIONS, LATENTS];
            draft.step(
                &operation.name,
                "Append the latent and the RoPE key to the cache.",
                function,
                &arguments,
            );
            return;
        };
        let [queries, latent, key] = operation.inputs[..] else { return };
        let (prepare, mut arguments) = self.prepare(draft, list, prepare, [queries, latent, key]);
        let to = self.target(draft, list, operation, "rotated_query");
        let spec = Spec::MlaAppend(forge_ops::MlaAppend { width, rope_width, cache, prepare: Some(prepare) });
        let general =
            "q_rope = rope(queries); cache[slots, positions] = gain · latent / rms(latent), rope(key)";
        let function = self.function("mla_rope_append", general, &[(draft.regimes(), spec)]);
        arguments.extend([SLOTS, POSITIONS, ("q_rope", Operand::Scratch(to)), LATENTS]);
        let formula =
            "Apply RoPE to queries and key, normalize the latent; append latent and key to the cache.";
        draft.step(&operation.name, formula, function, &arguments);
    }

    /// Location of RoPE queries, latents and keys, for kernels that prepare rows.
    fn prepare(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        prepare: &MlaPrepare,
        values: [Value; 3],
    ) -> (forge_ops::MlaPrepare, Vec<(&'static str, Operand)>) {
        let [queries, latent, key] = values.map(|value| self.columns(draft, list, value));
        let gain = self.vector(draft, &[prepare.gain], Layout::Rows, "");
        let columns = forge_ops::MlaColumns {
            queries_pitch: queries.pitch,
            q_rope_first: queries.first,
            latent_pitch: latent.pitch,
            latent_first: latent.first,
            key_pitch: key.pitch,
            key_first: key.first,
        };
        let rope = prepare.rope.clone();
        let (heads, epsilon) = (prepare.heads, prepare.epsilon);
        let arguments = vec![
            ("queries", Operand::Scratch(queries.buffer)),
            ("latent", Operand::Scratch(latent.buffer)),
            ("key", Operand::Scratch(key.buffer)),
            ("gain", Operand::Field(gain)),
        ];
        (forge_ops::MlaPrepare { heads, columns, epsilon, rope }, arguments)
    }

    pub(crate) fn mla_attention(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        attend: &MlaAttention,
    ) {
        match self.expandable(draft, list) {
            Some(expandable) => self.both_forms(draft, list, &expandable),
            None => self.absorbed_attention(draft, list, operation, attend),
        }
    }

    pub(crate) fn absorbed_attention(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        attend: &MlaAttention,
    ) {
        let Some(LatentCache { width, rope_width }) = self.latents(draft, attend.cache) else { return };
        let MlaAttention { heads, scale, .. } = *attend;
        let cache = self.plan.cache;
        let buffer = |value| Operand::Scratch(draft.buffers.get(&value).copied().unwrap_or(self.stream));
        let mut arguments = vec![("q", buffer(operation.inputs[0]))];
        let prologue = match (&attend.prologue, &operation.inputs[1..]) {
            (Some(prepare), &[queries, latent, key]) => {
                let (prepare, more) = self.prepare(draft, list, prepare, [queries, latent, key]);
                arguments.extend(more);
                Some(prepare)
            }
            (_, rest) => {
                arguments.extend(rest.iter().map(|q_rope| ("q_rope", buffer(*q_rope))));
                None
            }
        };
        let partials = self.scratch("partials", heads * (width + 2), RowsOf::Split);
        let to = self.target(draft, list, operation, &operation.name);
        arguments.extend([
            LATENTS,
            SLOTS,
            POSITIONS,
            ("partials", Operand::Scratch(partials)),
            ("heads", Operand::Scratch(to)),
        ]);
        let prepares = prologue.is_some();
        if let Some(prepare) = prologue.clone().filter(|_| draft.is_decode()) {
            let spec =
                Spec::MlaAppend(forge_ops::MlaAppend { width, rope_width, cache, prepare: Some(prepare) });
            let general = "cache[slots, positions] = prepared latent, key";
            let function = self.function("mla_rope_append", general, &[(&draft.regimes()[1..], spec)]);
            let of_append = ["queries", "latent", "key", "gain", "latents", "slots", "positions"];
            let mut of_append: Vec<_> =
                arguments.iter().filter(|(name, _)| of_append.contains(name)).copied().collect();
            // The prepared queries are not used.
            let q_rope = self.scratch("q_rope", heads * rope_width, RowsOf::DecodeRow);
            of_append.push(("q_rope", Operand::Scratch(q_rope)));
            let formula = "Append the lines of all rows, since rows of one slot attend to each other.";
            draft.step("shared_append", formula, function, &of_append);
            draft.set_last_condition(Condition::SharedSlots);
        }
        let spec =
            Spec::MlaAttention(forge_ops::MlaAttention { heads, width, rope_width, cache, scale, prologue });
        let general = format!(
            "{}heads = softmax(scale · (q · latentsᵀ + q_rope · keysᵀ)) · latents, over the positions of each row's slot up to its own",
            if prepares {
                "queries, latent and key of a row prepared, latent and key appended; "
            } else {
                ""
            }
        );
        let regimes = draft.regimes();
        let function = self.function(&draft.function_name("mla_attention"), &general, &[(regimes, spec)]);
        let formula = format!(
            "{}{} = softmax({scale} · ({} · latentsᵀ + q_rope · keysᵀ)) · latents; {heads} heads share them.",
            if prepares {
                "Apply RoPE to queries and key, normalize the latent; append latent and key;  "
            } else {
                ""
            },
            self.scratch_name(to),
            match arguments[0].1 {
                Operand::Scratch(q) => self.scratch_name(q),
                _ => String::new(),
            },
        );
        draft.step("mla_attention", &formula, function, &arguments);
        let join = Spec::AttendCombine(spec::Kernel {
            op: forge_ops::AttendCombine { query_heads: heads, width, gates: None },
            layout: spec::CombineLayout::default(),
        });
        let general = "heads = the splits' sums, each weighted by exp(its maximum - the largest)";
        // Many rows are never split.
        let few = if draft.schedule == Schedule::Decode { regimes } else { &regimes[..1] };
        let function = self.function("attend_combine", general, &[(few, join)]);
        let comment = "Combine the KV splits.";
        draft.step(
            "attend_combine",
            comment,
            function,
            &[("partials", Operand::Scratch(partials)), ("heads", Operand::Scratch(to))],
        );
        if let Some(step) = draft.section.steps_mut(draft.schedule).last_mut() {
            step.condition = Condition::Split;
        }
    }

    /// The MLA cache of the section.
    fn latents(&mut self, draft: &mut Draft<'_>, cache: ParamId) -> Option<LatentCache> {
        let latents = draft.body.latents(cache)?.clone();
        let width = latents.width + latents.rope_width;
        draft.section.state = Some(State { heads: 1, width, values: false, ring: None });
        Some(latents)
    }
}
