//! How many prompt rows a pass takes while other sequences decode.
//!
//! A running sequence shall not wait for more than twice its usual time between tokens because of another client's
//! prompt. So prompt rows may take as long as decoding does. How long they take is measured once at start, for
//! some numbers of rows; later passes correct it by a common factor, because it also depends on the context.

use std::collections::VecDeque;
use std::time::Duration;

/// Passes without prompt rows whose median is the usual time between tokens.
const RECENT_GAPS: usize = 15;
/// The fewest prompt rows of a pass.
const MIN_ROWS: usize = 3;
/// If no number of rows is fast enough, the largest whose time is within this factor of the smallest's.
const TOLERANCE: f64 = 1.1;
/// The weight of the last pass in the common factor.
const SMOOTHING: f64 = 0.3;

/// The number of prompt rows next to decoded rows. As default it has no measurements.
#[derive(Debug, Default)]
pub(crate) struct PrefillBudget {
    /// Numbers of rows, ascending, and the seconds that they add to a pass, as measured at start.
    measured: Vec<(usize, f64)>,
    /// How much longer they take now.
    factor: f64,
    /// Seconds of recent passes without prompt rows.
    gaps: VecDeque<f64>,
}

impl PrefillBudget {
    /// A budget for a device whose pass of one decoded row takes `gap`, and longer with prompt rows, by their
    /// number.
    pub(crate) fn new(gap: Duration, with_rows: &[(usize, Duration)]) -> PrefillBudget {
        let added = |time: Duration| time.saturating_sub(gap).as_secs_f64().max(f64::MIN_POSITIVE);
        PrefillBudget {
            measured: with_rows.iter().map(|(rows, time)| (*rows, added(*time))).collect(),
            factor: 1.0,
            gaps: VecDeque::from([gap.as_secs_f64()]),
        }
    }

    /// Numbers of prompt rows to measure: with one decoded row they are powers of two, as limits of kernels are.
    pub(crate) fn sizes() -> impl Iterator<Item = usize> {
        std::iter::successors(Some(MIN_ROWS), |rows| Some(2 * rows + 1))
    }

    /// Whether a pass that takes `time` is too long to measure larger ones.
    pub(crate) fn is_exceeded(gap: Duration, time: Duration) -> bool {
        time > 4 * gap
    }

    /// The number of prompt rows for the next pass.
    pub(crate) fn rows(&self) -> usize {
        let Some(&(fewest, shortest)) = self.measured.first() else { return MIN_ROWS };
        let most = |limit: f64| self.measured.iter().rev().find(|(_, added)| *added <= limit);
        let fitting = most(self.gap() / self.factor).or_else(|| most(shortest * TOLERANCE));
        fitting.map_or(fewest, |(rows, _)| *rows)
    }

    /// Records a pass with this many prompt rows next to decoded ones.
    pub(crate) fn record(&mut self, rows: usize, time: Duration) {
        let time = time.as_secs_f64();
        if rows == 0 {
            self.gaps.truncate(RECENT_GAPS - 1);
            self.gaps.push_front(time);
        } else if let Some((_, added)) = self.measured.iter().find(|(measured, _)| *measured == rows) {
            let factor = (time - self.gap()).max(0.0) / added;
            self.factor = (self.factor + SMOOTHING * (factor - self.factor)).clamp(0.1, 100.0);
        }
    }

    /// The median of recent passes without prompt rows, in seconds.
    fn gap(&self) -> f64 {
        let mut gaps: Vec<f64> = self.gaps.iter().copied().collect();
        gaps.sort_by(f64::total_cmp);
        gaps[gaps.len() / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: f64) -> Duration {
        Duration::from_secs_f64(micros / 1e6)
    }

    /// A budget for a device whose pass takes `gap` microseconds, and with prompt rows `fixed` more, and
    /// `each` for every row.
    fn budget(gap: f64, fixed: f64, each: f64) -> PrefillBudget {
        let rows = [4, 8, 16, 32, 64, 128, 256];
        PrefillBudget::new(micros(gap), &rows.map(|rows| (rows, micros(gap + fixed + each * rows as f64))))
    }

    #[test]
    fn prompt_rows_take_as_long_as_decoding() {
        assert_eq!(budget(1000.0, 100.0, 10.0).rows(), 64);
        assert_eq!(budget(1000.0, 0.0, 1.0).rows(), 256);
    }

    #[test]
    fn rows_that_cost_nothing_more_are_taken_if_none_fit() {
        assert_eq!(budget(1000.0, 5000.0, 0.0).rows(), 256);
        assert_eq!(budget(1000.0, 5000.0, 5.0).rows(), 64);
        assert_eq!(budget(1000.0, 0.0, 1000.0).rows(), 4);
        assert_eq!(PrefillBudget::new(micros(10.0), &[]).rows(), MIN_ROWS);
    }

    #[test]
    fn the_gap_is_the_median_of_recent_passes() {
        let mut budget = budget(1000.0, 100.0, 10.0);
        for _ in 0..RECENT_GAPS {
            budget.record(0, micros(2000.0));
        }
        // One pass that something else delayed.
        budget.record(0, micros(90_000.0));
        assert_eq!(budget.rows(), 128);
    }

    #[test]
    fn rows_follow_what_passes_take_at_a_long_context() {
        let mut budget = budget(1000.0, 0.0, 10.0);
        let mut longest: f64 = 0.0;
        let mut rows = Vec::new();
        for step in 0..400 {
            // The cost of a row grows fourfold, and falls again with the next prompt.
            let each = if step < 200 { 10.0 + 30.0 * f64::from(step) / 200.0 } else { 10.0 };
            let time = 1000.0 + each * budget.rows() as f64;
            longest = longest.max(time);
            rows.push(budget.rows());
            budget.record(budget.rows(), micros(time));
        }
        assert!(longest < 2100.0, "{longest}");
        assert_eq!((rows[0], rows[199], rows[399]), (64, 16, 64));
    }
}
