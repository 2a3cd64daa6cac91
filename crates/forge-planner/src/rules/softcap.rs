//! `cap(W x) = y`: what a projection computes is capped before it is written.
//!
//! Precondition: the capped value is a plain projection's, used nowhere else.

use crate::fused::{Function, Fused, Kind};

pub(super) fn rewrite(list: &mut Fused) -> bool {
    let fit = (0..list.operations.len()).find_map(|place| {
        let Kind::Elementwise(Function::Softcap(cap)) = list.operations[place].kind else { return None };
        let (project, _) = list.plain_projection(list.operations[place].inputs[0])?;
        Some((place, project, cap))
    });
    let Some((place, project, cap)) = fit else { return false };
    let capped = list.operations.remove(place);
    let operation = &mut list.operations[project];
    operation.output = capped.output;
    operation.name = capped.name;
    if let Kind::Project(project) = &mut operation.kind {
        project.softcap = Some(cap);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{list, projection, text};

    fn head(reader: usize) -> Fused {
        let cap = Kind::Elementwise(Function::Softcap(30.0));
        list(
            vec![
                ("head", projection(0), &[0], 1),
                ("logits", cap, &[1], 2),
                ("last", Kind::Elementwise(Function::Multiply), &[reader, 2], 3),
            ],
            &[4, 9, 9, 9],
        )
    }

    #[test]
    fn the_cap_goes_into_the_projection() {
        let mut list = head(2);
        assert!(rewrite(&mut list));
        assert_eq!(text(&list), "%2 logits = project 0 Rows softcap(%0)\n%3 last = multiply(%2, %2)\n");
    }

    #[test]
    fn logits_that_are_read_uncapped_too_stay() {
        assert!(!rewrite(&mut head(1)));
    }
}
