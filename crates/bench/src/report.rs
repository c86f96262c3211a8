//! The report: everything that was measured, before it is shown in some form.

use crate::backend::Backend;
use crate::machine::Machine;
use crate::op::{Op, Place};
use crate::stats::{Stats, median};
use crate::subject::Subject;
use phalanx::{DType, ReduceOp};
use serde::Serialize;

/// Everything that a run found out.
#[derive(Debug, Clone)]
pub struct Report {
    pub(crate) machine: Machine,
    /// The command as it was typed.
    pub(crate) command: String,
    pub(crate) dtype: DType,
    pub(crate) reduce: ReduceOp,
    /// How it was measured, in words.
    pub(crate) method: String,
    pub(crate) measurements: Vec<Measurement>,
}

/// The case that is compared: figures of different libraries and rounds of one case can be divided by each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct Case {
    /// The backend asked for.
    pub(crate) backend: Backend,
    pub(crate) ranks: usize,
    pub(crate) op: Op,
    /// The size asked for.
    #[serde(rename = "size")]
    pub(crate) asked_bytes: usize,
}

/// One case as one library did it in one round.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) case: Case,
    pub(crate) round: usize,
    pub(crate) library: &'static str,
    /// The transport that carried the data.
    pub(crate) transport: String,
    pub(crate) place: Place,
    pub(crate) variant: Option<String>,
    /// Elements of one rank's part.
    pub(crate) count: usize,
    /// The size of the whole buffer.
    pub(crate) bytes: usize,
    /// Elements that came out wrong, on all ranks.
    pub(crate) wrong: u64,
    pub(crate) stats: Stats,
}

impl Measurement {
    /// Size / time, in GB/s.
    pub(crate) fn algbw(&self) -> f64 {
        self.bytes as f64 / self.stats.p50_us * 1e-3
    }

    /// The bus bandwidth, in GB/s: the bytes that go through each rank's link, divided by the time.
    pub(crate) fn busbw(&self) -> f64 {
        self.algbw() * self.case.op.bus_factor(self.case.ranks)
    }
}

impl Report {
    /// Elements of ours that came out wrong.
    pub fn wrong(&self) -> u64 {
        self.measurements.iter().filter(|m| Subject::of(m.library).is_some()).map(|m| m.wrong).sum()
    }

    /// The mean of the bus bandwidths of all our cases that have a size, in GB/s.
    pub(crate) fn average_busbw(&self) -> f64 {
        let ours = self.measurements.iter().filter(|m| Subject::is_phalanx(m.library) && m.bytes > 0);
        let busbw: Vec<f64> = ours.map(Measurement::busbw).collect();
        if busbw.is_empty() { 0.0 } else { busbw.iter().sum::<f64>() / busbw.len() as f64 }
    }

