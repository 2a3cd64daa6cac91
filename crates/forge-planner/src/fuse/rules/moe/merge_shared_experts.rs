//! `Σ w (D a) + g (D' a') = Σ w (D a)` over s more experts of weight g: a shared expert that is s times as
//! wide as a routed expert becomes s additional experts.
//!
//! Its gate and up matrices are split by rows. Its down matrix is split by columns: `D' a' = D'₁ a'₁ + … +
//! D'ₛ a'ₛ`. The additional experts follow the routed ones, so the order of summation stays the same. Their
//! weight is 1, or the sigmoid of one more router logit; weight normalization does not apply to them.
//! Preconditions:
//!
//! * both read one value, and intermediate values are used nowhere else
//! * both have the same activation and no biases
//! * matrices that are merged have one format; if it has scales, the column blocks are whole groups
//! * the width is a multiple of a routed expert's
//! * the number of experts stays within the kernels' limits

use crate::fuse::list::{
    CombineInput, Epilogue, ExpertsSum, Function, Fused, FusedRouting, Kind, Linear, UnaryOp, Value,
};
use forge_ir::{Layout, ParamId};
use forge_kernels::spec::{MOST_CHOSEN, MOST_EXPERTS};
use forge_ops::{Activation, Gating};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some((add, fit)) = (0..list.operations.len()).find_map(|add| Some((add, fits(list, add)?))) else {
        return false;
    };
    let Fit { network, places: Places { router, route, inner, sum }, count } = fit;
    if let Kind::Linear(linear) = &mut list.operations[router].kind {
        linear.parts.extend(network.gate.map(|gate| (gate, None)));
    }
    if let Kind::Route(choice) = &mut list.operations[route].kind {
        (choice.shared, choice.gated) = (count, network.gate.is_some());
    }
    let mut chosen = 0;
    if let Kind::ExpertsInner(inner) = &mut list.operations[inner].kind {
        inner.chosen += count;
        inner.shared = Some(network.inward);
        chosen = inner.chosen;
    }
    if let Kind::ExpertsSum(sum) = &mut list.operations[sum].kind {
        sum.chosen = chosen;
        sum.shared = Some(network.down);
    }
    let [logits, routes, made] = [router, route, inner].map(|place| list.operations[place].output.0);
    list.widths[logits] += usize::from(network.gate.is_some());
    list.widths[routes] = 2 * chosen;
    list.widths[made] = chosen * network.width / count;
    // The sum over experts replaces the addition of both.
    list.operations[sum].output = list.operations[add].output;
    list.operations.swap(sum, add);
    let mut gone = network.gone;
    gone.push(sum);
    gone.sort_unstable_by(|a, b| b.cmp(a));
    for place in gone {
        list.operations.remove(place);
    }
    true
}

struct Fit {
    network: Network,
    places: Places,
    /// Number of experts that the network becomes.
    count: usize,
}

/// The feed-forward network of a shared expert.
struct Network {
    input: Value,
    /// Its gate and up.
    inward: [ParamId; 2],
    activation: Activation,
    down: ParamId,
    /// One-row matrix whose sigmoid multiplies the network's output.
    gate: Option<ParamId>,
    width: usize,
    /// Indices of its operations.
    gone: Vec<usize>,
}

/// Indices of the routed experts' operations.
struct Places {
    router: usize,
    route: usize,
    inner: usize,
    sum: usize,
}

/// Matches the addition at `add` if it adds routed experts and a shared expert that can be merged.
fn fits(list: &Fused, add: usize) -> Option<Fit> {
    let operation = &list.operations[add];
    let [left, right] = operation.inputs[..] else { return None };
    if operation.kind != Kind::Elementwise(Function::Add) {
        return None;
    }
    [(left, right), (right, left)].into_iter().find_map(|(routed, result)| {
        let network = network(list, result)?;
        let (places, count) = places(list, routed, &network)?;
        Some(Fit { network, places, count })
    })
}

