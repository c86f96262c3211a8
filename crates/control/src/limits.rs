//! How much a correct rank or arbiter says. Who says more breaks the protocol, and is named for it: nobody who knows the
//! secret can make another process hold more and more.

use super::member::TEXT_LEN_MAX;
use super::notice::{Notice, Through, Verdict};
use super::wait_graph::{COUNTS_MAX, Standing, WAITS_MAX, With};
use phalanx_core::{Cause, Loss, Peer, WORLD, Wait};

/// Calls that a rank tells when it waits, the current one included, for naming both sides of a late mismatch.
pub const CALLS_MAX: usize = 64;
/// Groups in which the arbiter remembers that a rank waited: the latest.
pub const STALLED_MAX: usize = 64;
/// Groups that may fail by the reports of one rank.
pub const FAILED_MAX: usize = 4096;
/// Groups of which it is remembered that a rank left them: the latest.
pub const LEFT_MAX: usize = 4096;
/// Verdicts that a rank remembers.
pub const VERDICTS_MAX: usize = 1 << 16;

impl Notice {
    /// Says what is wrong with it.
    pub fn check(&self, world_size: usize, is_complete: bool) -> Result<(), String> {
        match self {
            Self::Join { host, local, settings, .. } => {
                let local = local.iter().flat_map(|local| [local.host.as_str(), &local.name]);
                local.chain([host.as_str(), settings]).try_for_each(check_text)
            }
            Self::Calls { calls, .. } if calls.len() > CALLS_MAX => {
                Err(format!("it waits in the last of {} calls; at most {CALLS_MAX} are told", calls.len()))
            }
            Self::Failed { group, .. } if !is_complete && *group != WORLD => {
                Err(format!("{group} failed before all ranks were here"))
            }
            Self::Failed { members, cause, .. } => {
                check_members(members, world_size)?;
                check_cause(cause, world_size)
            }
            Self::InError { cause } => check_cause(cause, world_size),
            Self::LeaveGroup { members, .. } | Self::WhoIsBehind { members, .. } => {
                check_members(members, world_size)
            }
            Self::Waits { standing, .. } => check_standing(standing, world_size),
            _ => Ok(()),
        }
    }
}

impl Verdict {
    /// Says what is wrong with it.
    pub fn check(&self, world_size: usize) -> Result<(), String> {
        match self {
            Self::Complete { members } if members.members().len() != world_size => {
                Err(format!("{} members, not {world_size}", members.members().len()))
            }
            Self::Missing { ranks } | Self::Behind { ranks, .. } => check_members(ranks, world_size),
            Self::Group { cause, through, .. } => {
                check_through(through, world_size)?;
                check_cause(cause, world_size)
            }
            Self::Lost { rank, cause, through, .. } => {
                check_rank(*rank, world_size)?;
                check_through(through, world_size)?;
                check_cause(cause, world_size)
            }
            Self::Left { rank, after, .. } | Self::LeftGroup { rank, after, .. } => {
                check_rank(*rank, world_size)?;
                after.iter().try_for_each(|cause| check_cause(cause, world_size))
            }
            Self::InError { cause } => cause.iter().try_for_each(|cause| check_cause(cause, world_size)),
            Self::Trace { by } => check_rank(*by, world_size),
            Self::Complete { .. } | Self::Beat | Self::WhereAreYou { .. } | Self::WhatDoYouWaitFor { .. } => {
                Ok(())
            }
        }
    }
}

fn check_cause(cause: &Cause, world_size: usize) -> Result<(), String> {
    match cause {
        Cause::Lost { peer, how } => check_loss(peer, how, world_size),
        Cause::Protocol { peer, what: words } | Cause::Aborted { peer, reason: words } => {
            check_peer(peer, world_size)?;
            check_text(words)
        }
        Cause::Mismatch { left, right, .. } => {
            check_peer(&left.0, world_size)?;
            check_peer(&right.0, world_size)
        }
        Cause::Deadlock { waits } => check_waits(waits, world_size),
        Cause::TimedOut { reporter, awaited, missing, meanwhile, .. } => {
            check_len(missing.len().max(awaited.len()), world_size)?;
            check_waits(meanwhile, world_size)?;
            missing.iter().chain(awaited).chain([reporter]).try_for_each(|peer| check_peer(peer, world_size))
        }
        _ => Ok(()),
    }
}

fn check_through(through: &Through, world_size: usize) -> Result<(), String> {
    through.iter().try_for_each(|(peer, how)| check_loss(peer, how, world_size))
}

fn check_loss(peer: &Peer, how: &Loss, world_size: usize) -> Result<(), String> {
    check_peer(peer, world_size)?;
    if let Loss::Unreachable { from } | Loss::Apart { from, .. } = how {
        check_rank(*from, world_size)
    } else {
        Ok(())
    }
}

fn check_waits(waits: &[Wait], world_size: usize) -> Result<(), String> {
    check_len(waits.len(), world_size)?;
    waits.iter().try_for_each(|wait| {
        check_rank(wait.on, world_size)?;
        check_peer(&wait.peer, world_size)
    })
}

