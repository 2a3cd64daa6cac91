//! Checks of routing and experts.
//!
//! Each function returns the width of a node's result, or an error.

use crate::graph::draft::Body;
use crate::graph::routing::{Experts, Routing};
use crate::validate::shape_check::shape;
use forge_ops::{Gating, Groups};

impl Routing {
    /// Checks the routing for this number of experts.
    fn check(&self, experts: usize) -> Result<(), String> {
        if !(1..=experts).contains(&self.chosen) {
            return Err(format!("cannot select {} of {experts} experts", self.chosen));
        }
        if self.factor == 0.0 || !self.factor.is_finite() {
            return Err(format!("invalid factor {}", self.factor));
        }
        let Some(Groups { count, kept, best }) = self.groups else { return Ok(()) };
        if count == 0 || !experts.is_multiple_of(count) {
            return Err(format!("{experts} experts are not a multiple of {count} groups"));
        }
        let of_group = experts / count;
        if !(1..=count).contains(&kept) || !(1..=of_group.min(2)).contains(&best) {
            return Err(format!(
                "cannot keep {kept} of {count} groups by the best {best} of {of_group} experts"
            ));
        }
        if kept * of_group < self.chosen {
            let left = kept * of_group;
            return Err(format!("cannot select {} experts from the {left} of {kept} groups", self.chosen));
        }
        Ok(())
    }
}

/// The width of routing weights: one per logit.
pub(crate) fn route(body: &Body, routing: &Routing, experts: usize) -> Result<usize, String> {
    for vector in [routing.correction, routing.scale].into_iter().flatten() {
        match shape(body, vector)? {
            [width] if *width == experts => {}
            other => {
                return Err(format!("correction or scale {other:?} does not match {experts} experts"));
            }
        }
    }
    routing.check(experts).map(|()| experts)
}

/// The width of the experts' output.
pub(crate) fn experts(body: &Body, experts: &Experts, [x, weights]: [usize; 2]) -> Result<usize, String> {
    let [gate, up, down] = [experts.gate, experts.up, experts.down].map(|param| shape(body, param));
    let (gate, up, down) = (gate?, up?, down?);
    if let Gating::Clamped { limit, sharpness } = experts.gating
        && !(limit > 0.0 && limit.is_finite() && sharpness.is_finite())
    {
        return Err(format!("invalid limit {limit} or sharpness {sharpness}"));
    }
    let (inner, out) = match (gate, down) {
        ([count, inner, width], [of_down, out, columns])
            if [*count, *of_down] == [weights; 2] && *width == x && columns == inner && up == gate =>
        {
            (*inner, *out)
        }
        _ => {
            return Err(format!(
                "stacks {gate:?}, {up:?} and {down:?} do not match {weights} experts of input width {x}"
            ));
        }
    };
    for (bias, each) in experts.biases.into_iter().flatten().zip([inner, inner, out]) {
        match shape(body, bias)? {
            [width] if *width == weights * each => {}
            other => {
                return Err(format!(
                    "bias {other:?} does not match {weights} experts of output width {each}"
                ));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_ops::Scores;

    #[test]
    fn rejects_impossible_routing() {
        let plain = || Routing {
            scores: Scores::Sigmoid,
            chosen: 2,
            correction: None,
            groups: None,
            renormalize: true,
            factor: 1.0,
            scale: None,
        };
        let groups = |count, kept, best| Routing { groups: Some(Groups { count, kept, best }), ..plain() };
        for (routing, why) in [
            (plain(), ""),
            (Routing { chosen: 8, ..plain() }, ""),
            (Routing { chosen: 0, ..plain() }, "cannot select 0 of 8 experts"),
            (Routing { chosen: 9, ..plain() }, "cannot select 9 of 8 experts"),
            (Routing { factor: 0.0, ..plain() }, "invalid factor 0"),
            (groups(4, 1, 2), ""),
            (groups(3, 1, 1), "8 experts are not a multiple of 3 groups"),
            (groups(8, 2, 2), "cannot keep 2 of 8 groups by the best 2 of 1 experts"),
            (groups(4, 5, 1), "cannot keep 5 of 4 groups by the best 1 of 2 experts"),
            (groups(8, 1, 1), "cannot select 2 experts from the 1 of 1 groups"),
        ] {
            assert_eq!(routing.check(8).err().unwrap_or_default(), why);
        }
    }
}
