//! `inner(x, route(logits)) = inner'(x, logits)`: expert kernels perform the top-k routing themselves.
//!
//! Each simdgroup finds the top experts in the router logits, which is cheap next to its matrix. The first
//! simdgroup of the row writes the routes with their weights for later steps. Preconditions: one row per pass
//! (with many rows the search would be repeated too often), and only these experts and their sum read the
//! routes.

use crate::fuse::list::{Fused, Kind};

pub(crate) fn rewrite(list: &mut Fused) -> bool {
    let Some((route, inner)) = (0..list.operations.len()).find_map(|place| fits(list, place)) else {
        return false;
    };
    let chosen = list.operations.remove(route);
    let (Kind::Route(choice), experts) = (chosen.kind, &mut list.operations[inner - 1]) else {
        return false;
    };
    if let Kind::ExpertsInner(inner) = &mut experts.kind {
        inner.choice = Some((choice, chosen.output));
    }
    experts.inputs[1] = chosen.inputs[0];
    true
}

/// Indices of a route and of the experts that read it.
fn fits(list: &Fused, route: usize) -> Option<(usize, usize)> {
    let Kind::Route(_) = &list.operations[route].kind else { return None };
    let routes = list.operations[route].output;
    let reads = |place: &usize| list.operations[*place].inputs.contains(&routes);
    let readers: Vec<usize> = (0..list.operations.len()).filter(reads).collect();
    let [inner, sum] = readers[..] else { return None };
    let (first, second) = (&list.operations[inner], &list.operations[sum]);
    let fits = matches!(first.kind, Kind::ExpertsInner(_))
        && matches!(second.kind, Kind::ExpertsSum(_))
        && second.inputs[0] == first.output;
    fits.then_some((route, inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::list::Value;
    use crate::fuse::rules::tests::{list, projection, routed, text};
    use forge_ir::Groups;

    #[test]
    fn routing_is_fused_into_experts() {
        let mut list = list(routed(None), &[8, 4, 4, 12, 8]);
        let chooses = |list: &Fused| (0..5).filter(|value| list.chooses(Value(*value))).collect::<Vec<_>>();
        assert_eq!(chooses(&list), [1], "the router's logits");
        assert!(rewrite(&mut list));
        assert_eq!(chooses(&list), [1], "they are still");
        assert_eq!(
            text(&list),
            "%1 router = linear 0 Rows(%0)\n\
             %3 inner = experts 1+2 choose %2(%0, %1)\n\
             %4 routed = experts 3(%3, %2)\n"
        );
        assert!(!rewrite(&mut list));
    }

    #[test]
    fn grouped_routing_is_fused_into_experts() {
        let mut of_groups = list(routed(Some(Groups { count: 2, kept: 1, best: 1 })), &[8, 4, 4, 12, 8]);
        assert!(rewrite(&mut of_groups));
    }

    #[test]
    fn other_readers_prevent_fusion() {
        let mut operations = routed(None);
        operations.push(("again", projection(4), &[2], 5));
        assert!(!rewrite(&mut list(operations, &[8, 4, 4, 12, 8, 8])));
    }
}
