//! What must hold when ranks go on to the next generation, whatever goes wrong meanwhile.

use super::account::{Account, Passage};
use super::era::Era;
use super::run::Run;
use crate::bootstrap::regroup::roster::{WaitLimits, ask_decision, decision};
use crate::bootstrap::regroup::view::Decision;
use crate::control::failure_report::SETTLE_TIME;
use phalanx_core::{Error, OpKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What a process needs besides what it waits for: its threads hesitate, and messages take their time.
const SLACK: Duration = Duration::from_millis(200);
/// How long the farewell to the groups of a generation may take.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// All promises that were broken.
pub(super) fn violations(run: &Run) -> Vec<String> {
    let mut found = Vec::new();
    for (process, passage) in passages(run) {
        in_time(run, process, passage, &mut found);
        if let Some((at, Err(error))) = &passage.ended {
            truth(run, process, passage, (*at, error), &mut found);
            nobody_is_left_out(run, process, passage, error, &mut found);
        }
    }
    for era in &run.eras {
        membership(run, era, &mut found);
    }
    found
}

fn passages(run: &Run) -> impl Iterator<Item = (usize, &Passage)> {
    let processes = run.processes.iter().enumerate();
    processes.flat_map(|(me, process)| {
        process.iter().flat_map(move |p| p.passages.iter().map(move |passage| (me, passage)))
    })
}

/// It is decided who goes on when those who live had the time of an operation, and those that start half of the time of init; a new process waits
/// for all of that. From then on a call has the time of init, and that again for each that is lost meanwhile; and until those who have more time have
/// given up its last attempt, too, it waits for them.
fn in_time(run: &Run, process: usize, passage: &Passage, found: &mut Vec<String>) {
    let faults = &run.faults;
    let owes = !faults.deaths.iter().any(|(_, who)| *who == process)
        && !faults.stops.iter().any(|stop| stop.rank == process && stop.until == Duration::MAX);
    if !owes {
        return;
    }
    let op = passage.op;
    let Some((end, _)) = &passage.ended else {
        return found.push(format!("process {process}: {op} never returned"));
    };
    let stops = faults.stops.iter().filter(|stop| stop.rank == process);
    let stopped: Duration = stops.map(|stop| stop.until - stop.at).sum();
    let extra = SLACK + stopped + faults.lag(process) * 40 + faults.store_delay();
    let WaitLimits { start, compute } = WaitLimits::new(run.script.first.init_limit, run.script.first.limit);
    let starting = match op {
        OpKind::Shrink => Duration::ZERO,
        OpKind::Rejoin => start / 2,
        _ => start,
    };
    let tries = || attempts(run, process, passage, *end);
    let decided = tries().map(|(_, own)| own.started).min().unwrap_or(*end);
    // Others may have more time: their last attempt is waited for.
    let later = tries().last().and_then(|(era, own)| {
        let (own, _) = own.met.as_ref()?;
        let others = era.accounts.iter().flatten().filter_map(|account| account.met.as_ref());
        others.map(|(at, _)| at.saturating_duration_since(*own)).max()
    });
    let waited = later.unwrap_or_default().min(start / 3);
    let lost = lost_meanwhile(run, process, passage, *end).len();
    for (what, took, limit) in [
        ("to decide", decided - passage.called, FAREWELL_TIME + compute + starting),
        ("to come together", *end - decided, start * (1 + lost as u32) + waited),
    ] {
        if took > limit + extra {
            found.push(format!(
                "process {process}: {op} took {took:?} {what}, where {limit:?} and {extra:?} are allowed"
            ));
        }
    }
}

/// The generations in which this process tried to come together with others by `end`, with its account of them.
fn attempts<'a>(
    run: &'a Run,
    process: usize,
    passage: &'a Passage,
    end: Instant,
) -> impl Iterator<Item = (&'a Era, &'a Account)> {
    let eras = run.eras.iter().filter(|era| Some(era.generation) > passage.from);
    let of_process = move |account: &&Account| account.seat.me == process;
    let own = eras.filter_map(move |era| Some((era, era.accounts.iter().flatten().find(of_process)?)));
    own.filter(move |(_, own)| passage.called <= own.started && own.started <= end)
}

