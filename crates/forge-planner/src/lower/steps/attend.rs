//! Steps of attention: RoPE, KV append, attention, and combining KV splits.

use crate::fuse::list::{Attend, Fused, HeadNorm, KvSource, Operation, RopeAppend};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::plan::regime::Schedule;
use crate::plan::{BatchColumn, Condition, Operand, RowsOf, State};
use forge_ir::{Layout, ParamId};
use forge_kernels::{Spec, spec};

const SLOTS: (&str, Operand) = ("slots", Operand::Batch(BatchColumn::Slots));
const POSITIONS: (&str, Operand) = ("positions", Operand::Batch(BatchColumn::Positions));
const KEYS: (&str, Operand) = ("keys", Operand::Keys);
const VALUES: (&str, Operand) = ("values", Operand::Values);

impl Select<'_> {
    pub(crate) fn append(&mut self, draft: &mut Draft<'_>, operation: &Operation, cache: ParamId) {
        let Some(state) = self.state(draft, cache) else { return };
        let [key, value] = operation.inputs[..] else { return };
        let buffer = |value| draft.buffers.get(&value).copied().unwrap_or(self.stream);
        let (key, value) = (buffer(key), buffer(value));
        let spec = Spec::Append(forge_ops::Append {
            key_heads: state.heads,
            width: state.width,
            cache: self.plan.cache,
            ring: state.ring.map(|ring| ring.positions),
        });
        let formula = "cache[slots, positions] = key, value";
        let function = self.function("append", formula, &[(draft.regimes(), spec)]);
        draft.step(
            &operation.name,
            "Append k and v to the KV cache.",
            function,
            &[
                ("key", Operand::Scratch(key)),
                ("value", Operand::Scratch(value)),
                SLOTS,
                POSITIONS,
                KEYS,
                VALUES,
            ],
        );
    }

    pub(crate) fn rope_append(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        prepare: &RopeAppend,
        from: usize,
    ) {
        let Some(state) = self.state(draft, prepare.cache) else { return };
        let width = list.widths[operation.output.0];
        let to = self.scratch("q", width, RowsOf::Row);
        draft.buffers.insert(operation.output, to);
        let spec = self.rope_append_spec(prepare, state);
        let prepared = |what: &str| match (prepare.norm, prepare.rope.is_none()) {
            (None, true) => what.to_owned(),
            (Some(_), true) => format!("norm({what})"),
            (None, false) => format!("rope({what})"),
            (Some(HeadNorm { after_rope: false, .. }), false) => format!("rope(norm({what}))"),
            (Some(HeadNorm { after_rope: true, .. }), false) => format!("norm(rope({what}))"),
        };
        let (queries, keys) = (prepared("queries of qkv"), prepared("keys"));
        let normed = if prepare.norm.is_some_and(|norm| norm.values) { "normalized " } else { "" };
        let values = if prepare.kv_source == KvSource::Keys { "keys as values" } else { "values" };
        let general = format!("q = {queries}; cache[slots, positions] = {keys}, {normed}{values}");
        let function = self.function("rope_append", &general, &[(draft.regimes(), spec)]);
        let mut arguments = vec![("qkv", Operand::Scratch(from))];
        arguments.extend(self.head_gains(draft, prepare.norm));
        arguments.extend([SLOTS, POSITIONS, ("q", Operand::Scratch(to)), KEYS, VALUES]);
        let formula = match (prepare.norm, prepare.rope.is_none()) {
            (None, true) => "Copy q",
            (Some(_), true) => "Normalize the heads of q and k",
            (None, false) => "Apply RoPE to q and k",
            (Some(HeadNorm { after_rope: false, .. }), false) => "Normalize the heads of q and k, apply RoPE",
            (Some(HeadNorm { after_rope: true, .. }), false) => "Apply RoPE to q and k, normalize the heads",
        };
        let formula = format!("{formula}; {} to the KV cache.", appended(prepare));
        draft.step(&operation.name, &formula, function, &arguments);
    }

    fn rope_append_spec(&self, prepare: &RopeAppend, state: State) -> Spec {
        Spec::RopeAppend(forge_ops::RopeAppend {
            query_heads: prepare.query_heads,
            key_heads: state.heads,
            width: state.width,
            cache: self.plan.cache,
            ring: state.ring.map(|ring| ring.positions),
            kv_source: prepare.kv_source,
            norm: head_norm(prepare),
            rope: prepare.rope.clone(),
        })
    }

    /// Appends the keys and values of all rows before attention whose prologue would append them: a row attends to
    /// other rows of its slot. The prepared queries are not used; `heads` has space for them.
    fn append_of_shared_slots(
        &mut self,
        draft: &mut Draft<'_>,
        prepare: &RopeAppend,
        state: State,
        (from, heads): (usize, usize),
    ) {
        let spec = self.rope_append_spec(prepare, state);
        let general = "cache[slots, positions] = prepared keys, values";
        let function = self.function("rope_append", general, &[(&draft.regimes()[1..], spec)]);
        let mut arguments = vec![("qkv", Operand::Scratch(from))];
        arguments.extend(self.head_gains(draft, prepare.norm));
        arguments.extend([SLOTS, POSITIONS, ("q", Operand::Scratch(heads)), KEYS, VALUES]);
        let formula = "Append k and v of all rows, since rows of one slot attend to each other.";
        draft.step("shared_append", formula, function, &arguments);
        draft.set_last_condition(Condition::SharedSlots);
    }

    fn head_gains(&self, draft: &mut Draft<'_>, norm: Option<HeadNorm>) -> Vec<(&'static str, Operand)> {
        let Some(norm) = norm else { return Vec::new() };
        let mut gain = |param| Operand::Field(self.vector(draft, &[param], Layout::Rows, ""));
        let query_gain = ("query_gain", gain(norm.query_gain));
        [query_gain].into_iter().chain(norm.key_gain.map(|param| ("key_gain", gain(param)))).collect()
    }

    pub(crate) fn attend(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        attend: &Attend,
        from: usize,
    ) {
        let Some(state) = self.state(draft, attend.cache) else { return };
        let (query_heads, key_heads, width) = (attend.query_heads, state.heads, state.width);
        let partials = self.scratch("partials", query_heads * (width + 2), RowsOf::Split);
        let heads = self.target(draft, list, operation, "heads");
        let Attend { scale, window, softcap, .. } = *attend;
        // A window that is at least as long as the context has no effect.
        let window = window.filter(|window| *window < self.plan.context);
        let (cache, ring) = (self.plan.cache, state.ring.map(|ring| ring.positions));
        let prologue = attend.prologue.as_ref().map(|prepare| forge_ops::Prologue {
            kv_source: prepare.kv_source,
            norm: head_norm(prepare),
            rope: prepare.rope.clone(),
        });
        // Gates are the last columns of the row that also contains queries, keys and values.
        let gates = attend.gated.then(|| {
            let value = operation.inputs[operation.inputs.len() - 1];
            let pitch = list.widths[value.0];
            let buffer = draft.buffers.get(&value).copied().unwrap_or(self.stream);
            (buffer, forge_ops::Gates { pitch, first: pitch - query_heads * width })
        });
        let family = self.chip().family;
        let knobs = |rows| spec::AttentionKnobs::for_chip(family, rows, query_heads, key_heads, width, cache);
        let spec = spec::Kernel {
            op: forge_ops::Attend {
                gates: gates.map(|(_, gates)| gates),
                query_heads,
                key_heads,
                width,
                cache,
                ring,
                scale,
                window,
                softcap,
                sinks: attend.sinks.is_some(),
                prologue,
            },
            layout: spec::AttentionLayout { knobs: knobs(spec::Rows::Few), quantizes: false },
        };
        let regimes = draft.regimes();
        let quantizes = draft.is_decode()
            && spec::quantizes_heads(query_heads, width)
            && self.is_read_quantized(draft, list, operation.output);
        let variants = match draft.schedule {
            Schedule::Decode if quantizes => {
                let quantizing =
                    spec.clone().with_layout(|layout| spec::AttentionLayout { quantizes, ..layout });
                vec![(&regimes[..1], Spec::AttendSplit(spec)), (&regimes[1..], Spec::AttendSplit(quantizing))]
            }
            Schedule::Decode => vec![(regimes, Spec::AttendSplit(spec))],
            Schedule::Batch => vec![
                (&regimes[..1], Spec::AttendSplit(spec.clone())),
                (
                    &regimes[1..],
                    Spec::AttendTiled(spec::Kernel {
                        op: spec.op.clone(),
                        layout: spec::AttentionLayout { knobs: knobs(spec::Rows::Many), quantizes: false },
                    }),
                ),
            ],
        };
        let (source, prepare) = match attend.prologue.as_ref().map(|prepare| prepare.kv_source) {
            None => ("q", ""),
            Some(KvSource::KeysAndValues | KvSource::KeysValuesAndGates) => {
                ("qkv", "q, k, v of qkv prepared and k, v appended; ")
            }
            Some(KvSource::Keys) => ("qkv", "q, k of qkv prepared and k, v, both of k, appended; "),
            Some(KvSource::Nothing) => ("q", "q prepared; "),
        };
        let gated = if attend.gated { "sigmoid(gates) · " } else { "" };
        let general = format!(
            "{prepare}heads = {gated}softmax(scale · q · keysᵀ) · values, over the positions of each row's slot up to its own"
        );
        let function = self.function(&draft.function_name("attend"), &general, &variants);
        if let Some(prepare) = attend.prologue.as_ref().filter(|it| it.kv_source != KvSource::Nothing)
            && draft.is_decode()
        {
            self.append_of_shared_slots(draft, prepare, state, (from, heads));
        }
        let mut arguments = vec![(source, Operand::Scratch(from))];
        let norm = attend.prologue.as_ref().and_then(|prepare| prepare.norm);
        arguments.extend(self.head_gains(draft, norm));
        arguments.extend([
            KEYS,
            VALUES,
            SLOTS,
            POSITIONS,
            ("partials", Operand::Scratch(partials)),
            ("heads", Operand::Scratch(heads)),
        ]);
        let quantized = quantizes.then(|| {
            let rows = self.quantized_output(draft, operation.output, heads, query_heads * width);
            ("quantized_heads", rows)
        });
        arguments.extend(quantized);
        arguments.extend(
            attend
                .sinks
                .map(|sinks| ("sinks", Operand::Field(self.vector(draft, &[sinks], Layout::Rows, "")))),
        );
        let gates = gates.map(|(buffer, gates)| (("gates", Operand::Scratch(buffer)), gates));
        arguments.extend(gates.map(|(argument, _)| argument));
        draft.step("attend", &formula(attend, query_heads / key_heads, window), function, &arguments);
        let gates_of_join = gates.map(|(_, gates)| gates);
        let join = |quantizes| {
            Spec::AttendCombine(spec::Kernel {
                op: forge_ops::AttendCombine { query_heads, width, gates: gates_of_join },
                layout: spec::CombineLayout { quantizes },
            })
        };
        let variants = match draft.schedule {
            Schedule::Decode if quantizes => vec![(&regimes[..1], join(false)), (&regimes[1..], join(true))],
            Schedule::Decode => vec![(regimes, join(false))],
            // Many rows are never split.
            Schedule::Batch => vec![(&regimes[..1], join(false))],
        };
        let general = "heads = the splits' sums, each weighted by exp(its maximum - the largest)";
        let name = if quantizes { "attend_combine_decode" } else { "attend_combine" };
        let function = self.function(name, general, &variants);
        let comment = "Combine the KV splits.";
        let mut arguments =
            vec![("partials", Operand::Scratch(partials)), ("heads", Operand::Scratch(heads))];
        arguments.extend(quantized);
        arguments.extend(gates.map(|(argument, _)| argument));
        draft.step("attend_combine", comment, function, &arguments);
        if let Some(step) = draft.section.steps_mut(draft.schedule).last_mut() {
            step.condition = Condition::Split;
        }
    }
}