/// The network that computes a value, if the value and all intermediate values have no other reader.
fn network(list: &Fused, result: Value) -> Option<Network> {
    let once = |value| list.definition_for_one(value);
    let times = once(result).filter(|place| list.operations[*place].kind == SCALE_ROWS);
    let (made, gate) = match times.map(|place| &list.operations[place].inputs[..]) {
        None => (result, None),
        Some([made, gate]) => (*made, Some(*gate)),
        Some(_) => return None,
    };
    let (down, (down_weight, None)) = list.plain_projection(made)? else { return None };
    let inward = once(list.operations[down].inputs[0])?;
    let (input, width) = (list.operations[inward].inputs[0], list.widths[list.operations[inward].output.0]);
    let Kind::Linear(Linear { parts, layout: Layout::Alternate, ending, .. }) = &list.operations[inward].kind
    else {
        return None;
    };
    let (&[(gates, None), (ups, None)], &Epilogue::Gate(activation)) = (&parts[..], ending) else {
        return None;
    };
    let mut gone = vec![down, inward];
    gone.extend(times);
    let gate = match gate {
        None => None,
        Some(gate) => {
            let open = once(gate).filter(|place| list.operations[*place].kind == OPEN)?;
            let (linear, (weight, None)) = list.plain_projection(list.operations[open].inputs[0])? else {
                return None;
            };
            gone.extend([open, linear]);
            (list.operations[linear].inputs[0] == input).then_some(weight)
        }
    };
    let is_gated = times.is_some();
    let network = Network { input, inward: [gates, ups], activation, down: down_weight, gate, width, gone };
    (is_gated == network.gate.is_some()).then_some(network)
}

const SCALE_ROWS: Kind = Kind::Elementwise(Function::ScaleRows);

const OPEN: Kind = Kind::Elementwise(Function::Unary(UnaryOp::Activate(Activation::Sigmoid)));