/// The processes with which this one tried to come together in vain, and which were stopped meanwhile, were dead or had given up by the end, or
/// stand there without it.
fn lost_meanwhile(run: &Run, process: usize, passage: &Passage, end: Instant) -> BTreeSet<usize> {
    let mut lost = BTreeSet::new();
    let in_vain = |(_, own): &(&Era, &Account)| !matches!(own.met, Some((_, Ok(()))));
    for (era, own) in attempts(run, process, passage, end).filter(in_vain) {
        let (faults, since) = (&run.faults, own.started - run.start);
        let is_dead = |who| faults.deaths.iter().any(|&(at, rank)| rank == who && run.start + at <= end);
        let is_stopped = |who| {
            let mut stops = faults.stops.iter().filter(|stop| stop.rank == who);
            stops.any(|stop| run.start + stop.at <= end && since < stop.until)
        };
        let has_ended = |who: usize| {
            let ended = run.processes[who].as_ref().and_then(|process| process.ended);
            ended.is_some_and(|at| at <= end)
        };
        // It came together with the others, and this one did not.
        let stands = |who: usize| {
            let mut accounts = era.accounts.iter().flatten().filter(|account| account.seat.me == who);
            accounts.any(|account| matches!(account.met, Some((_, Ok(())))))
        };
        let others = era.roster.iter().map(|&worker| worker as usize).filter(|&who| who != process);
        lost.extend(others.filter(|&who| is_dead(who) || is_stopped(who) || has_ended(who) || stands(who)));
    }
    lost
}

/// Whether a process was hurt, or by then never began, had come to its end, or had left this generation or a later one.
fn is_lost(run: &Run, process: usize, since: Option<u64>, by: Instant) -> bool {
    let Some(Some(state)) = run.processes.get(process) else { return true };
    let mut eras = run.eras.iter().filter(|era| Some(era.generation) >= since);
    let has_left = eras.any(|era| {
        let accounts = era.accounts.iter().flatten();
        let mut own = accounts.filter(|account| account.seat.me == process);
        own.any(|account| account.left.is_some_and(|at| at <= by))
    });
    run.faults.touch(process) || state.ended.is_some_and(|at| at <= by) || has_left
}

