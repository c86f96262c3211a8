//! Jobs of many shapes in which one rank ends or hangs: all survivors, the launcher and the trace must name that rank.
//!
//! The rounds of the [plan](crate::plan) ask what becomes of four ranks in the middle of any operation. These ask who is named, where most
//! ranks share no group with the victim.

mod plan;
mod rank;
mod round;
mod table;
mod words;

pub(crate) use plan::{Harm, Plan, Shape};
pub(crate) use rank::run;

use crate::console::{alone, say};
use crate::left::Held;
use crate::plan::Backend;
use plan::Case;
use round::Report;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All of these with all others.
pub(crate) fn cases(shapes: &[Shape], harms: &[Harm], backends: &[Backend]) -> Vec<Case> {
    let of = |shape, harm| backends.iter().map(move |&backend| (shape, harm, backend));
    shapes.iter().flat_map(|&shape| harms.iter().flat_map(move |&harm| of(shape, harm))).collect()
}

/// Performs `rounds` of each harm in each shape on each backend, with seeds from `seed` on, `jobs` at a time.
///
/// # Panics
/// If something was not as it must be, after all rounds.
pub(crate) fn rounds(cases: &[Case], rounds: u64, seed: u64, jobs: usize) {
    let _alone = alone();
    let held = Held::now();
    let all: Vec<(usize, u64)> =
        (0..cases.len()).flat_map(|case| (seed..seed + rounds).map(move |seed| (case, seed))).collect();
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<usize, Vec<Report>>::new()));
    say(table::HEAD);
    let work = || {
        while let Some(&(case, seed)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (shape, harm, backend) = cases[case];
            let plan = Plan::new(shape, harm, backend, seed);
            let report = round::perform(&plan);
            if !report.troubles.is_empty() {
                say(format!("{plan}\n{}\n", report.troubles.join("\n")));
            }
            let mut reports = reports.lock().expect("no other has panicked");
            let of_case = reports.entry(case).or_default();
            of_case.push(report);
            if of_case.len() as u64 == rounds {
                say(table::line(cases[case], of_case));
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let reports = reports.into_inner().expect("nobody has panicked");
    let lines = reports.iter().map(|(&case, reports)| table::line(cases[case], reports));
    say(std::iter::once(table::HEAD.to_owned()).chain(lines).collect::<Vec<_>>().join("\n"));
    let added = held.added();
    assert!(added.is_empty(), "{added:?}");
    let failed = reports.values().flatten().filter(|report| !report.troubles.is_empty()).count();
    assert_eq!(failed, 0, "rounds failed: see above");
}
