//! Each kind of operation as a step: its kernels, its arguments, and what it says of itself.

use crate::fused::{Ending, Fused, Kind, Operation, Value};
use crate::plan::{BatchColumn, Condition, FEW, Field, FieldKind, MAX_SPLITS, Operand, Regime, State};
use crate::section::{Draft, Place};
use crate::select::Select;
use forge_ir::{Diagnostic, Format, Layout, Op, ParamId, ParamKind};
use forge_kernels::spec::Knobs;
use forge_kernels::{Spec, spec};

impl Select<'_> {
    pub(crate) fn operation(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        stream: usize,
    ) {
        let input = operation.inputs.first().copied().unwrap_or(Value(0));
        let from = draft.buffers.get(&input).copied().unwrap_or(stream);
        let from_name = self.plan.scratch[from].name.clone();
        let width = list.widths[operation.output.0];
        match &operation.kind {
            Kind::Node(Op::Embed { table }) => {
                let (field, format, rows, _) = self.matrix(draft, &[*table], Layout::Rows, "");
                let spec = Spec::Embed(spec::Embed { format, vocabulary: rows, width });
                let function = self.function("embed", "stream = table[ids]", &[(&Regime::ALL, spec)]);
                draft.buffers.insert(operation.output, stream);
                draft.step(
                    "embed",
                    "stream = the rows' embeddings.",
                    function,
                    &[
                        ("table", Operand::Field(field)),
                        ("ids", Operand::Batch(BatchColumn::Ids)),
                        ("stream", Operand::Scratch(stream)),
                    ],
                );
            }
            Kind::Node(Op::RmsNorm { gain, epsilon, .. }) => {
                let gather = draft.place == Place::Epilogue && input == Value(0);
                let field = self.vector(draft, &[*gain], Layout::Rows, "");
                let to = match draft.place {
                    Place::Epilogue => self.scratch("final_normed", width, FEW),
                    _ => self.scratch("normed", width, self.plan.chunk),
                };
                draft.buffers.insert(operation.output, to);
                let spec = Spec::RmsNorm(spec::RmsNorm { width, epsilon: *epsilon, gather });
                let (name, formula) = match gather {
                    false => ("norm", "y = gain · x / rms(x)"),
                    true => ("final_norm", "y = gain · x[wanted] / rms(x[wanted])"),
                };
                let function = self.function(name, formula, &[(&Regime::ALL, spec)]);
                let gain_name = draft.section.fields[field].name.clone();
                let formula = match gather {
                    false => format!("normed = {gain_name} · {from_name} / rms({from_name})"),
                    true => format!(
                        "final_normed = {gain_name} · {from_name} / rms({from_name}), for the rows whose logits are wanted"
                    ),
                };
                let mut arguments = vec![
                    ("x", Operand::Scratch(from)),
                    ("gain", Operand::Field(field)),
                    ("y", Operand::Scratch(to)),
                ];
                if gather {
                    arguments.push(("wanted", Operand::Batch(BatchColumn::Wanted)));
                }
                draft.step(&operation.name, &formula, function, &arguments);
            }
            Kind::Project { parts, layout, ending } => {
                self.project(draft, list, operation, (parts, *layout, *ending), from);
            }
            Kind::Slice { .. } => {
                draft.buffers.insert(operation.output, from);
            }
            Kind::RotateAppend { query_heads, rotation, cache } => {
                let Some(state) = self.state(draft, *cache) else { return };
                let to = self.scratch("q", width, self.plan.chunk);
                draft.buffers.insert(operation.output, to);
                let spec = Spec::RotateAppend(spec::RotateAppend {
                    query_heads: *query_heads,
                    key_heads: state.heads,
                    width: state.width,
                    cache: self.plan.cache,
                    rotation: rotation.clone(),
                    pairing: rotation.pairing,
                });
                let formula = "q = rotate(queries of qkv); cache[slots, positions] = rotate(keys), values";
                let function = self.function("rotate_append", formula, &[(&Regime::ALL, spec)]);
                draft.step(
                    &operation.name,
                    "Turn q and k by their positions; append k and v to the cache.",
                    function,
                    &[
                        ("qkv", Operand::Scratch(from)),
                        ("slots", Operand::Batch(BatchColumn::Slots)),
                        ("positions", Operand::Batch(BatchColumn::Positions)),
                        ("q", Operand::Scratch(to)),
                        ("keys", Operand::Keys),
                        ("values", Operand::Values),
                    ],
                );
            }
            Kind::Attend { query_heads, scale, cache } => {
                let Some(state) = self.state(draft, *cache) else { return };
                self.attend(draft, operation, (*query_heads, *scale, state), from);
            }
            Kind::Node(op) => {
                let what = format!("{op:?}");
                let what = what.split([' ', '(', '{']).next().unwrap_or_default().to_lowercase();
                self.faults.push(
                    Diagnostic::new("F0501", format!("no kernel computes {what} as {}.{} uses it", draft.section.name, operation.name))
                        .note("the planner joins it with its neighbours in the patterns of crates/forge-planner/src/rules, and none fits here"),
                );
            }
        }
    }

    fn project(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        (parts, layout, ending): (&[(ParamId, Option<ParamId>)], Layout, Ending),
        from: usize,
    ) {
        let weights: Vec<ParamId> = parts.iter().map(|part| part.0).collect();
        let biases: Vec<ParamId> = parts.iter().filter_map(|part| part.1).collect();
        let name = if parts.len() > 1 { operation.name.clone() } else { draft.param_name(weights[0]) };
        let (field, format, outputs, inputs) = self.matrix(draft, &weights, layout, &name);
        let bias = (!biases.is_empty()).then(|| self.vector(draft, &biases, layout, &format!("{name}_bias")));
        let epilogue = match ending {
            Ending::Store => spec::Epilogue::Store,
            Ending::Add => spec::Epilogue::Add,
            Ending::Gate(activation) => spec::Epilogue::Gate(activation),
        };
        let width = list.widths[operation.output.0];
        let (to, rows) = match (ending, draft.place) {
            (Ending::Add, _) => {
                let stream = operation.inputs.get(1).and_then(|value| draft.buffers.get(value)).copied();
                (stream.unwrap_or(from), self.plan.chunk)
            }
            (_, Place::Epilogue) => (self.scratch("logits", width, FEW), FEW),
            (Ending::Gate(_), _) => (self.scratch("inner", width, self.plan.chunk), self.plan.chunk),
            (Ending::Store, _) => (self.scratch(&name, width, self.plan.chunk), self.plan.chunk),
        };
        draft.buffers.insert(operation.output, to);
        let spec = |regime: Regime| {
            let rows = match regime {
                Regime::One => spec::Rows::One,
                Regime::Few => spec::Rows::Few,
                Regime::Many => spec::Rows::Many,
            };
            let knobs = Knobs::default_for(rows, format, outputs, inputs);
            Spec::Project(spec::Project {
                rows,
                format,
                outputs,
                inputs,
                bias: bias.is_some(),
                epilogue,
                knobs,
            })
        };
        let regimes: &[Regime] = if rows == FEW { &Regime::ALL[..2] } else { &Regime::ALL };
        let variants: Vec<(&[Regime], Spec)> = regimes
            .iter()
            .enumerate()
            .map(|(index, regime)| (&regimes[index..=index], spec(*regime)))
            .collect();
        let plus = if bias.is_some() { " + bias" } else { "" };
        let general = match ending {
            Ending::Store => format!("y = weight · x{plus}"),
            Ending::Add => format!("y += weight · x{plus}"),
            Ending::Gate(_) => format!("gate, up = weight · x{plus}; y = silu(gate) · up"),
        };
        let function = self.function(&name, &general, &variants);
        let (from_name, to_name) = (&self.plan.scratch[from].name, &self.plan.scratch[to].name);
        let plus = if bias.is_some() { format!(" + {name}_bias") } else { String::new() };
        let formula = match ending {
            Ending::Store if name == "qkv" => format!("q, k, v = W · {from_name}{plus}"),
            Ending::Store => format!("{to_name} = W · {from_name}{plus}"),
            Ending::Add => format!("{to_name} += W · {from_name}{plus}"),
            Ending::Gate(_) => format!("gate, up = W · {from_name}{plus};  {to_name} = silu(gate) · up"),
        };
        let mut arguments = vec![
            ("weight", Operand::Field(field)),
            ("x", Operand::Scratch(from)),
            ("y", Operand::Scratch(to)),
        ];
        arguments.extend(bias.map(|bias| ("bias", Operand::Field(bias))));
        draft.step(&name, &formula, function, &arguments);
    }

    fn attend(
        &mut self,
        draft: &mut Draft<'_>,
        operation: &Operation,
        (query_heads, scale, state): (usize, f32, State),
        from: usize,
    ) {
        let (key_heads, width, cache) = (state.heads, state.width, self.plan.cache);
        let partials = self.scratch("partials", query_heads * MAX_SPLITS * (width + 2), FEW);
        let heads = self.scratch("heads", query_heads * width, self.plan.chunk);
        draft.buffers.insert(operation.output, heads);
        let few = Spec::AttendSplit(spec::AttendSplit { query_heads, key_heads, width, cache, scale });
        let many = Spec::AttendTiled(spec::AttendTiled { query_heads, key_heads, width, cache, scale });
        let formula = "heads = softmax(scale · q · keysᵀ) · values, over the positions of each row's slot up to its own";
        let function =
            self.function("attend", formula, &[(&Regime::ALL[..2], few), (&Regime::ALL[2..], many)]);
        let shared = match query_heads / key_heads {
            1 => String::new(),
            group => format!("; {group} query heads share a key head"),
        };
        let comment = format!("heads = softmax({scale} · q · keysᵀ) · values{shared}.");
        draft.step(
            &operation.name,
            &comment,
            function,
            &[
                ("q", Operand::Scratch(from)),
                ("keys", Operand::Keys),
                ("values", Operand::Values),
                ("slots", Operand::Batch(BatchColumn::Slots)),
                ("positions", Operand::Batch(BatchColumn::Positions)),
                ("partials", Operand::Scratch(partials)),
                ("heads", Operand::Scratch(heads)),
            ],
        );
        let join = Spec::AttendJoin(spec::AttendJoin { query_heads, width });
        let formula = "heads = the splits' sums, each weighted by exp(its maximum - the largest)";
        let function = self.function("attend_join", formula, &[(&Regime::ALL[..2], join)]);
        let comment = "A long cache was split among threadgroups: join what they found.";
        draft.step(
            "attend_join",
            comment,
            function,
            &[("partials", Operand::Scratch(partials)), ("heads", Operand::Scratch(heads))],
        );
        if let Some(step) = draft.section.steps.last_mut() {
            step.condition = Condition::Split;
        }
    }

    pub(crate) fn argmax(&mut self, draft: &mut Draft<'_>, list: &Fused) {
        let Some(logits) = list.operations.last().and_then(|operation| draft.buffers.get(&operation.output))
        else {
            return;
        };
        let logits = *logits;
        let next = self.scratch("next", 1, FEW);
        let spec = Spec::Argmax(spec::Argmax { vocabulary: self.graph.model.vocabulary });
        let function =
            self.function("argmax", "ids = the index of the largest of logits", &[(&Regime::ALL[..2], spec)]);
        draft.step(
            "argmax",
            "next = the likeliest token.",
            function,
            &[("logits", Operand::Scratch(logits)), ("ids", Operand::Scratch(next))],
        );
    }

    fn state(&mut self, draft: &mut Draft<'_>, cache: ParamId) -> Option<State> {
        let Some(ParamKind::State(state)) = draft.body.params.get(cache.0).map(|param| &param.kind) else {
            return None;
        };
        let state = State { heads: state.heads, width: state.width };
        draft.section.state = Some(state);
        Some(state)
    }

    /// The field of a matrix made of these parameters, with its format, rows and columns.
    fn matrix(
        &self,
        draft: &mut Draft<'_>,
        params: &[ParamId],
        layout: Layout,
        name: &str,
    ) -> (usize, Format, usize, usize) {
        let weights = draft.weights(params);
        let format = self.options.matrix_format(self.graph, &weights);
        let columns = weights.first().map_or(0, |id| self.graph.weights[id.0].columns());
        let rows = weights.iter().map(|id| self.graph.weights[id.0].rows()).sum();
        let name = draft.role(params, name);
        let comment = draft.comment(params, layout, "rows");
        let field = draft.field(Field { name, kind: FieldKind::Matrix { format, rows, columns }, comment });
        (field, format, rows, columns)
    }

    fn vector(&self, draft: &mut Draft<'_>, params: &[ParamId], layout: Layout, name: &str) -> usize {
        let width = draft.weights(params).iter().map(|id| self.graph.weights[id.0].columns()).sum();
        let name = draft.role(params, name);
        let comment = draft.comment(params, layout, "numbers");
        draft.field(Field { name, kind: FieldKind::Vector { width }, comment })
    }
}