/// The workers between two words of an error.
fn workers(what: &str, before: &str, after: &str) -> Vec<usize> {
    let Some((_, rest)) = what.split_once(before) else { return Vec::new() };
    let list = rest.split_once(after).map_or(rest, |(list, _)| list);
    list.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// An error says the truth.
fn truth(
    run: &Run,
    process: usize,
    passage: &Passage,
    (at, error): (Instant, &Error),
    found: &mut Vec<String>,
) {
    let is_true = match error {
        Error::Rendezvous { what, .. } => {
            let lost = workers(what, "were there before, ", "are lost");
            let silent = workers(what, "which is worker ", ",");
            let ranks = workers(what, "came too late: workers ", "go on");
            let lost = lost.into_iter().chain(silent).all(|worker| is_lost(run, worker, passage.from, at));
            lost && !ranks.contains(&process)
        }
        Error::Mismatch { .. } => run.faults.contrary.is_some(),
        Error::Io { .. } => run.faults.store_ends.is_some() || !run.faults.slow_requests.is_empty(),
        _ => false,
    };
    if !is_true {
        found.push(format!("process {process} is told what is not true: {error}"));
    }
}

/// A process that lives and comes in time is in the next generation.
fn nobody_is_left_out(run: &Run, process: usize, passage: &Passage, error: &Error, found: &mut Vec<String>) {
    // Of two that never reach each other, and both the store, neither is lost.
    let apart = run.faults.detour.is_some() || run.faults.impostor.is_some() || run.faults.are_cut_for_long();
    let is_survivor = passage.op != OpKind::Init;
    let may_fail =
        run.faults.touch(process) || run.faults.contrary.is_some() || run.faults.store_ends.is_some();
    // Without those who are hurt, until the time was over.
    let error_text = error.to_string();
    let roster = workers(&error_text, "has formed, of workers ", ", when this rank had no time left");
    let unhurt = roster.iter().filter(|&&worker| !run.faults.touch(worker)).count();
    let too_few = run.script.first.elastic().is_some_and(|size| {
        size.min() > 1 && (error_text.contains("did not form") || !roster.is_empty() && unhurt < size.min())
    });
    // An operation in a group of some of them may have taken all its time.
    let others = passages(run).filter(|(_, other)| other.op != OpKind::Init && other.from == passage.from);
    let is_late = |since: Instant| passage.called - since > run.script.first.limit + SETTLE_TIME;
    let is_late = others.map(|(_, other)| other.called).min().is_some_and(is_late);
    if is_survivor && !may_fail && !too_few && !apart && !is_late {
        found.push(format!("process {process}, to which nothing was done, does not get on: {error}"));
    }
}

/// The members of a generation are those of the store's roster, survivors first and in their order; where it stands, all have come.
fn membership(run: &Run, era: &Era, found: &mut Vec<String>) {
    let generation = era.generation;
    let is_decided = generation > 0 || run.script.first.elastic().is_some();
    let decided = ask_decision(generation).perform(&run.table).and_then(decision);
    if is_decided && !matches!(&decided, Ok(Some(Decision::Roster(roster))) if *roster == era.roster) {
        found.push(format!("generation {generation} has {:?}, and the store says {decided:?}", era.roster));
    }
    let stands = era.accounts.iter().flatten().any(|account| matches!(account.met, Some((_, Ok(())))));
    if stands && let Some(rank) = era.accounts.iter().position(Option::is_none) {
        found.push(format!("generation {generation} stands, and rank {rank} has not come"));
    }
    // Where each of them was before.
    let before: BTreeMap<u64, Option<u64>> = (era.roster.iter())
        .map(|&worker| {
            let process = run.processes[worker as usize].as_ref();
            let passages = process.into_iter().flat_map(|process| &process.passages);
            let last = passages.take_while(|p| p.from.is_none_or(|from| from < generation)).last();
            (worker, last.and_then(|passage| passage.from))
        })
        .collect();
    // Where a generation stands, nobody passes it by.
    for (worker, from) in &before {
        let stood = |other: &&Era| {
            let met = |account: &Account| matches!(account.met, Some((_, Ok(()))));
            let later = Some(other.generation) > *from && other.generation < generation;
            later && !other.roster.contains(worker) && other.accounts.iter().flatten().any(met)
        };
        if from.is_some()
            && let Some(other) = run.eras.iter().find(stood)
        {
            let (passed, roster) = (other.generation, &other.roster);
            found.push(format!(
                "worker {worker} is in generation {generation} and was in {from:?} before, though {passed} stood with {roster:?}"
            ));
        }
    }
    let survivors = era.roster.iter().take_while(|worker| before[worker].is_some()).count();
    if era.roster[survivors..].iter().any(|worker| before[worker].is_some()) {
        found.push(format!(
            "generation {generation} has {:?}, of whom {before:?} say where they were",
            era.roster
        ));
    }
    let Some(from) = era.roster.first().and_then(|worker| before[worker]) else { return };
    let Some(last) = run.eras.iter().find(|era| era.generation == from) else { return };
    let places = era.roster.iter().filter(|worker| before[worker] == Some(from));
    let places: Vec<_> = places.map(|worker| last.roster.iter().position(|w| w == worker)).collect();
    if !places.is_sorted() {
        found.push(format!("generation {generation} has {:?} after {:?}", era.roster, last.roster));
    }
}