fn check_standing(standing: &Standing, world_size: usize) -> Result<(), String> {
    let Standing { waits, places, messages, failing, .. } = standing;
    if waits.len() > WAITS_MAX || places.len().max(messages.len()) > COUNTS_MAX {
        return Err(format!("it waits in {} operations of {} groups", waits.len(), places.len()));
    }
    failing.iter().try_for_each(|cause| check_cause(cause, world_size))?;
    messages.iter().try_for_each(|(_, peer, ..)| check_rank(*peer, world_size))?;
    waits.iter().try_for_each(|wait| match &wait.with {
        With::Peer(peer, _) => check_rank(*peer, world_size),
        With::Members(members, _) | With::Any(members, _) => check_members(members, world_size),
    })
}

fn check_peer(peer: &Peer, world_size: usize) -> Result<(), String> {
    check_rank(peer.rank, world_size)?;
    check_text(&peer.host)
}

fn check_members(ranks: &[usize], world_size: usize) -> Result<(), String> {
    check_len(ranks.len(), world_size)?;
    ranks.iter().try_for_each(|&rank| check_rank(rank, world_size))
}

fn check_rank(rank: usize, world_size: usize) -> Result<(), String> {
    if rank < world_size { Ok(()) } else { Err(format!("rank {rank} in a world of {world_size}")) }
}

fn check_len(len: usize, world_size: usize) -> Result<(), String> {
    if len <= world_size { Ok(()) } else { Err(format!("{len} ranks of a world of {world_size}")) }
}

fn check_text(text: &str) -> Result<(), String> {
    match text.len() {
        0..=TEXT_LEN_MAX => Ok(()),
        len => Err(format!("a text of {len} bytes; {TEXT_LEN_MAX} are enough")),
    }
}

/// As much of `text` as may be told.
pub fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_LEN_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::address_book::AddressBook;
    use super::super::arbiter::Arbiter;
    use super::super::notice::Member;
    use super::*;
    use phalanx_core::GroupId;

    fn join(host: &str) -> Notice {
        let addr = ([127, 0, 0, 1], 1).into();
        Notice::Join { host: host.into(), addr, local: None, settings: String::new() }
    }

    fn aborted(group: u64) -> Notice {
        let cause = Cause::Aborted { peer: Peer { rank: 1, host: "h1".into() }, reason: "r".into() };
        Notice::Failed { group: GroupId(group), members: vec![0, 1], cause }
    }

    fn job() -> Arbiter {
        let mut arbiter = Arbiter::new(2, None);
        arbiter.handle(0, join("h0"));
        arbiter.handle(1, join("h1"));
        arbiter
    }

    /// What the arbiter says of rank 1 after `notice`.
    fn blamed(arbiter: &mut Arbiter, notice: Notice) -> String {
        match arbiter.handle(1, notice).last() {
            Some((0, Verdict::Group { group: WORLD, cause: Cause::Protocol { peer, what }, .. })) => {
                assert_eq!(peer.rank, 1);
                what.clone()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_says_what_no_correct_rank_says_is_named() {
        let lost = |rank| {
            let cause = Cause::Lost { peer: Peer { rank, host: "h".into() }, how: Loss::Died };
            Notice::Failed { group: WORLD, members: vec![0, 1], cause }
        };
        assert_eq!(blamed(&mut job(), lost(2)), "rank 2 in a world of 2");
        assert!(blamed(&mut job(), join("h1")).contains("second time"));
        let members = vec![0; 3];
        let Notice::Failed { cause, .. } = aborted(0) else { unreachable!() };
        let crowd = Notice::Failed { group: WORLD, members, cause };
        assert_eq!(blamed(&mut job(), crowd), "3 ranks of a world of 2");
        let mut new = Arbiter::new(2, None);
        new.handle(0, join("h0"));
        assert!(blamed(&mut new, join(&"h".repeat(TEXT_LEN_MAX + 1))).contains("4097 bytes"));
    }

    #[test]
    fn no_rank_fails_groups_without_end() {
        let mut arbiter = job();
        for group in 1..=FAILED_MAX as u64 {
            assert_eq!(arbiter.handle(1, aborted(group)).len(), 2);
        }
        assert!(blamed(&mut arbiter, aborted(1 << 40)).contains("more than 4096 groups"));
        assert!(arbiter.handle(1, aborted(1 << 41)).is_empty(), "its word counts no more");
    }

    #[test]
    fn who_comes_later_hears_what_has_failed_first() {
        let mut arbiter = Arbiter::new(2, None);
        arbiter.handle(1, join("h1"));
        let failed = arbiter.handle(1, aborted(WORLD.0)).remove(0).1;
        let mail = arbiter.handle(0, join("h0"));
        assert_eq!(mail, [(0, failed)], "and never that all are here");
    }

    #[test]
    fn a_verdict_without_sense_is_refused() {
        let member = |rank| Member {
            peer: Peer { rank, host: "h".into() },
            addr: ([127, 0, 0, 1], 1).into(),
            local: None,
        };
        let complete = |ranks: usize| {
            let members = AddressBook::new((0..ranks).map(member).collect());
            Verdict::Complete { members: members.into() }.check(2)
        };
        assert_eq!([0, 1, 2, 3].map(|ranks| complete(ranks).is_ok()), [false, false, true, false]);
        assert!(Verdict::Left { rank: 2, after: None, finished: 0 }.check(2).is_err());
        assert!(Verdict::Missing { ranks: vec![0, 0, 0] }.check(2).is_err());
    }
}
