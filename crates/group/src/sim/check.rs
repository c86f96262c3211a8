//! What must hold, whatever goes wrong: the promises of the library, checked when a run is over.

use super::account::{Account, Record};
use super::era::Era;
use super::faults::Misdeed;
use crate::control::failure_report::SETTLE_TIME;
use phalanx_core::{Cause, Error, GroupId, Loss, OpKind};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a rank needs besides what it waits for: its threads hesitate, and messages take their time.
const SLACK: Duration = Duration::from_millis(100);

/// All promises that were broken in a generation.
pub(super) fn violations(era: &Era) -> Vec<String> {
    let mut found = Vec::new();
    for (rank, account) in era.accounts.iter().enumerate() {
        let Some(process) = account else { continue };
        in_time(era, rank, process, &mut found);
        for record in &process.records {
            if let Some((_, Ok(false))) = record.ended {
                found.push(format!("rank {rank}: #{} ended well with a wrong result", record.at));
            }
        }
        for (_, cause) in &process.causes {
            truth(era, rank, cause, &mut found);
        }
    }
    agreement(era, &mut found);
    peace(era, &mut found);
    mismatch(era, &mut found);
    found
}

fn is_dead(era: &Era, rank: usize) -> bool {
    era.faults.deaths.iter().any(|(_, r)| *r == rank)
}

/// Stopped for ever: it owes nothing from then on.
fn is_stopped(era: &Era, rank: usize) -> bool {
    era.faults.stops.iter().any(|s| s.rank == rank && s.until == Duration::MAX)
}

/// Every call returns by its deadline and the time for settling what came first.
fn in_time(era: &Era, rank: usize, process: &Account, found: &mut Vec<String>) {
    if is_dead(era, rank) || is_stopped(era, rank) {
        return;
    }
    let stopped: Duration = era.faults.stops.iter().filter(|s| s.rank == rank).map(|s| s.until - s.at).sum();
    let extra = SLACK + stopped + era.faults.lag(rank) * 8;
    let mut check = |what: &str, since: Instant, until: Option<Instant>, limit: Duration| match until {
        None => found.push(format!("rank {rank}: {what} never returned")),
        Some(at) if at - since > limit + extra => found.push(format!(
            "rank {rank}: {what} took {:?}, where {limit:?} and {extra:?} are allowed",
            at - since
        )),
        Some(_) => {}
    };
    check("the meeting", process.started, process.met.as_ref().map(|(at, _)| *at), process.met_by.limit());
    for Record { at, called, ended, .. } in &process.records {
        let limit = era.program.limit + SETTLE_TIME;
        check(&format!("#{at}"), *called, ended.as_ref().map(|(at, _)| *at), limit);
    }
}

/// Whether this rank could ask the arbiter what came first. One that fails after rank 0 has ended, for something in another group perhaps,
/// could not.
fn hears(era: &Era, rank: usize) -> bool {
    let failed = era.accounts[rank].iter().flat_map(|process| &process.records).find_map(|record| {
        let (at, end) = record.ended.as_ref()?;
        end.is_err().then_some(*at)
    });
    let ended = era.accounts[0].as_ref().and_then(|process| process.ended);
    era.faults.spare_line(rank) && failed.zip(ended).is_none_or(|(failed, ended)| failed <= ended)
}

/// All members of a group that hear the arbiter name the same first cause, as do those who failed with rank 0 in one group.
fn agreement(era: &Era, found: &mut Vec<String>) {
    let mut first: HashMap<GroupId, (usize, Cause)> = HashMap::new();
    let of_arbiter: Vec<_> =
        era.accounts[0].iter().flat_map(|account| &account.causes).map(|(group, _)| *group).collect();
    for (rank, process) in era.accounts.iter().enumerate().filter(|(rank, _)| era.faults.spare_line(*rank)) {
        for (group, cause) in process.iter().flat_map(|account| &account.causes) {
            if !of_arbiter.contains(group) && !hears(era, rank) {
                continue;
            }
            let (one, other) = first.entry(*group).or_insert_with(|| (rank, cause.clone()));
            if other != cause {
                found.push(format!("of {group} rank {one} says: {other}; rank {rank} says: {cause}"));
                return;
            }
        }
    }
}

