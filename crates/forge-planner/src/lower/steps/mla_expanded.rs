//! Steps of MLA for many rows, in both forms. Absorbed: per-head matrices before and after attention.
//! Expanded: keys and values are computed tile by tile. The form is chosen when a pass is encoded
//! ([`MlaExpand`]); both write the same output.

use crate::fuse::list::{Epilogue, Fused, Kind, MlaAttention, Operation, PerHeadLinear};
use crate::lower::mla_expand::MlaExpand;
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::plan::regime::{Regime, SMALL_BATCH_MAX, Schedule};
use crate::plan::{BatchColumn, Condition, Operand, RowsOf};
use forge_ir::{LatentCache, Layout};
use forge_kernels::{Spec, spec};
use forge_ops::Format;

/// The operations of an MLA attention that can be expanded, from the key matrix to the value matrix of each
/// head.
pub(crate) struct ExpandableMla<'a> {
    absorb: (&'a Operation, &'a PerHeadLinear),
    attend: (&'a Operation, &'a MlaAttention),
    values: (&'a Operation, &'a PerHeadLinear),
    latents: LatentCache,
    /// Channels of a head's key, and of its value.
    widths: [usize; 2],
    /// Positions of a KV tile.
    tile: usize,
    expand: MlaExpand,
}

impl ExpandableMla<'_> {
    /// Whether it replaces an operation.
    pub(crate) fn has(&self, operation: &Operation) -> bool {
        [self.absorb.0, self.attend.0, self.values.0].iter().any(|own| own.output == operation.output)
    }
}

