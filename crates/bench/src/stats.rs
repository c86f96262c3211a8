//! Samples as a few numbers.

use crate::line::Line;
use serde::Serialize;

/// The times of one case, in microseconds; of each operation, the longest time of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the words of statistics")]
pub struct Stats {
    pub min_us: f64,
    /// The median: what is meant by "time" everywhere else.
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub mean_us: f64,
    /// The time of one of many without a barrier between them.
    pub back_to_back_us: f64,
    pub samples: usize,
}

impl Stats {
    pub(crate) fn of(line: &Line) -> Self {
        let mut sorted: Vec<f64> = line.samples_ns.iter().map(|ns| ns * 1e-3).collect();
        sorted.sort_by(f64::total_cmp);
        // The smallest value that is not below the given part of all.
        let percentile = |part: f64| {
            let at = (part * sorted.len() as f64).ceil() as usize;
            sorted[at.clamp(1, sorted.len()) - 1]
        };
        Self {
            min_us: sorted[0],
            p50_us: percentile(0.50),
            p95_us: percentile(0.95),
            p99_us: percentile(0.99),
            max_us: sorted[sorted.len() - 1],
            mean_us: sorted.iter().sum::<f64>() / sorted.len() as f64,
            back_to_back_us: line.back_to_back_ns * 1e-3,
            samples: sorted.len(),
        }
    }
}

/// The middle value, the lower of two; `None` of none.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Place;

    #[test]
    fn percentiles_are_samples() {
        let samples_ns = (1..=100).rev().map(|n| f64::from(n) * 1000.0).collect();
        let place = Place::InPlace;
        let line = Line { bytes: 4, place, variant: None, wrong: 0, back_to_back_ns: 500.0, samples_ns };
        let stats = Stats::of(&line);
        assert_eq!((stats.min_us, stats.p50_us, stats.p95_us), (1.0, 50.0, 95.0));
        assert_eq!((stats.p99_us, stats.max_us, stats.mean_us), (99.0, 100.0, 50.5));
        assert_eq!((stats.back_to_back_us, stats.samples), (0.5, 100));
        let one = Stats::of(&Line { samples_ns: vec![3000.0], ..line });
        assert_eq!((one.min_us, one.p50_us, one.p99_us, one.max_us), (3.0, 3.0, 3.0, 3.0));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
