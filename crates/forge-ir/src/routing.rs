//! Experts: feed-forward networks of which each row uses a few, and how those are chosen.
//!
//! A router gives a row one logit for each expert. [`crate::Op::Route`] makes of these the weight of each expert, 0 for
//! those that are not chosen; [`crate::Op::Experts`] sums the chosen experts' results, each times its weight. The
//! matrices of all experts are one weight of the graph, a stack.

use crate::graph::{Activation, Body, ParamId};
use crate::shape_check::shape;
use serde::Serialize;

/// How the logits of a router become the weights of experts.
///
/// Every expert has a score, and as many as `chosen` have the largest. The weight of an expert is its score, divided by the
/// sum of those chosen if weights are shares, times the factor, times the expert's scale.
///
/// Of equals the expert of the lowest number is chosen. What is not a number counts as more than any number: it is chosen,
/// and shows in the result. So there are always as many chosen as there have to be, each once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Routing {
    /// What scores are made of.
    pub scores: Scores,
    /// Experts of a row.
    pub chosen: usize,
    /// `[experts]`, added to the scores for the choice, and not in the weights.
    pub correction: Option<ParamId>,
    /// Groups of experts, of which some are out of the question for a row.
    pub groups: Option<Groups>,
    /// Whether weights are divided by the sum of those chosen.
    pub shares: bool,
    /// Multiplies every weight.
    pub factor: f32,
    /// `[experts]`, multiplies each expert's weight.
    pub scale: Option<ParamId>,
}

/// What the score of an expert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// exp(logit) over the sum of those of all experts.
    Softmax,
    /// 1 / (1 + exp(-logit))
    Sigmoid,
}

impl Scores {
    /// The name used in printed graphs, plans and kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Scores::Softmax => "softmax",
            Scores::Sigmoid => "sigmoid",
        }
    }
}

/// Equal groups of neighbouring experts. Only experts of the best groups can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many are kept, of equals those of the lowest number.
    pub kept: usize,
    /// A group is worth the sum of its so many best scores, corrections included: 1 or 2.
    pub best: usize,
}

/// The experts of a layer: down(gating(gate(x), up(x))) each, and to each product its bias added where there are some.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Experts {
    /// `[experts, inner, width]`
    pub gate: ParamId,
    /// `[experts, inner, width]`
    pub up: ParamId,
    /// `[experts, width, inner]`
    pub down: ParamId,
    /// Of gates and ups, `[experts * inner]`, and of downs, `[experts * width]`: an expert's after the other's.
    pub biases: Option<[ParamId; 3]>,
    /// What becomes of a gate and its up.
    pub gating: Gating,
}

/// What becomes of a gate g and its up u.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// activation(g) * u
    Plain(Activation),
    /// a * (1 / (1 + exp(-sharpness * a))) * (b + 1), where a is g, but at most the limit, and b is u, but at most the limit either
    /// way.
    Clamped {
        /// The largest gate, and the largest up either way.
        limit: f32,
        /// How steeply gates open.
        sharpness: f32,
    },
}

impl Routing {
    /// Whether this can be done among so many experts, or why it cannot.
    fn check(&self, experts: usize) -> Result<(), String> {
        if !(1..=experts).contains(&self.chosen) {
            return Err(format!("{} of {experts} experts cannot be chosen", self.chosen));
        }
        if self.factor == 0.0 || !self.factor.is_finite() {
            return Err(format!("weights times {} say nothing", self.factor));
        }
        let Some(Groups { count, kept, best }) = self.groups else { return Ok(()) };
        if count == 0 || !experts.is_multiple_of(count) {
            return Err(format!("{experts} experts do not divide into {count} groups"));
        }
        let of_group = experts / count;
        if !(1..=count).contains(&kept) || !(1..=of_group.min(2)).contains(&best) {
            return Err(format!(
                "{kept} of {count} groups cannot be kept by their {best} best of {of_group}"
            ));
        }
        if kept * of_group < self.chosen {
            let left = kept * of_group;
            return Err(format!("{} experts cannot be chosen from the {left} of {kept} groups", self.chosen));
        }
        Ok(())
    }
}

/// The width of the weights of experts, as many as there are logits.
pub(crate) fn route(body: &Body, routing: &Routing, experts: usize) -> Result<usize, String> {
    for vector in [routing.correction, routing.scale].into_iter().flatten() {
        match shape(body, vector)? {
            [width] if *width == experts => {}
            other => {
                return Err(format!("a correction or scale is {other:?}, and there are {experts} experts"));
            }
        }
    }
    routing.check(experts).map(|()| experts)
}

/// The width of the sum of experts' results.
pub(crate) fn experts(body: &Body, experts: &Experts, [x, weights]: [usize; 2]) -> Result<usize, String> {
    let [gate, up, down] = [experts.gate, experts.up, experts.down].map(|param| shape(body, param));
    let (gate, up, down) = (gate?, up?, down?);
    if let Gating::Clamped { limit, sharpness } = experts.gating
        && !(limit > 0.0 && limit.is_finite() && sharpness.is_finite())
    {
        return Err(format!("nothing is clamped to {limit} and {sharpness} times as steep"));
    }
    let (inner, out) = match (gate, down) {
        ([count, inner, width], [of_down, out, columns])
            if [*count, *of_down] == [weights; 2] && *width == x && columns == inner && up == gate =>
        {
            (*inner, *out)
        }
        _ => {
            return Err(format!(
                "its stacks are {gate:?}, {up:?} and {down:?}, for {weights} experts of an input {x} wide"
            ));
        }
    };
    for (bias, each) in experts.biases.into_iter().flatten().zip([inner, inner, out]) {
        match shape(body, bias)? {
            [width] if *width == weights * each => {}
            other => {
                return Err(format!("a bias is {other:?}, for {weights} experts of {each} results each"));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_chosen_is_refused() {
        let plain = || Routing {
            scores: Scores::Sigmoid,
            chosen: 2,
            correction: None,
            groups: None,
            shares: true,
            factor: 1.0,
            scale: None,
        };
        let groups = |count, kept, best| Routing { groups: Some(Groups { count, kept, best }), ..plain() };
        for (routing, why) in [
            (plain(), ""),
            (Routing { chosen: 8, ..plain() }, ""),
            (Routing { chosen: 0, ..plain() }, "0 of 8 experts cannot be chosen"),
            (Routing { chosen: 9, ..plain() }, "9 of 8 experts cannot be chosen"),
            (Routing { factor: 0.0, ..plain() }, "weights times 0 say nothing"),
            (groups(4, 1, 2), ""),
            (groups(3, 1, 1), "8 experts do not divide into 3 groups"),
            (groups(8, 2, 2), "2 of 8 groups cannot be kept by their 2 best of 1"),
            (groups(4, 5, 1), "5 of 4 groups cannot be kept by their 1 best of 2"),
            (groups(8, 1, 1), "2 experts cannot be chosen from the 1 of 1 groups"),
        ] {
            assert_eq!(routing.check(8).err().unwrap_or_default(), why);
        }
    }
}
