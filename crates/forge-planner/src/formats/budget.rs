//! Bit allocation: chooses a format for each matrix so that the total size stays within a budget.
//!
//! The objective is the sum of all matrices' losses. The search is greedy: from each uniform assignment that
//! fits, it repeatedly takes the change with the largest loss reduction per bit. The best result is returned,
//! so it is never worse than one format for all matrices.

/// Size and loss of a matrix in one format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormatCandidate {
    /// Size of the whole matrix in bits, with scales and padding.
    pub bits: u64,
    /// Loss, in a measure that is additive over matrices. `None` if the format cannot represent the values.
    pub loss: Option<f64>,
}

/// Index of the chosen candidate for each matrix. All matrices have the same number of candidates, and the
/// n-th candidate of each has the same format. `None` if no choice fits the budget.
pub fn choose_within_budget(candidates: &[Vec<FormatCandidate>], budget: u64) -> Option<Vec<usize>> {
    let kinds = candidates.iter().map(Vec::len).min().unwrap_or(0);
    let cheapest = |candidates: &Vec<FormatCandidate>| {
        let fit = (0..candidates.len()).filter(|place| candidates[*place].loss.is_some());
        fit.min_by(|a, b| {
            let (a, b) = (candidates[*a], candidates[*b]);
            a.bits.cmp(&b.bits).then(loss(a).total_cmp(&loss(b)))
        })
    };
    let cheapest: Option<Vec<usize>> = candidates.iter().map(cheapest).collect();
    let uniform = (0..kinds).map(|kind| vec![kind; candidates.len()]);
    let starts = cheapest.into_iter().chain(uniform);
    let ends = starts
        .filter(|start| fits(candidates, start, budget))
        .map(|start| apply_changes(candidates, start, budget));
    ends.min_by(|a, b| total(candidates, a).total_cmp(&total(candidates, b)))
}

fn loss(candidate: FormatCandidate) -> f64 {
    candidate.loss.unwrap_or(f64::INFINITY)
}

fn total(candidates: &[Vec<FormatCandidate>], choice: &[usize]) -> f64 {
    candidates.iter().zip(choice).map(|(candidates, place)| loss(candidates[*place])).sum()
}

fn bits(candidates: &[Vec<FormatCandidate>], choice: &[usize]) -> u64 {
    candidates.iter().zip(choice).map(|(candidates, place)| candidates[*place].bits).sum()
}

fn fits(candidates: &[Vec<FormatCandidate>], choice: &[usize], budget: u64) -> bool {
    bits(candidates, choice) <= budget && total(candidates, choice).is_finite()
}

/// Applies changes until none is affordable.
fn apply_changes(candidates: &[Vec<FormatCandidate>], mut choice: Vec<usize>, budget: u64) -> Vec<usize> {
    let mut left = budget - bits(candidates, &choice);
    loop {
        // Ties take the first, so the choice is deterministic.
        let mut best: Option<(f64, usize, usize)> = None;
        for (matrix, all) in candidates.iter().enumerate() {
            let now = all[choice[matrix]];
            for (place, candidate) in all.iter().enumerate() {
                let more = candidate.bits.saturating_sub(now.bits);
                let gain = loss(now) - loss(*candidate);
                let worth = gain / more.max(1) as f64;
                if gain > 0.0 && more <= left && best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, matrix, place));
                }
            }
        }
        let Some((_, matrix, place)) = best else { return choice };
        left = left + candidates[matrix][choice[matrix]].bits - candidates[matrix][place].bits;
        choice[matrix] = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(bits: u64, loss: f64) -> FormatCandidate {
        FormatCandidate { bits, loss: Some(loss) }
    }

    #[test]
    fn the_budget_goes_to_the_largest_losses() {
        let plain = vec![candidate(40, 0.10), candidate(80, 0.01)];
        let rough = vec![candidate(40, 0.30), candidate(80, 0.02)];
        let candidates = [plain.clone(), rough, plain];
        assert_eq!(choose_within_budget(&candidates, 119), None);
        assert_eq!(choose_within_budget(&candidates, 120), Some(vec![0, 0, 0]));
        assert_eq!(choose_within_budget(&candidates, 160), Some(vec![0, 1, 0]));
        assert_eq!(choose_within_budget(&candidates, 199), Some(vec![0, 1, 0]));
        assert_eq!(choose_within_budget(&candidates, 200), Some(vec![1, 1, 0]));
        assert_eq!(choose_within_budget(&candidates, 999), Some(vec![1, 1, 1]));
    }

    #[test]
    fn unsupported_shapes_use_another_format() {
        let never = FormatCandidate { bits: 10, loss: None };
        assert_eq!(choose_within_budget(&[vec![never, candidate(80, 0.1)]], 79), None);
        assert_eq!(choose_within_budget(&[vec![never, candidate(80, 0.1)]], 80), Some(vec![1]));
    }

    proptest! {
        #[test]
        fn choices_stay_within_the_budget_and_beat_uniform_formats(
            candidates in prop::collection::vec(prop::collection::vec((1_u64..100, 0.0_f64..1.0), 3), 1..6),
            budget in 0_u64..500,
        ) {
            let of = |row: &Vec<(u64, f64)>| row.iter().map(|(bits, loss)| candidate(*bits, *loss)).collect();
            let candidates: Vec<Vec<FormatCandidate>> = candidates.iter().map(of).collect();
            match choose_within_budget(&candidates, budget) {
                None => prop_assert!(candidates.iter().map(|all| all.iter().map(|it| it.bits).min().unwrap()).sum::<u64>() > budget),
                Some(choice) => {
                    prop_assert!(bits(&candidates, &choice) <= budget);
                    for kind in 0..3 {
                        let uniform = vec![kind; candidates.len()];
                        prop_assert!(bits(&candidates, &uniform) > budget || total(&candidates, &choice) <= total(&candidates, &uniform));
                    }
                }
            }
        }
    }
}