/// Where nothing happened that a call could not wait for, all go well.
fn peace(era: &Era, found: &mut Vec<String>) {
    // A generation may form when there is hardly time left to come together, for some none at all.
    let is_short = |account: &Account| account.met_by.limit() < Duration::from_secs(2);
    let hurries = era.accounts.iter().any(|account| account.as_ref().map_or(era.generation > 0, is_short));
    if !era.faults.are_harmless(era.program.leeway()) || hurries {
        return;
    }
    for (rank, process) in era.accounts.iter().enumerate() {
        let Some(process) = process else { continue };
        if let Some((_, Err(error))) = &process.met {
            found.push(format!("nothing harmful happened, and yet: {error}"));
        }
        for record in &process.records {
            if let Some((_, Err(error))) = &record.ended {
                found.push(format!("nothing harmful happened, and yet: {error}"));
            }
        }
        let calls: usize = (0..era.program.lines.len()).map(|at| era.program.parts(at, rank)).sum();
        if process.records.len() < calls && process.met.as_ref().is_some_and(|m| m.1.is_ok()) {
            found.push(format!("nothing harmful happened, and yet rank {rank} made too few calls"));
        }
    }
}

/// Whether this rank's process has come to its end, or never began.
fn has_ended(era: &Era, rank: usize) -> bool {
    era.accounts[rank].as_ref().is_none_or(|account| account.ended.is_some())
}

/// Whether this rank could not make a group, and then does not come into it.
fn forgoes(era: &Era, rank: usize) -> bool {
    let mut calls = era.accounts[rank].iter().flat_map(|process| &process.records);
    calls.any(|record| {
        let makes = matches!(record.signature.op, OpKind::Split | OpKind::NewGroup);
        makes && matches!(record.ended, Some((_, Err(_))))
    })
}

/// Whether this rank has gone on to another generation, or has given up coming into this one.
fn goes(era: &Era, rank: usize) -> bool {
    let account = era.accounts[rank].as_ref();
    era.went_on[rank] || account.is_some_and(|account| matches!(account.met, Some((_, Err(_)))))
}

/// What is said of a rank is true, and nobody is blamed to whom nothing was done.
fn truth(era: &Era, rank: usize, cause: &Cause, found: &mut Vec<String>) {
    let touched = |who: usize| era.faults.touch(who);
    let strays = |who: usize, how: Misdeed| era.faults.astray.is_some_and(|a| a.rank == who && a.how == how);
    let lies = |who: usize| era.faults.lie.is_some_and(|lie| lie.rank == who);
    let is_true = match cause {
        Cause::Lost { peer, how: Loss::Panicked } => strays(peer.rank, Misdeed::Panics),
        Cause::Aborted { peer, .. } => {
            strays(peer.rank, Misdeed::Aborts) || forgoes(era, peer.rank) || goes(era, peer.rank)
        }
        Cause::Protocol { peer, .. } => lies(peer.rank),
        Cause::Mismatch { left, right, .. } => {
            let [left_strays, right_strays] = [left, right].map(|(peer, _)| touched(peer.rank));
            let differ = !left.1.matches(&right.1) || lies(left.0.rank) || lies(right.0.rank);
            differ && (left_strays || right_strays)
        }
        Cause::TimedOut { op: OpKind::Init, missing, .. } => missing.iter().all(|peer| touched(peer.rank)),
        // Each of them waited in that call and is in it still, and one was led astray.
        Cause::Deadlock { waits } => {
            let is_in = |wait: &phalanx_core::Wait| {
                let last = era.accounts[wait.peer.rank].iter().flat_map(|process| &process.records).last();
                last.is_some_and(|record| {
                    record.signature.site == wait.call.site && !matches!(record.ended, Some((_, Ok(_))))
                })
            };
            // Where any might have sent, whoever did not need not be in the circle.
            let might_send = |wait: &phalanx_core::Wait| {
                let group = era.program.group(wait.call.site.line as usize - 1, wait.peer.rank);
                wait.call.op == OpKind::RecvAny
                    && group.is_some_and(|g| g.members.iter().any(|&r| touched(r)))
            };
            waits.iter().all(is_in) && waits.iter().any(|wait| touched(wait.peer.rank) || might_send(wait))
        }
        // Of a message, only who was waited for is known.
        Cause::TimedOut { seq: 0, .. } => true,
        // Who does not hear the arbiter knows only whom it waited for itself.
        Cause::TimedOut { reporter, .. } if reporter.rank == rank && !hears(era, rank) => true,
        // Others hear it of that rank, when it has left: an arbiter that was stopped, too.
        Cause::TimedOut { reporter, .. } if !hears(era, rank) && !hears(era, reporter.rank) => true,
        Cause::TimedOut { reporter, seq, site, waited, missing, .. } => {
            let group =
                site.as_ref().and_then(|site| era.program.group(site.line as usize - 1, reporter.rank));
            let is_in = |who: usize, record: &&Record| {
                group.is_some_and(|group| era.program.group(record.at, who).is_some_and(|g| g.id == group.id))
            };
            let came = |who: usize, by: Instant| {
                let calls = era.accounts[who].iter().flat_map(|process| &process.records);
                let mut calls = calls.into_iter().filter(|record| is_in(who, record));
                calls.any(|record| record.seq >= *seq && record.called <= by)
            };
            let first = era.accounts[reporter.rank].iter().flat_map(|process| &process.records);
            let mut first = first.into_iter().filter(|record| is_in(reporter.rank, record));
            let called = first.find(|record| record.seq == *seq).map(|record| record.called);
            called.is_some_and(|called| {
                missing.iter().all(|peer| touched(peer.rank) || !came(peer.rank, called + *waited))
            })
        }
        // Who does not hear the arbiter takes a rank that has failed for the first that did.
        // Where nobody listens any more, it can't be reached.
        Cause::Lost { peer, how: Loss::Died | Loss::Unreachable { .. } } if !hears(era, rank) => {
            touched(peer.rank) || has_ended(era, peer.rank)
        }
        // It has left in order, when its calls had ended well and another's time was just over.
        Cause::Lost { peer, how: Loss::Left } if has_ended(era, peer.rank) || goes(era, peer.rank) => true,
        cause => cause.culprit().is_none_or(|peer| touched(peer.rank)),
    };
    if !is_true {
        found.push(format!("rank {rank} says what is not true: {cause}"));
    }
}

