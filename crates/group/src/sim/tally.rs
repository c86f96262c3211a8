//! What happened in many runs, in numbers.

use super::account::Passage;
use super::faults::Faults;
use super::run::Run;
use phalanx_core::Error;
use std::collections::BTreeMap;
use std::fmt;

/// Counts of what happened in runs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    runs: u64,
    faults: BTreeMap<&'static str, usize>,
    calls: BTreeMap<&'static str, usize>,
    /// Calls in groups of all ranks, and of some.
    groups: BTreeMap<&'static str, usize>,
    generations: BTreeMap<&'static str, usize>,
    /// How going on to the next generation ended.
    passages: BTreeMap<&'static str, usize>,
    /// The same of the runs in which nothing was done that a call could not wait for.
    quiet: u64,
}

impl Tally {
    pub(super) fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.quiet += u64::from(run.faults.are_harmless(run.script.first.leeway()));
        let Faults {
            cuts, resets, stops, deaths, slow, late, strangers, impostor, detour, lie, astray, ..
        } = &run.faults;
        let Faults { slow_requests, dawdles, contrary, store_ends, .. } = &run.faults;
        for (kind, n) in [
            ("cut directions", cuts.len()),
            ("broken connections", resets.len()),
            ("stopped ranks", stops.len()),
            ("dead ranks", deaths.len()),
            ("slow ranks", slow.len()),
            ("late or missing ranks", late.len()),
            ("strangers", strangers.len()),
            ("impostors", usize::from(impostor.is_some())),
            ("detours", usize::from(detour.is_some())),
            ("lies", usize::from(lie.is_some())),
            ("ranks astray", usize::from(astray.is_some())),
            ("slow in asking the store", slow_requests.len()),
            ("late in going on", dawdles.len()),
            ("going on otherwise", usize::from(contrary.is_some())),
            ("lost stores", usize::from(store_ends.is_some())),
        ] {
            *self.faults.entry(kind).or_default() += n;
        }
        for passage in run.processes.iter().flatten().flat_map(|process| &process.passages) {
            *self.passages.entry(passage_end(passage)).or_default() += 1;
        }
        for era in &run.eras {
            let later = era.generation.min(3) as usize;
            let name = ["first", "second", "third", "later"][later];
            *self.generations.entry(name).or_default() += 1;
        }
        for (era, account) in
            run.eras.iter().flat_map(|era| era.accounts.iter().flatten().map(move |a| (era, a)))
        {
            if let Some((_, Err(_))) = account.met {
                *self.calls.entry("init failed").or_default() += 1;
            }
            for record in &account.records {
                let group = era.program.lines[record.at].division;
                *self.groups.entry(if group == 0 { "of all ranks" } else { "of some" }).or_default() += 1;
                let end = match &record.ended {
                    None => "cut short (dead or stopped for ever)",
                    Some((_, Ok(_))) => "well",
                    Some((_, Err(Error::PeerLost { .. }))) => "peer lost",
                    Some((_, Err(Error::Timeout { .. }))) => "timeout",
                    Some((_, Err(Error::Mismatch { .. }))) => "mismatch",
                    Some((_, Err(Error::Protocol { .. }))) => "protocol",
                    Some((_, Err(Error::Aborted { .. }))) => "aborted",
                    Some((_, Err(_))) => "other errors",
                };
                *self.calls.entry(end).or_default() += 1;
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} of them without harm", self.runs, self.quiet)?;
        for (title, numbers) in [
            ("faults", &self.faults),
            ("calls", &self.calls),
            ("groups", &self.groups),
            ("generations", &self.generations),
            ("going on", &self.passages),
        ] {
            let list: Vec<_> = numbers.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
            writeln!(f, "{title}: {}", list.join(", "))?;
        }
        Ok(())
    }
}

fn passage_end(passage: &Passage) -> &'static str {
    match &passage.ended {
        None => "cut short (dead or stopped for ever)",
        Some((_, Ok(_))) => "well",
        Some((_, Err(Error::Mismatch { .. }))) => "mismatch",
        Some((_, Err(Error::Rendezvous { what, .. }))) if what.contains("came too late") => "too late",
        Some((_, Err(Error::Rendezvous { what, .. }))) if what.contains("did not form") => "too few",
        Some((_, Err(Error::Rendezvous { what, .. }))) if what.contains("has been done") => "done",
        Some((_, Err(Error::Rendezvous { .. }))) => "not together",
        Some((_, Err(_))) => "other errors",
    }
}
