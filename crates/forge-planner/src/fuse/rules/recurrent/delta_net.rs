//! `silu(z) * norm(delta_rule(silu(conv(q)), silu(conv(k)), silu(conv(v)), t, sigmoid(s)))`, where q, k, v,
//! z, s and t are projections of one value: a Gated DeltaNet mixer in three operations. One projection
//! computes all six, one convolution reads the first three, and the delta rule reads the rest, normalizes its
//! output and multiplies by the gates.
//!
//! Preconditions: the projections are plain, of one value, used nowhere else, in one format, and all or none
//! have a bias; all values between them and the product are used nowhere else; and the norm is per head, with
//! a gain.

use crate::fuse::list::{
    Convolve, DeltaRule, Function, Fused, Gated, Kind, Linear, Operation, UnaryOp, Value,
};
use forge_ir::ParamId;
use forge_ops::Activation;

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| fits(list, place));
    let Some(fit) = fit else { return false };
    let width = |values: &[Value]| values.iter().map(|value| list.widths[value.0]).sum();
    let (all, convolved) = (width(&fit.sources), width(&fit.sources[..3]));
    let [all, convolved] = [all, convolved].map(|width| list.new_value(width));
    let mut linear = Linear::plain(fit.weights[0].0, None);
    linear.parts = fit.weights;
    let operation =
        |name: &str, kind, inputs, output| Operation { name: name.to_owned(), kind, inputs, output };
    let convolve = Kind::Convolve(Convolve { parts: fit.taps, activation: Some(Activation::Silu) });
    let ends = list.definition(fit.output).unwrap_or(0);
    list.operations[ends] = operation("heads", Kind::DeltaRule(fit.rule), vec![convolved, all], fit.output);
    list.operations.insert(ends, operation("convolved", convolve, vec![all], convolved));
    list.operations.insert(ends, operation("inputs", Kind::Linear(linear), vec![fit.input], all));
    list.operations.retain(|operation| !fit.gone.contains(&operation.output));
    true
}

struct Fit {
    input: Value,
    /// Queries, keys, values, gates, beta and dt, as computed by their projections.
    sources: [Value; 6],
    weights: Vec<(ParamId, Option<ParamId>)>,
    /// Convolution weights and conv states of queries, keys and values.
    taps: Vec<(ParamId, ParamId)>,
    rule: DeltaRule,
    output: Value,
    gone: Vec<Value>,
}

/// Matches the mixer of the delta rule at `place`.
fn fits(list: &Fused, place: usize) -> Option<Fit> {
    let operation = &list.operations[place];
    let Kind::DeltaRule(rule) = &operation.kind else { return None };
    let [query, key, value, dt, beta] = operation.inputs[..] else { return None };
    let mut gone = vec![operation.output];
    let mut taps = Vec::new();
    let mut convolved = |value: Value| {
        let activated = activated(list, value, Activation::Silu)?;
        let convolve = &list.operations[list.definition(activated)?];
        let Kind::Convolve(Convolve { parts, activation: None }) = &convolve.kind else { return None };
        gone.extend([value, activated]);
        taps.extend(parts);
        (list.uses(activated) == 1).then_some(convolve.inputs[0])
    };
    let [query, key, value] = [convolved(query)?, convolved(key)?, convolved(value)?];
    gone.push(beta);
    let beta = activated(list, beta, Activation::Sigmoid)?;

    let only_reader = |value: Value| list.readers(value).next().filter(|_| list.uses(value) == 1);
    let norm = only_reader(operation.output)?;
    let gated = match norm.kind {
        Kind::Norm { gain: Some(gain), parts, epsilon } if parts == list.widths[dt.0] => {
            Gated { gain, epsilon }
        }
        _ => return None,
    };
    let product = only_reader(norm.output).filter(|it| it.kind == Kind::Elementwise(Function::Multiply))?;
    let open = *product.inputs.iter().find(|value| **value != norm.output)?;
    let gate = activated(list, open, Activation::Silu)?;
    gone.extend([norm.output, open]);

    let sources = [query, key, value, gate, beta, dt];
    let projections: Vec<_> =
        sources.iter().map(|value| list.plain_projection(*value)).collect::<Option<_>>()?;
    let input = list.operations[projections[0].0].inputs[0];
    let (first, has_bias) = (projections[0].1.0, projections[0].1.1.is_some());
    let alike = projections.iter().all(|(place, (weight, bias))| {
        list.operations[*place].inputs[0] == input
            && bias.is_some() == has_bias
            && list.format(*weight) == list.format(first)
    });
    gone.extend(sources);
    let weights = projections.into_iter().map(|(_, weight)| weight).collect();
    let rule = DeltaRule { gated: Some(gated), ..rule.clone() };
    alike.then_some(Fit { input, sources, weights, taps, rule, output: product.output, gone })
}

