//! A generation of a run, when that is over.

use super::account::Account;
use super::faults::Faults;
use super::process::Process;
use super::program::{Program, Script};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All that is known of a generation. Ranks are those of the generation, in its faults too.
#[derive(Debug)]
pub(super) struct Era {
    pub(super) generation: u64,
    pub(super) roster: Vec<u64>,
    pub(super) program: Arc<Program>,
    pub(super) faults: Faults,
    /// By rank; `None`: it never began to come together with the others.
    pub(super) accounts: Vec<Option<Account>>,
    /// The ranks that called for the next generation.
    pub(super) went_on: Vec<bool>,
}

impl Era {
    fn new(generation: u64, roster: Vec<u64>, script: &Script, faults: &Faults) -> Self {
        let size = roster.len();
        let mut here = faults.among(&roster);
        if !script.is_first(generation, size) {
            // They are of the first program.
            (here.lie, here.astray) = (None, None);
        }
        Self {
            generation,
            program: script.of(generation, size),
            faults: here,
            accounts: (0..size).map(|_| None).collect(),
            went_on: vec![false; size],
            roster,
        }
    }
}

/// All generations, of the accounts of all processes. What does not fit together is a violation.
pub(super) fn of_run(
    script: &Script,
    faults: &Faults,
    processes: &mut [Option<Process>],
    violations: &mut Vec<String>,
) -> Vec<Era> {
    let mut eras = BTreeMap::new();
    if script.first.elastic().is_none() {
        let all = (0..script.first.world_size as u64).collect();
        eras.insert(0, Era::new(0, all, script, faults));
    }
    for process in processes.iter_mut().flatten() {
        for account in process.accounts.drain(..) {
            let (generation, rank) = (account.seat.generation, account.seat.rank);
            let make = || Era::new(generation, account.seat.roster.to_vec(), script, faults);
            let era = eras.entry(generation).or_insert_with(make);
            if *era.roster != *account.seat.roster || era.accounts[rank].is_some() {
                let (one, other, me) = (&era.roster, &account.seat.roster, account.seat.me);
                violations.push(format!(
                    "of generation {generation} one says {one:?}; process {me} is rank {rank} of {other:?}"
                ));
                continue;
            }
            era.went_on[rank] = process.passages.iter().any(|passage| passage.from == Some(generation));
            era.accounts[rank] = Some(account);
        }
    }
    eras.into_values().collect()
}