/// Indices of the experts whose sum is `routed`, and the number of experts that the network becomes, if it
/// can be merged.
fn places(list: &Fused, routed: Value, network: &Network) -> Option<(Places, usize)> {
    let sum = list.stored_product(routed)?;
    let Kind::ExpertsSum(ExpertsSum { down, shared: None, bias: None, chosen, ending: CombineInput::Store }) =
        list.operations[sum].kind
    else {
        return None;
    };
    let [made, routes] = list.operations[sum].inputs[..] else { return None };
    let inner = list.definition_for_one(made)?;
    let (route, reads) = (list.definition(routes)?, &list.operations[inner].inputs);
    let Kind::ExpertsInner(experts) = &list.operations[inner].kind else { return None };
    let Kind::Route(FusedRouting { shared: 0, .. }) = list.operations[route].kind else { return None };
    let logits = list.operations[route].inputs[0];
    let (router, (router_weight, router_bias)) = list.plain_projection(logits)?;
    let same_input = reads[..] == [network.input, routes]
        && (network.gate.is_none() || list.operations[router].inputs[0] == network.input);
    let alike = experts.gating == Gating::Plain(network.activation) && experts.biases.is_none();
    let width = list.widths[made.0] / chosen;
    let count = network.width / width;
    let group = list.format(down).group();
    let is_cut_whole = count == 1 || !list.format(down).is_quantized() || width.is_multiple_of(group);
    let one_format =
        |params: &[ParamId]| params.iter().all(|param| list.format(*param) == list.format(params[0]));
    let [gates, ups] = network.inward;
    let formats = one_format(&[experts.gate, experts.up, gates, ups])
        && one_format(&[down, network.down])
        && network.gate.is_none_or(|gate| one_format(&[router_weight, gate]) && router_bias.is_none());
    let few = list.widths[logits.0] + count <= MOST_EXPERTS && chosen + count <= MOST_CHOSEN;
    let fits = same_input
        && alike
        && list.uses(routes) == 2
        && network.width.is_multiple_of(width)
        && is_cut_whole
        && formats
        && few;
    fits.then_some((Places { router, route, inner, sum }, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::matmul::gate_up;
    use crate::fuse::rules::tests::{list, projection, routed, text};
    use forge_ir::Format;

    /// Experts of width 6 with a shared expert, as a frontend writes them, after `gate_up`.
    struct SharedExpert {
        /// Width of the network.
        width: usize,
        gated: bool,
        /// Inputs of the network and of its gate.
        inputs: [&'static [usize]; 2],
        activation: Activation,
        bias: bool,
        /// Formats of router, gates, ups and downs of the routed experts; then gate, up, down and scalar gate
        /// of the network.
        formats: [Format; 8],
        /// Inputs of an additional reader.
        reader: Option<&'static [usize]>,
    }

    const PLAIN: SharedExpert = SharedExpert {
        width: 12,
        gated: false,
        inputs: [&[0], &[0]],
        activation: Activation::Silu,
        bias: false,
        formats: [Format::F32; 8],
        reader: None,
    };

    fn with_shared(what: &SharedExpert) -> Fused {
        let mut operations = routed(None);
        let activate = |of| Kind::Elementwise(Function::Unary(UnaryOp::Activate(of)));
        let down = Kind::Linear(Linear::plain(ParamId(6), what.bias.then_some(ParamId(8))));
        operations.extend([
            ("gate", projection(4), what.inputs[0], 5),
            ("up", projection(5), what.inputs[0], 6),
            ("act", activate(what.activation), &[5], 7),
            ("inner", Kind::Elementwise(Function::Multiply), &[7, 6], 8),
            ("down", down, &[8], 9),
        ]);
        if what.gated {
            operations.extend([
                ("shared_gate", projection(7), what.inputs[1], 10),
                ("gated", activate(Activation::Sigmoid), &[10], 11),
                ("shared", SCALE_ROWS, &[9, 11], 12),
            ]);
        }
        let both: &[usize] = if what.gated { &[4, 12] } else { &[4, 9] };
        operations.push(("both", Kind::Elementwise(Function::Add), both, 13));
        operations.extend(what.reader.map(|reader| ("again", projection(9), reader, 14)));
        let width = what.width;
        let mut list = list(operations, &[8, 4, 4, 12, 8, width, width, width, width, 8, 1, 1, 8, 8, 8]);
        list.formats = what.formats.to_vec();
        assert!(gate_up::rewrite(&mut list));
        list
    }

    #[test]
    fn shared_experts_become_experts_of_equal_width() {
        for (width, chosen, text_of) in [(6, 3, "and 1"), (12, 4, "and 2"), (18, 5, "and 3")] {
            let mut list = with_shared(&SharedExpert { width, ..PLAIN });
            assert!(rewrite(&mut list));
            assert_eq!(
                text(&list),
                format!(
                    "%1 router = linear 0 Rows(%0)\n\
                     %2 weights = route {text_of}(%1)\n\
                     %3 inner = experts 1+2+4+5(%0, %2)\n\
                     %13 routed = experts 3+6(%3, %2)\n"
                )
            );
            assert_eq!((list.widths[1], list.widths[2], list.widths[3]), (4, 2 * chosen, 6 * chosen));
            assert!(!rewrite(&mut list));
        }
    }

    #[test]
    fn shared_expert_gates_are_one_more_router_logit() {
        let mut list = with_shared(&SharedExpert { gated: true, ..PLAIN });
        assert!(rewrite(&mut list));
        assert_eq!(
            text(&list),
            "%1 router = linear 0+7 Rows(%0)\n\
             %2 weights = route and 2 gated(%1)\n\
             %3 inner = experts 1+2+4+5(%0, %2)\n\
             %13 routed = experts 3+6(%3, %2)\n"
        );
        assert_eq!(list.widths[1], 5);
    }

    #[test]
    fn unstackable_matrices_are_not_merged() {
        let stored = |at: usize, format| {
            let mut formats = [Format::F32; 8];
            formats[at] = format;
            formats
        };
        let gated = || SharedExpert { gated: true, ..PLAIN };
        let cut = |format| SharedExpert { formats: [format; 8], ..PLAIN };
        for what in [
            SharedExpert { width: 9, ..PLAIN },
            SharedExpert { width: 3, ..PLAIN },
            SharedExpert { width: 6 * 31, ..PLAIN },
            SharedExpert { activation: Activation::Relu, ..PLAIN },
            SharedExpert { bias: true, ..PLAIN },
            SharedExpert { inputs: [&[13], &[13]], ..PLAIN },
            SharedExpert { inputs: [&[0], &[13]], ..gated() },
            SharedExpert { formats: stored(3, Format::F16), ..PLAIN },
            SharedExpert { formats: stored(6, Format::F16), ..PLAIN },
            cut(Format::Q8_0),
            SharedExpert { formats: stored(7, Format::F16), ..gated() },
            SharedExpert { reader: Some(&[3]), ..PLAIN },
            SharedExpert { reader: Some(&[2]), ..PLAIN },
            SharedExpert { reader: Some(&[9]), ..PLAIN },
            SharedExpert { reader: Some(&[11]), ..gated() },
        ] {
            let mut list = with_shared(&what);
            let before = text(&list);
            assert!(!rewrite(&mut list), "{before}");
            assert_eq!(text(&list), before);
        }
    }
}