impl Select<'_> {
    /// The operations of a list that can be expanded, if any.
    pub(crate) fn expandable<'l>(&self, draft: &Draft<'_>, list: &'l Fused) -> Option<ExpandableMla<'l>> {
        if draft.schedule == Schedule::Decode {
            return None;
        }
        let attend = list.operations.iter().find_map(|operation| match &operation.kind {
            Kind::MlaAttention(attend) => Some((operation, attend)),
            _ => None,
        })?;
        let by_heads = |operation: &'l Operation| match &operation.kind {
            Kind::PerHeadLinear(each) => Some((operation, each)),
            _ => None,
        };
        // Matrices stored in absorbed orientation, as MLX converters do, would have to be transposed.
        let absorb =
            by_heads(&list.operations[list.definition(attend.0.inputs[0])?]).filter(|it| it.1.transposed)?;
        let values = by_heads(list.readers(attend.0.output).next()?)?;
        let latents = draft.body.latents(attend.1.cache)?.clone();
        let width = |each: &PerHeadLinear| draft.shape(each.weight)[0] / each.heads;
        let widths @ [keys, of_values] = [width(absorb.1), width(values.1)];
        let tile = spec::MlaExpandedLayout::tile_for(keys, latents.rope_width, of_values)?;
        let expand = MlaExpand::of(&latents, widths, (SMALL_BATCH_MAX, self.plan.chunk), self.plan.context)?;
        let alone = list.uses(absorb.0.output) == 1 && list.uses(attend.0.output) == 1;
        alone.then_some(ExpandableMla { absorb, attend, values, latents, widths, tile, expand })
    }

    /// Adds the steps of both forms.
    pub(crate) fn both_forms(&mut self, draft: &mut Draft<'_>, list: &Fused, expandable: &ExpandableMla<'_>) {
        let ExpandableMla { absorb, attend, values, expand, .. } = expandable;
        self.plan.mla_expand = Some(expand.and(self.plan.mla_expand));
        let first = draft.section.steps(draft.schedule).len();
        self.heads_matrices(draft, list, absorb.0, absorb.1);
        self.absorbed_attention(draft, list, attend.0, attend.1);
        self.heads_matrices(draft, list, values.0, values.1);
        for step in &mut draft.section.steps_mut(draft.schedule)[first..] {
            if step.condition == Condition::Always {
                step.condition = Condition::Absorbed;
            }
        }
        self.expanded_steps(draft, list, expandable);
    }

    /// Adds the steps that expand a KV tile, and attention over it.
    fn expanded_steps(&mut self, draft: &mut Draft<'_>, list: &Fused, expandable: &ExpandableMla<'_>) {
        let ExpandableMla { absorb, attend, values: of_values, widths: [keys, values], tile, .. } =
            *expandable;
        let LatentCache { width, rope_width } = expandable.latents;
        let (heads, cache) = (attend.1.heads, self.plan.cache);
        let tile_buffer = self.scratch("latent_tile", width, RowsOf::Position);
        let k_rope = self.scratch("k_rope", rope_width, RowsOf::Position);
        let spec = Spec::MlaLoadLatents(forge_ops::MlaLoadLatents { width, rope_width, cache });
        let general = "latent_tile, k_rope = latents and RoPE keys of `rows` positions from begin on, in the slot of all rows";
        let function = self.function("load_latents", general, &[(MANY, spec)]);
        let arguments = [
            ("latents", Operand::Latents),
            ("slots", Operand::Batch(BatchColumn::Slots)),
            ("latent_tile", Operand::Scratch(tile_buffer)),
            ("k_rope", Operand::Scratch(k_rope)),
        ];
        self.tile_step(
            draft,
            ("load_latents", "latent_tile, k_rope = the lines of a KV tile"),
            function,
            &arguments,
        );
        let [keys_of_heads, values_of_heads] = [("keys", absorb.1, keys), ("values", of_values.1, values)]
            .map(|(name, each, width)| self.expand_tile(draft, name, each, (tile_buffer, heads * width)));

        let carried = self.scratch("carried", 2 * heads, RowsOf::Row);
        let buffer = |value| Operand::Scratch(draft.buffers.get(&value).copied().unwrap_or(self.stream));
        let queries = self.columns(draft, list, absorb.0.inputs[0]);
        let operand = if cache == Format::F32 { spec::Operand::F32 } else { spec::Operand::Ranged };
        let spec = Spec::MlaAttentionExpanded(spec::Kernel {
            op: forge_ops::MlaAttentionExpanded {
                heads,
                keys,
                rope_width,
                values,
                queries_pitch: queries.pitch,
                scale: attend.1.scale,
            },
            layout: spec::MlaExpandedLayout { operand, tile },
        });
        let general = "heads = softmax(scale · (q · keysᵀ + q_rope · k_ropeᵀ)) · values, over the positions up to each row's own \
                       in the KV tiles so far; carried passes between tiles";
        let arguments = [
            ("q", Operand::Scratch(queries.buffer)),
            ("q_rope", buffer(attend.0.inputs[1])),
            ("keys", Operand::Scratch(keys_of_heads)),
            ("k_rope", Operand::Scratch(k_rope)),
            ("values", Operand::Scratch(values_of_heads)),
            ("positions", Operand::Batch(BatchColumn::Positions)),
            ("heads", buffer(of_values.0.output)),
            ("carried", Operand::Scratch(carried)),
        ];
        let heads_name = draft.buffers.get(&of_values.0.output).map(|heads| self.scratch_name(*heads));
        let query = self
            .columns_name(draft, list, absorb.0.inputs[0])
            .unwrap_or_else(|| self.scratch_name(queries.buffer));
        let formula = format!(
            "{} = softmax({} · ({query} · keysᵀ + q_rope · k_ropeᵀ)) · values, over the KV tiles so far",
            heads_name.unwrap_or_default(),
            attend.1.scale,
        );
        let function = self.function("attend_expanded", general, &[(MANY, spec)]);
        draft.step("attend_expanded", &formula, function, &arguments);
        draft.set_last_condition(Condition::Expanded);
    }

    /// Adds a step that expands keys or values of a KV tile; returns their buffer.
    fn expand_tile(
        &mut self,
        draft: &mut Draft<'_>,
        name: &str,
        each: &PerHeadLinear,
        (tile_buffer, outputs): (usize, usize),
    ) -> usize {
        let (field, format, _) = self.matrix(draft, &[each.weight], Layout::Rows, None, "");
        let inputs = self.plan.scratch[tile_buffer].width;
        let y = self.scratch(&format!("expanded_{name}"), outputs, RowsOf::Position);
        let spec = Spec::Linear(spec::Kernel {
            op: forge_ops::Linear {
                format,
                outputs,
                inputs,
                norm: None,
                own_norm: None,
                bias: false,
                unary: None,
                epilogue: forge_ops::Epilogue::Store,
                chooses: false,
            },
            layout: spec::LinearLayout {
                rows: spec::Rows::Many,
                // Latents are normalized, so they are bounded.
                operand: self.operand(format, true),
                knobs: self.knobs(spec::Rows::Many, (format, outputs, inputs), Epilogue::Store),
                quantizes: false,
            },
        });
        let function = self.function("expand", "y = weight · x", &[(MANY, spec)]);
        let arguments = [
            ("weight", Operand::Field(field)),
            ("x", Operand::Scratch(tile_buffer)),
            ("y", Operand::Scratch(y)),
        ];
        let name = self.scratch_name(y);
        self.tile_step(
            draft,
            (&name, &format!("{name} = W · latent_tile, for all heads")),
            function,
            &arguments,
        );
        y
    }

    /// Adds a step whose rows are positions of a KV tile.
    fn tile_step(
        &self,
        draft: &mut Draft<'_>,
        (name, formula): (&str, &str),
        function: usize,
        arguments: &[(&str, Operand)],
    ) {
        draft.step(name, formula, function, arguments);
        draft.set_last_condition(Condition::Expanded);
        if let Some(step) = draft.section.steps_mut(draft.schedule).last_mut() {
            step.of_tile = true;
        }
    }
}

/// Regimes that may use the expanded form.
const MANY: &[Regime] = &[Regime::Many];
