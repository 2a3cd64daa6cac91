//! Whom the next layer will probably ask for, so that the disk need not wait until that layer's router has spoken.
//!
//! From one layer to the next the stream changes little. So what a layer's router is shown is shown to the next layer's router as well: the
//! same kernel, bound to the other matrix. What that says is a guess, of which nothing depends but what is read ahead: it knows nothing of
//! the attention in between, nor of the other layer's gains, biases and groups.

use crate::device::{Binding, Buffer, Span};
use crate::offload::ExpertWeights;

/// What is shown to the next layer's router, and where its logits are.
#[derive(Debug, PartialEq)]
pub struct RouterLookahead {
    /// The layer, of those that have experts.
    pub layer: usize,
    /// What the kernel is bound to.
    pub bindings: Vec<Binding>,
    /// Where among them its logits are.
    pub logits: usize,
    rows: usize,
}

impl RouterLookahead {
    /// That of a dispatch with some bindings and rows, if it is of a router and there is a next layer. None where rows are so many that
    /// together they ask for nearly everybody.
    pub fn of(layers: &[ExpertWeights], bindings: &[Binding], rows: usize) -> Option<RouterLookahead> {
        let is =
            |binding: &Binding, plane: usize| (binding.buffer, binding.offset) == (Buffer::Weights, plane);
        let is_bound = |plane: &Span<u8>| bindings.iter().any(|binding| is(binding, plane.offset));
        let own = layers.iter().position(|stacks| stacks.router.first().is_some_and(is_bound))?;
        let (layer, router) = (own + 1, &layers[own].router);
        let next = layers.get(layer)?;
        let lengths = |router: &[Span<u8>]| router.iter().map(|plane| plane.bytes).collect::<Vec<_>>();
        if lengths(router) != lengths(&next.router) || rows * next.picked() >= next.experts {
            return None;
        }
        let other = |binding: &Binding| {
            let plane = router.iter().position(|plane| is(binding, plane.offset));
            plane.map_or(*binding, |plane| Binding { offset: next.router[plane].offset, ..*binding })
        };
        let logits = bindings.iter().position(|binding| binding.written)?;
        Some(RouterLookahead { layer, bindings: bindings.iter().map(other).collect(), logits, rows })
    }

    /// The most logits of a layer's router that there are, if it has one gate of who is not chosen.
    pub fn most_logits(stacks: &ExpertWeights) -> usize {
        stacks.experts.div_ceil(stacks.picked().max(1)) * (stacks.experts + 1)
    }

    /// Whom rows will probably ask for, by their logits: the likeliest of all rows first.
    pub fn likeliest(&self, stacks: &ExpertWeights, logits: &[f32]) -> Vec<usize> {
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
        // As many as will be asked for: those that there was no time for are taken back when it is known who is.
        let ranks = stacks.picked().min(open);
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

    /// A layer of 6 experts, of which a row chooses 2 and has one more, with a router at `router`.
    fn layer(router: usize, bytes: usize) -> ExpertWeights {
        let (none, routes) = (Span::new(Buffer::Weights, 0, 0), Span::new(Buffer::Scratch, 0, 0));
        let router =
            vec![Span::new(Buffer::Weights, router, bytes), Span::new(Buffer::Weights, router + 500, 8)];
        let (inner, sum) = (Vec::new(), Vec::new());
        ExpertWeights { experts: 6, chosen: 3, shared: 1, records: none, inner, sum, routes, router }
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
    fn the_next_layers_router_is_shown_what_this_ones_is() {
        let layers = [layer(1000, 64), layer(3000, 64), layer(5000, 32)];
        let foreseen = RouterLookahead::of(&layers, &bound(1000), 1).unwrap();
        let offsets: Vec<usize> = foreseen.bindings.iter().map(|binding| binding.offset).collect();
        assert_eq!((foreseen.layer, foreseen.logits, offsets), (1, 3, vec![3000, 3500, 1000, 7]));
        for (what, router, rows) in [
            ("another matrix", 2000, 1),
            ("a router of other numbers comes next", 3000, 1),
            ("no layer comes next", 5000, 1),
            ("three rows of two ask for everybody", 1000, 3),
        ] {
            assert_eq!(RouterLookahead::of(&layers, &bound(router), rows), None, "{what}");
        }
    }

    #[test]
    fn whoever_is_likeliest_comes_first_and_nobody_twice() {
        let layers = [layer(1000, 64), layer(3000, 64)];
        let foreseen = RouterLookahead::of(&layers, &bound(1000), 2).unwrap();
        // The sixth logit is of the gate of the one that every row has.
        let logits = [0.1, 3.0, f32::NEG_INFINITY, 2.0, 0.0, 9.0, 5.0, 7.0, 0.0, 1.0, 6.5, 9.0];
        for (chosen, likely) in [(2, vec![1]), (3, vec![1, 3, 4]), (5, vec![1, 3, 4, 0])] {
            let stacks = ExpertWeights { chosen, ..layers[1].clone() };
            assert_eq!(foreseen.likeliest(&stacks, &logits), likely);
        }
    }
}
