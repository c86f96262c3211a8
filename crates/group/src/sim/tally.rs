//! What happened in many runs, in numbers.

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
    /// The same of the runs in which nothing was done that a call could not wait for.
    quiet: u64,
}

impl Tally {
    pub(super) fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.quiet += u64::from(run.faults.are_harmless(run.program.leeway()));
        let Faults {
            cuts, resets, stops, deaths, slow, late, strangers, impostor, detour, lie, astray, ..
        } = &run.faults;
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
        ] {
            *self.faults.entry(kind).or_default() += n;
        }
        for process in run.processes.iter().flatten() {
            if let Some((_, Err(_))) = process.met {
                *self.calls.entry("init failed").or_default() += 1;
            }
            for record in &process.records {
                let group = run.program.lines[record.at].division;
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
        for (title, numbers) in [("faults", &self.faults), ("calls", &self.calls), ("groups", &self.groups)] {
            let list: Vec<_> = numbers.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
            writeln!(f, "{title}: {}", list.join(", "))?;
        }
        Ok(())
    }
}