fn head_norm(prepare: &RopeAppend) -> Option<forge_ops::HeadNorm> {
    prepare.norm.map(|HeadNorm { epsilon, after_rope, values, .. }| forge_ops::HeadNorm {
        epsilon,
        after_rope,
        values,
    })
}

/// Text for what is appended to the KV cache.
fn appended(prepare: &RopeAppend) -> String {
    let value = if prepare.kv_source == KvSource::Keys { "the projection of k as v" } else { "v" };
    let normed = if prepare.norm.is_some_and(|norm| norm.values) { ", normalized" } else { "" };
    format!("append k and {value}{normed}")
}

fn capitalized(text: &str) -> String {
    text.chars().enumerate().map(|(index, c)| if index == 0 { c.to_ascii_uppercase() } else { c }).collect()
}

/// Formula of attention, with this model's values.
fn formula(attend: &Attend, group: usize, window: Option<usize>) -> String {
    let mut text = String::new();
    if let Some(prepare) = &attend.prologue {
        let heads = if prepare.kv_source == KvSource::Nothing { "q" } else { "q and k" };
        text += &match (prepare.norm, prepare.rope.is_none()) {
            (None, true) => String::new(),
            (Some(_), true) => format!("Normalize the heads of {heads}; "),
            (None, false) => format!("Apply RoPE to {heads}; "),
            (Some(HeadNorm { after_rope: false, .. }), false) => {
                format!("Normalize the heads of {heads} and apply RoPE; ")
            }
            (Some(HeadNorm { after_rope: true, .. }), false) => {
                format!("Apply RoPE to {heads} and normalize the heads; ")
            }
        };
        text += &match prepare.kv_source {
            KvSource::Nothing => " ".to_owned(),
            _ if text.is_empty() => format!("{};  ", capitalized(&appended(prepare))),
            _ => format!("{};  ", appended(prepare)),
        };
    }
    let scores = format!("{} · q · keysᵀ", attend.scale);
    let scores = attend.softcap.map_or(scores.clone(), |cap| format!("cap({scores}, {cap})"));
    let sinks = if attend.sinks.is_some() { ", with each head's sink" } else { "" };
    let gates = if attend.gated { "sigmoid(gates) · " } else { "" };
    text += &format!("heads = {gates}softmax({scores}{sinks}) · values");
    if let Some(window) = window {
        text += &format!(", of the last {window} positions");
    }
    match group {
        1 => text + ".",
        _ => format!("{text}; {group} query heads share a KV head."),
    }
}
