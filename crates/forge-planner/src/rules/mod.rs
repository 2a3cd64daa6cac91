//! Fusion rules, one file each. A rule is a function that rewrites the first place it fits and says whether it did;
//! each is applied until it no longer fits, in the order of [`ALL`].
//!
//! A rule keeps what the list computes: its file states the algebra as one equation and its precondition in words.

mod gate_pair;
mod merge_projections;
mod residual;
mod rotate_append;

use crate::fused::Fused;

/// A rule: its name and its rewrite.
struct Rule {
    name: &'static str,
    rewrite: fn(&mut Fused) -> bool,
}

const ALL: [Rule; 4] = [
    Rule { name: "gate_pair", rewrite: gate_pair::rewrite },
    Rule { name: "merge_projections", rewrite: merge_projections::rewrite },
    Rule { name: "rotate_append", rewrite: rotate_append::rewrite },
    Rule { name: "residual", rewrite: residual::rewrite },
];

/// Applies every rule wherever it fits.
pub(crate) fn apply(list: &mut Fused) {
    for rule in &ALL {
        // Each rewrite shortens the list or turns operations into kinds that the rule does not match again, so the
        // length bounds how often one can fit; the bound turns a rule that breaks this into a failed test.
        let most = list.operations.len();
        let fits = (0..=most).take_while(|_| (rule.rewrite)(list)).count();
        debug_assert!(fits <= most, "rule {} does not come to an end", rule.name);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    //! One helper: a list of operations as text before and after a rule.

    use crate::fused::{Ending, Fused, Kind, Operation, Value};
    use forge_ir::{BodyId, Layout, Op, Pairing, ParamId, Rotation};

    /// An attention of 2 heads over 1 of 4 channels, as a frontend writes it. Projection i reads `inputs[i]`, and has a
    /// bias where `biases[i]`.
    pub(crate) fn attention(inputs: &[usize; 3], biases: &[bool; 3]) -> Fused {
        let operation = |name: &str, kind, inputs: &[usize], output| Operation {
            name: name.to_owned(),
            kind,
            inputs: inputs.iter().map(|value| Value(*value)).collect(),
            output: Value(output),
        };
        let project = |index: usize| Kind::Project {
            parts: vec![(ParamId(index), biases[index].then_some(ParamId(10 + index)))],
            layout: Layout::Rows,
            ending: Ending::Store,
        };
        let rotate = |heads| {
            let rotation = Rotation { frequencies: vec![1.0, 0.1], pairing: Pairing::Half, magnitude: 1.0 };
            Kind::Node(Op::Rotate { heads, width: 4, rotation })
        };
        let attention = Kind::Node(Op::Attention { query_heads: 2, scale: 0.5, cache: ParamId(3), window: None, softcap: None });
        Fused {
            body: BodyId(0),
            operations: vec![
                operation("query", project(0), &[inputs[0]], 1),
                operation("key", project(1), &[inputs[1]], 2),
                operation("value", project(2), &[inputs[2]], 3),
                operation("rotated_query", rotate(2), &[1], 4),
                operation("rotated_key", rotate(1), &[2], 5),
                operation("heads", attention, &[4, 5, 3], 6),
            ],
            widths: vec![8, 8, 4, 4, 8, 4, 8],
        }
    }

    /// The list as one line for each operation, `%3 = project(%1; 0+1) gate`.
    pub(crate) fn text(list: &Fused) -> String {
        let line = |operation: &Operation| {
            let inputs: Vec<String> = operation.inputs.iter().map(|value| format!("%{}", value.0)).collect();
            let what = match &operation.kind {
                Kind::Node(op) => {
                    format!("{op:?}").split([' ', '(']).next().unwrap_or_default().to_lowercase()
                }
                Kind::Project { parts, layout, ending } => {
                    let parts: Vec<String> = parts.iter().map(|(weight, _)| weight.0.to_string()).collect();
                    let ending = match ending {
                        Ending::Store => "",
                        Ending::Add => " add",
                        Ending::Gate(_) => " gate",
                    };
                    format!("project {} {layout:?}{ending}", parts.join("+"))
                }
                Kind::Slice { first } => format!("slice {first}"),
                Kind::RotateAppend { .. } => "rotate_append".to_owned(),
                Kind::Attend { .. } => "attend".to_owned(),
            };
            format!("%{} {} = {what}({})\n", operation.output.0, operation.name, inputs.join(", "))
        };
        list.operations.iter().map(line).collect()
    }
}