    /// Every case that was measured, in the order of the measurements.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for measurement in &self.measurements {
            if !cases.contains(&measurement.case) {
                cases.push(measurement.case);
            }
        }
        cases
    }

    /// The libraries that measured anything, our own first.
    pub(crate) fn libraries(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for measurement in &self.measurements {
            if !names.contains(&measurement.library) {
                names.push(measurement.library);
            }
        }
        names.sort_by_key(|&name| Subject::of(name).map_or(usize::MAX, |subject| subject as usize));
        names
    }

    /// A library at its best in each round, of its variants and of `places`, in the order of the rounds.
    pub(crate) fn bests(&self, case: Case, library: &str, places: &[Place]) -> Vec<&Measurement> {
        let mut bests: Vec<&Measurement> = Vec::new();
        let is_asked = |m: &&Measurement| m.case == case && m.library == library && places.contains(&m.place);
        for found in self.measurements.iter().filter(is_asked) {
            match bests.iter_mut().find(|best| best.round == found.round) {
                Some(best) if best.stats.p50_us > found.stats.p50_us => *best = found,
                Some(_) => {}
                None => bests.push(found),
            }
        }
        bests.sort_by_key(|best| best.round);
        bests
    }

    /// The round in the middle of a library's [`bests`](Self::bests).
    pub(crate) fn typical(&self, case: Case, library: &str, places: &[Place]) -> Option<&Measurement> {
        let bests = self.bests(case, library, places);
        let middle = median(bests.iter().map(|m| m.stats.p50_us).collect())?;
        bests.into_iter().find(|m| m.stats.p50_us == middle)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn case(op: Op, asked_bytes: usize) -> Case {
        Case { backend: Backend::TCP, ranks: 2, op, asked_bytes }
    }

    /// What `library` measured, given as the median in µs.
    pub(crate) fn measured(library: &'static str, case: Case, round: usize, p50_us: f64) -> Measurement {
        let count = case.op.count(case.asked_bytes, case.ranks, 4).unwrap();
        let stats = Stats {
            min_us: p50_us / 2.0,
            p50_us,
            p95_us: p50_us * 2.0,
            p99_us: p50_us * 3.0,
            max_us: p50_us * 4.0,
            mean_us: p50_us,
            back_to_back_us: p50_us,
            samples: 9,
        };
        Measurement {
            case,
            round,
            library,
            transport: "tcp".into(),
            place: case.op.places()[0],
            variant: None,
            count,
            bytes: case.op.bytes(count, case.ranks, 4),
            wrong: 0,
            stats,
        }
    }

    pub(crate) fn report(measurements: Vec<Measurement>) -> Report {
        Report {
            machine: Machine {
                cpu: "A CPU".into(),
                cores: 2,
                load: Some(0.5),
                kernel: "Linux 6".into(),
                compiler: "rustc 1".into(),
                commit: "abc".into(),
                date: "2026-11-21".into(),
            },
            command: "phalanx bench".into(),
            dtype: DType::F32,
            reduce: ReduceOp::Sum,
            method: "carefully".into(),
            measurements,
        }
    }

    #[test]
    fn the_best_of_a_round_is_taken_and_then_the_middle_round() {
        let case = case(Op::AllReduce, 4096);
        let mut ring = measured("gloo", case, 1, 3.0);
        ring.variant = Some("ring".into());
        let report = report(vec![
            measured("gloo", case, 0, 9.0),
            measured("gloo", case, 1, 5.0),
            ring,
            measured("gloo", case, 2, 4.0),
            measured("phalanx", case, 0, 1.0),
        ]);
        let bests: Vec<f64> =
            report.bests(case, "gloo", &Place::BOTH).iter().map(|m| m.stats.p50_us).collect();
        assert_eq!(bests, [9.0, 3.0, 4.0]);
        assert_eq!(report.typical(case, "gloo", &Place::BOTH).unwrap().stats.p50_us, 4.0);
        assert!(report.typical(case, "mpich", &Place::BOTH).is_none());
        assert_eq!(report.libraries(), ["phalanx", "gloo"]);
        assert_eq!((report.cases(), report.wrong()), (vec![case], 0));
    }

    #[test]
    fn places_count_together_and_alone() {
        let case = case(Op::AllGather, 4096);
        let mut in_place = measured("phalanx", case, 0, 1.0);
        in_place.place = Place::InPlace;
        let report = report(vec![measured("phalanx", case, 0, 3.0), in_place]);
        let time = |places: &[Place]| report.typical(case, "phalanx", places).unwrap().stats.p50_us;
        assert_eq!(
            (time(&Place::BOTH), time(&[Place::OutOfPlace]), time(&[Place::InPlace])),
            (1.0, 3.0, 1.0)
        );
    }

    #[test]
    fn bandwidths() {
        let of = |op| measured("phalanx", case(op, 8000), 0, 2.0);
        assert_eq!((of(Op::AllReduce).algbw(), of(Op::AllReduce).busbw()), (4.0, 4.0));
        assert_eq!(of(Op::AllGather).busbw(), 2.0);
        assert_eq!(report(vec![of(Op::AllReduce), of(Op::AllGather)]).average_busbw(), 3.0);
    }
}