/// The input of this activation, if the activation alone defines the value and the value has one reader.
fn activated(list: &Fused, value: Value, activation: Activation) -> Option<Value> {
    let operation = &list.operations[list.definition(value)?];
    let fits = operation.kind == Kind::Elementwise(Function::Unary(UnaryOp::Activate(activation)))
        && list.uses(value) == 1;
    fits.then(|| operation.inputs[0])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fuse::rules::tests::{list, projection, text};
    use forge_ir::Format;

    /// A mixer of two heads: queries, keys and values have widths 4, 4 and 6.
    pub(crate) fn mixer() -> Fused {
        let activate = |activation| Kind::Elementwise(Function::Unary(UnaryOp::Activate(activation)));
        let convolve = |taps| {
            let parts = vec![(ParamId(taps), ParamId(taps + 1))];
            Kind::Convolve(Convolve { parts, activation: None })
        };
        let rule = DeltaRule {
            a_log: ParamId(12),
            dt_bias: ParamId(13),
            scale: 0.5,
            epsilon: 1e-6,
            recurrent_state: ParamId(14),
            gated: None,
            prologue: None,
        };
        let norm = Kind::Norm { gain: Some(ParamId(15)), parts: 2, epsilon: 1e-6 };
        list(
            vec![
                ("query", projection(0), &[0], 1),
                ("key", projection(1), &[0], 2),
                ("value", projection(2), &[0], 3),
                ("gate", projection(3), &[0], 4),
                ("beta", projection(4), &[0], 5),
                ("dt", projection(5), &[0], 6),
                ("convolved_query", convolve(6), &[1], 7),
                ("activated_query", activate(Activation::Silu), &[7], 8),
                ("convolved_key", convolve(8), &[2], 9),
                ("activated_key", activate(Activation::Silu), &[9], 10),
                ("convolved_value", convolve(10), &[3], 11),
                ("activated_value", activate(Activation::Silu), &[11], 12),
                ("beta_sigmoid", activate(Activation::Sigmoid), &[5], 13),
                ("heads", Kind::DeltaRule(rule), &[8, 10, 12, 6, 13], 14),
                ("normed_heads", norm, &[14], 15),
                ("open_gate", activate(Activation::Silu), &[4], 16),
                ("gated_heads", Kind::Elementwise(Function::Multiply), &[15, 16], 17),
                ("output", projection(16), &[17], 18),
            ],
            &[8, 4, 4, 6, 6, 2, 2, 4, 4, 4, 4, 6, 6, 2, 6, 6, 6, 6, 8],
        )
    }

    #[test]
    fn gated_delta_net_is_projection_convolution_and_delta_rule() {
        let mut list = mixer();
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%19 inputs = linear 0+1+2+3+4+5 Rows(%0)\n\
             %20 convolved = convolve 6+8+10(%19)\n\
             %17 heads = delta_rule gated(%20, %19)\n\
             %18 output = linear 16 Rows(%17)\n"
        );
        assert_eq!([list.widths[19], list.widths[20]], [24, 14]);
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn incomplete_mixers_are_not_fused() {
        let changes: [&dyn Fn(&mut Fused); 6] = [
            &|list| list.formats = vec![Format::Q4_0, Format::Q8_0],
            // Another activation, another input, a second reader, a norm that is not per head, and one
            // without a gain.
            &|list| {
                list.operations[15].kind =
                    Kind::Elementwise(Function::Unary(UnaryOp::Activate(Activation::Sigmoid)));
            },
            &|list| list.operations[5].inputs = vec![Value(1)],
            &|list| list.operations[17].inputs = vec![Value(17), Value(12)],
            &|list| {
                list.operations[14].kind = Kind::Norm { gain: Some(ParamId(15)), parts: 1, epsilon: 1e-6 };
            },
            &|list| list.operations[14].kind = Kind::Norm { gain: None, parts: 2, epsilon: 1e-6 },
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut list = mixer();
            change(&mut list);
            let before = text(&list);
            assert!(!rewrite(&mut list), "{index}");
            assert_eq!(text(&list), before);
        }
    }
}
