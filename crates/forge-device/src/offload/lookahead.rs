//! Expert lookahead: predicts the experts of the next layer, so that they can be prefetched.
//!
//! The residual stream changes little from one layer to the next. The next layer's router is therefore run on
//! this layer's router input: the same kernel, bound to the other weights. The prediction ignores the
//! attention in between, and the other layer's gains, biases and groups. It affects prefetch only.

use crate::device::{Binding, Buffer, Span};
use crate::offload::expert_weights::ExpertWeights;

/// The dispatch of the next layer's router on this layer's input.
#[derive(Debug, PartialEq)]
pub struct RouterLookahead {
    /// The next MoE layer.
    pub layer: usize,
    /// The kernel's bindings.
    pub bindings: Vec<Binding>,
    /// The index of the logits among the bindings.
    pub logits: usize,
    rows: usize,
}

impl RouterLookahead {
    /// The lookahead for a dispatch with these bindings and rows. `None` if it is no router, if there is no
    /// next layer, or if the rows together request nearly all experts.
    pub fn of(layers: &[ExpertWeights], bindings: &[Binding], rows: usize) -> Option<RouterLookahead> {
        let is =
            |binding: &Binding, plane: usize| (binding.buffer, binding.offset) == (Buffer::Weights, plane);
        let is_bound = |plane: &Span<u8>| bindings.iter().any(|binding| is(binding, plane.offset));
        let own = layers.iter().position(|stacks| stacks.router.first().is_some_and(is_bound))?;
        let (layer, router) = (own + 1, &layers[own].router);
        let next = layers.get(layer)?;
        let lengths = |router: &[Span<u8>]| router.iter().map(|plane| plane.bytes).collect::<Vec<_>>();
        if lengths(router) != lengths(&next.router) || rows * next.routed_per_token() >= next.experts {
            return None;
        }
        let other = |binding: &Binding| {
            let plane = router.iter().position(|plane| is(binding, plane.offset));
            plane.map_or(*binding, |plane| Binding { offset: next.router[plane].offset, ..*binding })
        };
        let logits = bindings.iter().position(|binding| binding.written)?;
        Some(RouterLookahead { layer, bindings: bindings.iter().map(other).collect(), logits, rows })
    }

    /// The maximum number of logits of a layer's router, including a shared expert gate.
    pub fn max_logits(stacks: &ExpertWeights) -> usize {
        stacks.experts.div_ceil(stacks.routed_per_token().max(1)) * (stacks.experts + 1)
    }

    /// The experts that rows will probably request, by their logits; the likeliest of all rows first.
    pub fn predict(&self, stacks: &ExpertWeights, logits: &[f32]) -> Vec<usize> {
        let width = logits.len() / self.rows.max(1);
        let open = width.min(stacks.experts - stacks.shared);
        let ranked: Vec<Vec<usize>> = logits
            .chunks_exact(width.max(1))
            .map(|row| {
                let mut experts: Vec<usize> = (0..open).collect();
                experts.sort_by(|one, other| row[*other].total_cmp(&row[*one]));
                experts
            })
            .collect();
        // As many as will be requested. Unfinished prefetches are cancelled when the request is known.
        let ranks = stacks.routed_per_token().min(open);
        let mut likely = Vec::new();
        for rank in 0..ranks {
            for expert in ranked.iter().map(|row| row[rank]) {
                if !likely.contains(&expert) {
                    likely.push(expert);
                }
            }
        }
        likely
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer of 6 experts with its router at `router`; a row has 2 routed experts and 1 shared expert.
    fn layer(router: usize, bytes: usize) -> ExpertWeights {
        let (none, routes) = (Span::new(Buffer::Weights, 0, 0), Span::new(Buffer::Scratch, 0, 0));
        let router =
            vec![Span::new(Buffer::Weights, router, bytes), Span::new(Buffer::Weights, router + 500, 8)];
        let (inner, sum) = (Vec::new(), Vec::new());
        ExpertWeights {
            experts: 6,
            experts_per_token: 3,
            shared: 1,
            records: none,
            gate_up: inner,
            down: sum,
            routes,
            router,
        }
    }

    fn bound(router: usize) -> Vec<Binding> {
        [
            (Buffer::Weights, router),
            (Buffer::Weights, router + 500),
            (Buffer::Scratch, router),
            (Buffer::Scratch, 7),
        ]
        .map(|(buffer, offset)| Binding { buffer, offset, bytes: 20, written: offset == 7 })
        .to_vec()
    }

    #[test]
    fn the_next_router_runs_on_this_layers_input() {
        let layers = [layer(1000, 64), layer(3000, 64), layer(5000, 32)];
        let lookahead = RouterLookahead::of(&layers, &bound(1000), 1).unwrap();
        let offsets: Vec<usize> = lookahead.bindings.iter().map(|binding| binding.offset).collect();
        assert_eq!((lookahead.layer, lookahead.logits, offsets), (1, 3, vec![3000, 3500, 1000, 7]));
        for (what, router, rows) in [
            ("another matrix", 2000, 1),
            ("the next router has another shape", 3000, 1),
            ("there is no next layer", 5000, 1),
            ("three rows of two experts request all", 1000, 3),
        ] {
            assert_eq!(RouterLookahead::of(&layers, &bound(router), rows), None, "{what}");
        }
    }

    #[test]
    fn the_likeliest_experts_come_first_without_duplicates() {
        let layers = [layer(1000, 64), layer(3000, 64)];
        let lookahead = RouterLookahead::of(&layers, &bound(1000), 2).unwrap();
        // The sixth logit is the gate of the shared expert.
        let logits = [0.1, 3.0, f32::NEG_INFINITY, 2.0, 0.0, 9.0, 5.0, 7.0, 0.0, 1.0, 6.5, 9.0];
        for (chosen, likely) in [(2, vec![1]), (3, vec![1, 3, 4]), (5, vec![1, 3, 4, 0])] {
            let stacks = ExpertWeights { experts_per_token: chosen, ..layers[1].clone() };
            assert_eq!(lookahead.predict(&stacks, &logits), likely);
        }
    }
}