/// Ranks that call different things are told so, where nothing else goes wrong.
fn mismatch(era: &Era, found: &mut Vec<String>) {
    let Some(astray) = era.faults.astray.filter(|a| matches!(a.how, Misdeed::OtherOp | Misdeed::OtherCount))
    else {
        return;
    };
    let mut rest = era.faults.clone();
    rest.astray = None;
    let group = era.program.group(astray.call, astray.rank);
    // A rank that has gone on from there may be waited for in other groups, until somebody's time is over.
    let goes_on = era.went_on.contains(&true);
    let concerns = |record: &&Record, rank: usize| {
        !goes_on || era.program.group(record.at, rank).map(|of| of.id) == group.map(|of| of.id)
    };
    if era.program.lines[astray.call].is_messages() || group.is_none_or(|g| g.members.len() < 2) {
        return;
    }
    if !rest.are_harmless(era.program.leeway()) {
        return;
    }
    for (rank, process) in era.accounts.iter().enumerate() {
        let records = process.iter().flat_map(|p| &p.records).filter(|record| concerns(record, rank));
        let ends = records.filter_map(|record| record.ended.as_ref());
        let is_told = |error: &&Error| {
            let seq = match error {
                Error::Mismatch { seq, .. } => Some(*seq),
                Error::Poisoned { cause, .. } => match &**cause {
                    Cause::Mismatch { seq, .. } => Some(*seq),
                    _ => None,
                },
                _ => None,
            };
            seq == Some(era.program.seq(astray.call))
        };
        let wrong = ends.filter_map(|(_, end)| end.as_ref().err()).find(|error| !is_told(error));
        if let Some(error) = wrong {
            found.push(format!("rank {} called something else, but rank {rank} says: {error}", astray.rank));
        }
        // Who only sends, and whose frames nobody needs, may go unheard: no data was used.
        let is_rooted = era.program.lines[astray.call].is_rooted();
        if !is_rooted && process.as_ref().is_some_and(|p| p.causes.is_empty()) {
            found.push(format!(
                "rank {} called something else, and rank {rank} did not hear of it",
                astray.rank
            ));
        }
    }
}
