//! What the algorithms of this build do, in 64 bits.

use crate::{Algorithm, Job, Span, Step};
use phalanx_core::{Layout, OpKind, Signature};

/// Small worlds of every kind: a pair, odd, a power of two, neither.
const WORLD_SIZES: [usize; 4] = [2, 3, 4, 6];
/// Elements that no world size divides.
const LEN: usize = 13;

/// Equal for builds whose algorithms of one name have the same steps, as far as a few small jobs show.
///
/// Ranks agree on names; this tells builds apart that mean different things by them.
pub fn fingerprint() -> u64 {
    let mut words = Vec::new();
    for (number, &algorithm) in Algorithm::ALL.iter().enumerate() {
        for world_size in WORLD_SIZES.into_iter().filter(|&world_size| algorithm.supports(world_size)) {
            words.extend([number, world_size]);
            let schedules = job(algorithm.op(), world_size).schedules(algorithm);
            schedules.iter().flatten().for_each(|step| tell(step, &mut words));
        }
    }
    Signature::detail_of(&words)
}

fn job(op: OpKind, world_size: usize) -> Job {
    let len = if op == OpKind::Barrier { 0 } else { LEN };
    Job::new(op, Layout::even(world_size, len), world_size - 1)
}

fn tell(step: &Step, words: &mut Vec<usize>) {
    let places = |Span { first, second }: &Span| [first.start, first.end, second.start, second.end];
    if let Some(send) = &step.send {
        words.extend([1, send.peer]);
        words.extend(places(&send.span));
    }
    if let Some(recv) = &step.recv {
        words.extend([2, recv.peer, recv.action as usize]);
        words.extend(places(&recv.span));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_counts() {
        let of = |algorithm: Algorithm, change: fn(&mut Step)| {
            let mut steps = job(algorithm.op(), 4).schedules(algorithm).swap_remove(3);
            change(steps.last_mut().expect("rank 3 has something to do"));
            let mut words = Vec::new();
            steps.iter().for_each(|step| tell(step, &mut words));
            Signature::detail_of(&words)
        };
        let ring = of(Algorithm::AllReduceRing, |_| ());
        assert_eq!(ring, of(Algorithm::AllReduceRing, |_| ()));
        assert_ne!(ring, of(Algorithm::AllReduceFlat, |_| ()));
        assert_ne!(
            ring,
            of(Algorithm::AllReduceRing, |step| step.send.as_mut().unwrap().span.first.end += 1)
        );
        assert_ne!(ring, of(Algorithm::AllReduceRing, |step| step.recv = None));
        assert_eq!(fingerprint(), fingerprint());
    }
}
