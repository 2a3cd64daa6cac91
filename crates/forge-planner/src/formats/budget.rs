//! Bit allocation: chooses a format for each matrix so that the total size stays within a budget.
//!
//! The objective is the sum of all matrices' losses. The search is greedy: from each uniform assignment that
//! fits, it repeatedly takes the change with the largest loss reduction per bit. The best result is returned,
//! so it is never worse than one format for all matrices.

/// Size and loss of a matrix in one format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Size of the whole matrix in bits, with scales and padding.
    pub bits: u64,
    /// Loss, in a measure that is additive over matrices. `None` if the format cannot represent the values.
    pub loss: Option<f64>,
}

/// Index of the chosen offer for each matrix. All matrices have the same number of offers, and the n-th offer
/// of each has the same format. `None` if no choice fits the budget.
pub fn choose_within_budget(offers: &[Vec<Offer>], budget: u64) -> Option<Vec<usize>> {
    let kinds = offers.iter().map(Vec::len).min().unwrap_or(0);
    let cheapest = |offers: &Vec<Offer>| {
        let fit = (0..offers.len()).filter(|place| offers[*place].loss.is_some());
        fit.min_by(|a, b| {
            let (a, b) = (offers[*a], offers[*b]);
            a.bits.cmp(&b.bits).then(loss(a).total_cmp(&loss(b)))
        })
    };
    let cheapest: Option<Vec<usize>> = offers.iter().map(cheapest).collect();
    let uniform = (0..kinds).map(|kind| vec![kind; offers.len()]);
    let starts = cheapest.into_iter().chain(uniform);
    let ends =
        starts.filter(|start| fits(offers, start, budget)).map(|start| apply_changes(offers, start, budget));
    ends.min_by(|a, b| total(offers, a).total_cmp(&total(offers, b)))
}

fn loss(offer: Offer) -> f64 {
    offer.loss.unwrap_or(f64::INFINITY)
}

fn total(offers: &[Vec<Offer>], choice: &[usize]) -> f64 {
    offers.iter().zip(choice).map(|(offers, place)| loss(offers[*place])).sum()
}

fn bits(offers: &[Vec<Offer>], choice: &[usize]) -> u64 {
    offers.iter().zip(choice).map(|(offers, place)| offers[*place].bits).sum()
}

fn fits(offers: &[Vec<Offer>], choice: &[usize], budget: u64) -> bool {
    bits(offers, choice) <= budget && total(offers, choice).is_finite()
}

/// Applies changes until none is affordable.
fn apply_changes(offers: &[Vec<Offer>], mut choice: Vec<usize>, budget: u64) -> Vec<usize> {
    let mut left = budget - bits(offers, &choice);
    loop {
        // Ties take the first, so the choice is deterministic.
        let mut best: Option<(f64, usize, usize)> = None;
        for (matrix, all) in offers.iter().enumerate() {
            let now = all[choice[matrix]];
            for (place, offer) in all.iter().enumerate() {
                let more = offer.bits.saturating_sub(now.bits);
                let gain = loss(now) - loss(*offer);
                let worth = gain / more.max(1) as f64;
                if gain > 0.0 && more <= left && best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, matrix, place));
                }
            }
        }
        let Some((_, matrix, place)) = best else { return choice };
        left = left + offers[matrix][choice[matrix]].bits - offers[matrix][place].bits;
        choice[matrix] = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(bits: u64, loss: f64) -> Offer {
        Offer { bits, loss: Some(loss) }
    }

    #[test]
    fn the_budget_goes_to_the_largest_losses() {
        let plain = vec![offer(40, 0.10), offer(80, 0.01)];
        let rough = vec![offer(40, 0.30), offer(80, 0.02)];
        let offers = [plain.clone(), rough, plain];
        assert_eq!(choose_within_budget(&offers, 119), None);
        assert_eq!(choose_within_budget(&offers, 120), Some(vec![0, 0, 0]));
        assert_eq!(choose_within_budget(&offers, 160), Some(vec![0, 1, 0]));
        assert_eq!(choose_within_budget(&offers, 199), Some(vec![0, 1, 0]));
        assert_eq!(choose_within_budget(&offers, 200), Some(vec![1, 1, 0]));
        assert_eq!(choose_within_budget(&offers, 999), Some(vec![1, 1, 1]));
    }

    #[test]
    fn unsupported_shapes_use_another_format() {
        let never = Offer { bits: 10, loss: None };
        assert_eq!(choose_within_budget(&[vec![never, offer(80, 0.1)]], 79), None);
        assert_eq!(choose_within_budget(&[vec![never, offer(80, 0.1)]], 80), Some(vec![1]));
    }

    proptest! {
        #[test]
        fn choices_stay_within_the_budget_and_beat_uniform_formats(
            offers in prop::collection::vec(prop::collection::vec((1_u64..100, 0.0_f64..1.0), 3), 1..6),
            budget in 0_u64..500,
        ) {
            let of = |row: &Vec<(u64, f64)>| row.iter().map(|(bits, loss)| offer(*bits, *loss)).collect();
            let offers: Vec<Vec<Offer>> = offers.iter().map(of).collect();
            match choose_within_budget(&offers, budget) {
                None => prop_assert!(offers.iter().map(|all| all.iter().map(|it| it.bits).min().unwrap()).sum::<u64>() > budget),
                Some(choice) => {
                    prop_assert!(bits(&offers, &choice) <= budget);
                    for kind in 0..3 {
                        let uniform = vec![kind; offers.len()];
                        prop_assert!(bits(&offers, &uniform) > budget || total(&offers, &choice) <= total(&offers, &uniform));
                    }
                }
            }
        }
    }
}
