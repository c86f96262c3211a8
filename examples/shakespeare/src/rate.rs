//! How fast to learn at which step.

use std::f64::consts::PI;

/// Steps until the full rate is reached.
const WARM_UP: u64 = 20;
/// What is left of the rate in the end.
const LAST: f64 = 0.1;

/// The learning rate of step `step`, from 0, of `steps`: rises in a line to `rate`, and falls along a cosine to a tenth of it.
pub(crate) fn at(step: u64, steps: u64, rate: f64) -> f64 {
    if step < WARM_UP {
        return rate * (step + 1) as f64 / WARM_UP as f64;
    }
    let done = (step - WARM_UP) as f64 / (steps.saturating_sub(WARM_UP)).max(1) as f64;
    rate * (LAST + (1.0 - LAST) * (1.0 + (PI * done).cos()) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_and_falls() {
        let rates: Vec<f64> = (0..300).map(|step| at(step, 300, 2.0)).collect();
        assert_eq!(rates[0], 0.1);
        assert_eq!(rates[20], 2.0);
        assert!((0.2..0.201).contains(&rates[299]), "{}", rates[299]);
        assert!(rates[..21].is_sorted() && rates[20..].iter().rev().is_sorted());
        assert!(at(3, 1, 1.0) > 0.0, "a run may be shorter than the warming up");
    }
}
