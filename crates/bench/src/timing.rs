//! The method: how one case becomes a few numbers. The peers' benchmarks measure in the same way.
//!
//! A sample is {write the buffer, barrier, clock, operation, clock}, and the longest of all ranks counts. Before that the
//! result is checked, and a tenth as many samples are thrown away. At the end the operation is repeated back to back,
//! without barriers: what a program sees that does nothing else.

use crate::case::Case;
use phalanx::{ProcessGroup, ReduceOp, Result};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Samples of a case: the fewest that have a median worth the name, and enough.
const SAMPLES: RangeInclusive<usize> = 7..=4000;
/// Operations that say how many samples fit in the budget.
const PROBES: usize = 4;
/// Every so many samples the ranks agree whether to go on.
const LOOK_EVERY: usize = 16;

/// What one case took, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Timing {
    pub(crate) median: f64,
    pub(crate) mean: f64,
    pub(crate) min: f64,
    /// One of many without a barrier between them.
    pub(crate) back_to_back: f64,
    pub(crate) samples: usize,
}

/// Measures `case` for about `budget`. Collective: all ranks get the same result.
///
/// # Errors
/// What the operation returns; `Internal` if its result is wrong.
pub(crate) fn measure(group: &ProcessGroup, case: &mut Case<'_>, budget: Duration) -> Result<Timing> {
    case.touch();
    case.perform()?;
    case.check()?;
    let mut quickest = f64::INFINITY;
    for _ in 0..PROBES {
        quickest = sample(group, case)?.min(quickest);
    }
    let quickest = longest(group, &mut [quickest])?;
    let wanted = (budget.as_secs_f64() / quickest) as usize;
    let wanted = wanted.clamp(*SAMPLES.start(), *SAMPLES.end());
    for _ in 0..=wanted / 10 {
        sample(group, case)?;
    }
    let mut samples = Vec::with_capacity(wanted);
    let begun = Instant::now();
    while samples.len() < wanted {
        samples.push(sample(group, case)?);
        if samples.len().is_multiple_of(LOOK_EVERY) {
            let over = begun.elapsed().as_secs_f64() - (4 * budget + Duration::from_secs(1)).as_secs_f64();
            if longest(group, &mut [over])? > 0.0 {
                break;
            }
        }
    }
    longest(group, &mut samples)?;
    let back_to_back = longest(group, &mut [back_to_back(group, case, samples.len())?])?;
    samples.sort_by(f64::total_cmp);
    let repeats = f64::from(case.op.repeats());
    Ok(Timing {
        median: samples[samples.len() / 2] / repeats,
        mean: samples.iter().sum::<f64>() / samples.len() as f64 / repeats,
        min: samples[0] / repeats,
        back_to_back: back_to_back / repeats,
        samples: samples.len(),
    })
}

fn sample(group: &ProcessGroup, case: &mut Case<'_>) -> Result<f64> {
    case.touch();
    group.barrier()?;
    let begun = Instant::now();
    case.perform()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn back_to_back(group: &ProcessGroup, case: &mut Case<'_>, times: usize) -> Result<f64> {
    group.barrier()?;
    let begun = Instant::now();
    for _ in 0..times {
        case.perform()?;
    }
    Ok(begun.elapsed().as_secs_f64() / times as f64)
}

/// Replaces each value by the longest of all ranks; returns the first.
fn longest(group: &ProcessGroup, values: &mut [f64]) -> Result<f64> {
    group.all_reduce(values, ReduceOp::Max)?;
    Ok(values[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use phalanx::SimulatedBackend;

    #[test]
    fn ranks_agree_on_what_they_measured() {
        let timings: Vec<Timing> = std::thread::scope(|scope| {
            let ranks: Vec<_> = SimulatedBackend::create_group(2)
                .into_iter()
                .map(|group| {
                    scope.spawn(move || {
                        let mut case = Case::new(Op::AllReduce, 4096, &group).unwrap();
                        measure(&group, &mut case, Duration::from_millis(1)).unwrap()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(timings[0], timings[1]);
        let timing = timings[0];
        assert!(timing.samples >= 7 && timing.min > 0.0 && timing.back_to_back > 0.0, "{timing:?}");
        assert!(timing.min <= timing.median && timing.min <= timing.mean, "{timing:?}");
    }
}
