//! Ratios to the other libraries, and to the limit.
//!
//! Figures of different moments do not compare on a machine that does other things too. So a ratio is taken within a
//! round, where one library was measured right after the other, and the median of rounds is shown.

use crate::op::Place;
use crate::report::{Case, Report};
use crate::stats::median;
use crate::subject::Subject;
use serde::Serialize;

/// One case, as one of our own does it, beside the peers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    #[serde(skip)]
    pub(crate) case: Case,
    /// Which of our own.
    pub(crate) library: &'static str,
    /// The transport that carried our data.
    pub(crate) transport: String,
    pub(crate) ours_us: f64,
    /// The limit, if it was measured, and those who measured the case.
    pub(crate) peers: Vec<Against>,
    /// The fastest library, taken anew in each round: its name in the table is that of the fastest over all rounds.
    pub(crate) best: Option<Against>,
}

/// Our time and a peer's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Against {
    pub(crate) peer: &'static str,
    pub(crate) time_us: f64,
    /// Ours / theirs: below 1 we take less time.
    pub(crate) ratio: f64,
}

/// A row for each case and each of our own that has measured it; none where there is nothing to compare.
pub(crate) fn rows(report: &Report) -> Vec<Row> {
    let libraries = report.libraries();
    if libraries.len() < 2 {
        return Vec::new();
    }
    let ours = libraries.iter().filter(|name| Subject::is_phalanx(name));
    let rows_of = |case| ours.clone().filter_map(move |name| row(report, case, name));
    report.cases().into_iter().flat_map(rows_of).collect()
}

fn row(report: &Report, case: Case, library: &'static str) -> Option<Row> {
    let times = |library| {
        let bests = report.bests(case, library, &Place::BOTH).into_iter();
        bests.map(|m| (m.round, m.stats.p50_us)).collect::<Vec<_>>()
    };
    let ours = times(library);
    let against = |peer, theirs: &[(usize, f64)]| {
        let of_round = |round| theirs.iter().find(|(r, _)| *r == round).map(|(_, time)| *time);
        let ratios = ours.iter().filter_map(|&(round, time)| Some(time / of_round(round)?));
        let time_us = median(theirs.iter().map(|(_, time)| *time).collect())?;
        Some(Against { peer, time_us, ratio: median(ratios.collect())? })
    };
    let mut peers = Vec::new();
    let mut fastest: Vec<(usize, f64)> = Vec::new();
    for peer in report.libraries().into_iter().filter(|&name| !Subject::is_phalanx(name)) {
        let theirs = times(peer);
        peers.extend(against(peer, &theirs));
        if Subject::of(peer).is_some() {
            continue;
        }
        for &(round, time) in &theirs {
            match fastest.iter_mut().find(|(r, _)| *r == round) {
                Some((_, least)) => *least = least.min(time),
                None => fastest.push((round, time)),
            }
        }
    }
    let libraries = peers.iter().filter(|peer| Subject::of(peer.peer).is_none());
    let name = libraries.min_by(|a, b| a.time_us.total_cmp(&b.time_us)).map(|peer| peer.peer);
    let best = name.and_then(|name| against(name, &fastest));
    let ours_us = median(ours.iter().map(|(_, time)| *time).collect())?;
    let transport = report.typical(case, library, &Place::BOTH)?.transport.clone();
    Some(Row { case, library, transport, ours_us, best, peers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::report::tests::{case, measured, report};

    #[test]
    fn ratios_are_taken_within_a_round() {
        let case = case(Op::AllReduce, 64);
        // The machine was twice as slow in the second round, for all.
        let report = report(vec![
            measured("phalanx", case, 0, 1.0),
            measured("mpich", case, 0, 2.0),
            measured("gloo", case, 0, 4.0),
            measured("gloo", case, 1, 2.0),
            measured("phalanx", case, 1, 2.0),
            measured("mpich", case, 1, 4.0),
            measured("phalanx", case, 2, 1.0),
            measured("mpich", case, 2, 4.0),
        ]);
        let rows = rows(&report);
        let row = &rows[0];
        assert_eq!((rows.len(), row.ours_us), (1, 1.0));
        let found: Vec<_> = row.peers.iter().map(|peer| (peer.peer, peer.ratio)).collect();
        assert_eq!(found, [("mpich", 0.5), ("gloo", 0.25)]);
        // The best peer took 2, 2 and 4.
        let best = row.best.as_ref().unwrap();
        assert_eq!((best.time_us, best.ratio), (2.0, 0.5));
    }

    #[test]
    fn the_limit_is_shown_but_is_no_library_to_beat() {
        let case = case(Op::AllReduce, 64);
        let rows = rows(&report(vec![
            measured("phalanx", case, 0, 4.0),
            measured("phalanx registered", case, 0, 2.0),
            measured("limit", case, 0, 1.0),
            measured("mpich", case, 0, 8.0),
        ]));
        let found: Vec<_> = rows.iter().map(|row| (row.library, row.peers[0].ratio)).collect();
        assert_eq!(found, [("phalanx", 4.0), ("phalanx registered", 2.0)]);
        let bests: Vec<_> = rows.iter().map(|row| row.best.as_ref().unwrap()).collect();
        assert_eq!(
            bests.iter().map(|best| (best.peer, best.ratio)).collect::<Vec<_>>(),
            [("mpich", 0.5), ("mpich", 0.25)]
        );
    }

    #[test]
    fn alone_there_is_nothing_to_compare() {
        assert!(rows(&report(vec![measured("phalanx", case(Op::Barrier, 0), 0, 1.0)])).is_empty());
    }
}
