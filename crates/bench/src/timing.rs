//! The method: how one case becomes samples. The peers' programs measure in the same way (`peers/method.h`).
//!
//! A sample is {rewrite the buffer, barrier, clock, operation, clock}, and the longest of all ranks counts. The result
//! is checked before and after; a tenth as many samples are thrown away first. At the end the operation is
//! repeated back to back, without barriers: what a program sees that does nothing else.

use crate::effort::Effort;
use crate::line::Line;
use crate::op::{Op, Place};
use phalanx::{ProcessGroup, ReduceOp, Result};
use std::ops::RangeInclusive;
use std::time::Instant;

/// Samples of a case: the fewest that have a median worth the name, and enough. The peers' programs know them too.
pub(crate) const SAMPLES: RangeInclusive<usize> = 7..=4000;
/// Operations that say how many samples fit in the budget.
const PROBES: usize = 4;
/// Every so many samples the ranks agree whether to go on.
const LOOK_EVERY: usize = 16;

/// The work that is timed: one rank's part of something that all ranks do.
pub(crate) trait Work {
    fn op(&self) -> Op;
    fn place(&self) -> Place {
        Place::InPlace
    }
    fn group(&self) -> &ProcessGroup;
    /// Overwrites all that the operation is to write, before a check: the result of an earlier one must not pass for this one's.
    fn spoil(&mut self);
    /// Writes this rank's contribution, as a program would between two operations.
    fn touch(&mut self);
    fn perform(&mut self) -> Result<()>;
    /// How many elements of this rank the last [`perform`](Self::perform) after a [`touch`](Self::touch) got wrong.
    fn wrong(&self) -> u64;
}

/// Measures `case`. Collective: all ranks get the same result.
///
/// # Errors
/// What the operation returns.
pub(crate) fn measure(case: &mut impl Work, bytes: usize, effort: &Effort) -> Result<Line> {
    let before = checked(case)?;
    let wanted = match effort.samples {
        Some(samples) => samples,
        None => affordable(case, effort)?,
    };
    for _ in 0..effort.warmup.unwrap_or(wanted / 10 + 1) {
        sample(case, effort)?;
    }
    let mut samples = Vec::with_capacity(wanted);
    let begun = Instant::now();
    while samples.len() < wanted {
        samples.push(sample(case, effort)?);
        if effort.samples.is_none() && samples.len().is_multiple_of(LOOK_EVERY) {
            let over = begun.elapsed().as_secs_f64() - (4.0 * effort.budget.as_secs_f64() + 1.0);
            if longest(case.group(), &mut [over])? > 0.0 {
                break;
            }
        }
    }
    longest(case.group(), &mut samples)?;
    let back_to_back = back_to_back(case, samples.len())?;
    let back_to_back = longest(case.group(), &mut [back_to_back])?;
    let after = checked(case)?;
    let ns = 1e9 / case.op().repeats();
    Ok(Line {
        bytes,
        place: case.place(),
        variant: None,
        wrong: before + after,
        back_to_back_ns: back_to_back * ns,
        samples_ns: samples.into_iter().map(|seconds| seconds * ns).collect(),
    })
}

/// Performs the operation once and returns how many elements of all ranks came out wrong.
pub(crate) fn checked(case: &mut impl Work) -> Result<u64> {
    case.spoil();
    case.touch();
    case.perform()?;
    let mut wrong = [case.wrong()];
    case.group().all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok(wrong[0])
}

/// How many samples the budget has time for.
fn affordable(case: &mut impl Work, effort: &Effort) -> Result<usize> {
    let mut quickest = f64::INFINITY;
    for _ in 0..PROBES {
        quickest = sample(case, effort)?.min(quickest);
    }
    let quickest = longest(case.group(), &mut [quickest])?;
    Ok(((effort.budget.as_secs_f64() / quickest) as usize).clamp(*SAMPLES.start(), *SAMPLES.end()))
}

fn sample(case: &mut impl Work, effort: &Effort) -> Result<f64> {
    if effort.touch {
        case.touch();
    }
    case.group().barrier()?;
    let begun = Instant::now();
    case.perform()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn back_to_back(case: &mut impl Work, times: usize) -> Result<f64> {
    case.group().barrier()?;
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
    use crate::case::Case;
    use crate::subject::Subject;
    use phalanx::threads;
    use std::time::Duration;

    fn on_two_ranks(effort: Effort) -> Vec<Line> {
        let rank = |group: ProcessGroup| {
            let place = Place::InPlace;
            let mut case =
                Case::<f32>::new(Op::AllReduce, place, ReduceOp::Sum, 1024, &group, Subject::Plain).unwrap();
            measure(&mut case, 4096, &effort).unwrap()
        };
        std::thread::scope(|scope| {
            let groups = threads(2);
            let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_agree_on_what_they_measured() {
        let budget = Duration::from_millis(1);
        let lines = on_two_ranks(Effort { budget, samples: None, warmup: None, touch: true });
        assert_eq!(lines[0], lines[1]);
        let line = &lines[0];
        assert!(line.samples_ns.len() >= *SAMPLES.start() && line.back_to_back_ns > 0.0, "{line:?}");
        assert!(line.wrong == 0 && line.samples_ns.iter().all(|&ns| ns > 0.0), "{line:?}");
    }

    #[test]
    fn samples_are_as_many_as_wanted() {
        let budget = Duration::from_secs(3600);
        let lines = on_two_ranks(Effort { budget, samples: Some(3), warmup: Some(0), touch: false });
        assert_eq!(lines[0].samples_ns.len(), 3);
    }
}
