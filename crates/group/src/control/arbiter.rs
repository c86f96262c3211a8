//! The arbiter: decides what happened first. A state machine without sockets, clock or threads.

use super::pulse::{Due, Pulse};
use phalanx_core::{Cause, GroupId, Loss, Peer, Signature, WORLD};
use phalanx_transport::HostKey;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

/// A rank, where its data links are accepted, and where memory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) peer: Peer,
    pub(crate) addr: SocketAddr,
    /// `None`: it shares no memory with anybody.
    pub(crate) local: Option<Local>,
}

/// Which ranks can share memory with a rank, and the name under which it takes that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Local {
    pub(crate) host: HostKey,
    pub(crate) name: String,
}

/// What ranks tell the arbiter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// I am here. `terms` must be the same on all ranks: what else would make them choose differently.
    Join { host: String, addr: SocketAddr, local: Option<Local>, terms: String },
    /// Who is not here yet?
    WhoIsMissing,
    /// I have been waiting for a while in the last of these collectives, which are the latest of this group.
    Stalled { group: GroupId, calls: Calls },
    /// This group has failed, as far as I can see. `members` are ranks of the job.
    Failed { group: GroupId, members: Vec<usize>, cause: Cause },
    /// I leave in order.
    Leave,
    /// All ranks should write what they did lately.
    Trace,
    /// I am alive.
    Beat,
    /// I have heard nothing from you for too long. For an arbiter whose process was stopped and goes on.
    YouWereSilent,
}

/// What the arbiter tells ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// All are here; in rank order.
    Complete { members: Vec<Member> },
    /// These are not here yet.
    Missing { ranks: Vec<usize> },
    /// This group has failed; of all verdicts that concern it, the first counts.
    Group { group: GroupId, cause: Cause },
    /// This rank is lost, and every group it belongs to has failed.
    Lost { cause: Cause },
    /// This rank has left in order.
    Left { rank: usize },
    /// This rank wants all to write what they did lately.
    Trace { by: usize },
    /// The arbiter is alive.
    Beat,
}

/// Collectives and their places in the sequence, oldest first.
pub(crate) type Calls = Vec<(u64, Signature)>;

/// The first place at which two ranks called different things.
fn disagreement<'c>(ours: &'c Calls, theirs: &'c Calls) -> Option<(u64, &'c Signature, &'c Signature)> {
    let both = |(seq, ours): &'c (u64, Signature)| {
        theirs.iter().find(|(s, _)| s == seq).map(|(_, theirs)| (*seq, ours, theirs))
    };
    ours.iter().filter_map(both).find(|(_, ours, theirs)| !ours.matches(theirs))
}

/// What to send to whom.
pub(crate) type Mail = Vec<(usize, Verdict)>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Arbiter {
    members: Vec<Option<Member>>,
    /// The terms of the first rank that came.
    terms: Option<(usize, String)>,
    failed: HashMap<GroupId, Cause>,
    lost: BTreeSet<usize>,
    /// The same in their order, for who comes later.
    losses: Vec<Cause>,
    left: BTreeSet<usize>,
    /// Who reported whose death, which the arbiter had not seen.
    doubted: BTreeSet<(usize, usize)>,
    /// What each rank last said about its latest collectives, by group.
    stalls: HashMap<GroupId, BTreeMap<usize, Calls>>,
    /// Of the ranks that are here; `None` where silence means nothing.
    pulse: Option<Pulse>,
}

impl Arbiter {
    pub(crate) fn new(world_size: usize, pulse: Option<Pulse>) -> Self {
        Self {
            members: vec![None; world_size],
            terms: None,
            failed: HashMap::new(),
            lost: BTreeSet::new(),
            losses: Vec::new(),
            left: BTreeSet::new(),
            doubted: BTreeSet::new(),
            stalls: HashMap::new(),
            pulse,
        }
    }

    /// Whether a process may connect as `rank`: once, ever.
    pub(crate) fn admits(&self, rank: usize) -> bool {
        self.members.get(rank).is_some_and(Option::is_none)
    }

    /// Takes a notice from `rank`.
    pub(crate) fn handle(&mut self, rank: usize, notice: Notice) -> Mail {
        match notice {
            Notice::Join { host, addr, local, terms } => {
                self.members[rank] = Some(Member { peer: Peer { rank, host }, addr, local });
                let (first, theirs) = self.terms.get_or_insert_with(|| (rank, terms.clone()));
                if *theirs != terms {
                    let what = format!("it runs with {terms}, rank {first} with {theirs}");
                    return self.fail(WORLD, Cause::Protocol { peer: self.peer(rank), what });
                }
                let members: Vec<_> = self.members.iter().flatten().cloned().collect();
                if !self.losses.is_empty() {
                    let lost = |cause: &Cause| (rank, Verdict::Lost { cause: cause.clone() });
                    return self.losses.iter().map(lost).collect();
                }
                if members.len() < self.members.len() {
                    return Vec::new();
                }
                self.to_all(&Verdict::Complete { members })
            }
            Notice::WhoIsMissing => {
                let ranks = (0..self.members.len()).filter(|&r| self.members[r].is_none()).collect();
                vec![(rank, Verdict::Missing { ranks })]
            }
            Notice::Stalled { group, calls } => self.stalled(rank, group, calls),
            Notice::Failed { group, members, cause } => {
                // A group fails once; its verdict is on its way to the reporter already.
                let cause = self.complete(group, &members, cause);
                if self.doubts(rank, &cause) { Vec::new() } else { self.fail(group, cause) }
            }
            Notice::Trace => self.to_all(&Verdict::Trace { by: rank }),
            Notice::Leave => {
                self.left.insert(rank);
                self.forget(rank);
                self.to_all(&Verdict::Left { rank })
            }
            Notice::Beat => Vec::new(),
            Notice::YouWereSilent => self.silent(0),
        }
    }

    /// The line of `rank` has closed.
    pub(crate) fn disconnected(&mut self, rank: usize, how: Loss) -> Mail {
        if self.left.contains(&rank) || !self.lost.insert(rank) {
            return Vec::new();
        }
        self.lose(rank, how)
    }

    /// `rank` said something, whatever it was.
    pub(crate) fn heard(&mut self, rank: usize, now: Instant) {
        let expected = !self.admits(rank) && !self.left.contains(&rank) && !self.lost.contains(&rank);
        if let Some(pulse) = self.pulse.as_mut().filter(|_| expected) {
            pulse.heard(rank, now);
        }
    }

    /// When to [`poll`](Self::poll), if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pulse.as_ref().map(Pulse::deadline)
    }

    /// Does what is due. Call it after everything that has arrived was handled.
    pub(crate) fn poll(&mut self, now: Instant) -> Mail {
        let Some(pulse) = &mut self.pulse else { return Vec::new() };
        let Due { beat, silent } = pulse.poll(now);
        let mut mail: Mail = silent.into_iter().flat_map(|rank| self.silent(rank)).collect();
        if beat {
            // To all at one moment: so all notice at one moment when it ends.
            mail.extend(self.to_all(&Verdict::Beat));
        }
        mail
    }

    /// Its line stands, but nothing comes. It is told as well: it may only have been stopped, and must not go on.
    fn silent(&mut self, rank: usize) -> Mail {
        let Some(after) = self.pulse.as_ref().map(Pulse::limit) else { return Vec::new() };
        if self.left.contains(&rank) || self.lost.contains(&rank) {
            return Vec::new();
        }
        let mail = self.lose(rank, Loss::Silent { after });
        self.lost.insert(rank);
        mail
    }

    fn lose(&mut self, rank: usize, how: Loss) -> Mail {
        self.forget(rank);
        let cause = Cause::Lost { peer: self.peer(rank), how };
        self.losses.push(cause.clone());
        self.to_all(&Verdict::Lost { cause })
    }

    fn forget(&mut self, rank: usize) {
        if let Some(pulse) = &mut self.pulse {
            pulse.forget(rank);
        }
    }

    /// Ranks that wait for each other may be at different places: one has come through a call that another, who took it
    /// for something else, still waits in.
    fn stalled(&mut self, rank: usize, group: GroupId, calls: Calls) -> Mail {
        self.stalls.entry(group).or_default().insert(rank, calls);
        let stalls = &self.stalls[&group];
        let ours = &stalls[&rank];
        let found = stalls.iter().find_map(|(&other, theirs)| Some((other, disagreement(ours, theirs)?)));
        let Some((other, (seq, ours, theirs))) = found else { return Vec::new() };
        let mut sides = [(self.peer(rank), ours.clone()), (self.peer(other), theirs.clone())];
        sides.sort_by_key(|(peer, _)| peer.rank);
        let [left, right] = sides;
        self.fail(group, Cause::Mismatch { seq, left, right })
    }

    /// Fills in what the reporter cannot know: who else was not there in time, and that a closed link was left in order.
    fn complete(&self, group: GroupId, members: &[usize], cause: Cause) -> Cause {
        match cause {
            Cause::TimedOut { reporter, op, seq, waited, missing } if seq > 0 => {
                let stalls = self.stalls.get(&group);
                let arrived = |rank: &usize| {
                    let latest = stalls.and_then(|s| s.get(rank)?.last());
                    *rank == reporter.rank || latest.is_some_and(|(s, _)| *s >= seq)
                };
                let absent: Vec<_> = members.iter().filter(|r| !arrived(r)).map(|&r| self.peer(r)).collect();
                let missing = if absent.is_empty() { missing } else { absent };
                Cause::TimedOut { reporter, op, seq, waited, missing }
            }
            Cause::Lost { peer, how: Loss::Died | Loss::Unreachable { .. } }
                if self.left.contains(&peer.rank) =>
            {
                Cause::Lost { peer, how: Loss::Left }
            }
            other => other,
        }
    }

    /// Whether to wait before believing `cause`: who closes its links may be about to say why, on its own line, and if it is dead
    /// that line closes too. A reporter that insists is believed: then the network has cut only the two of them apart.
    fn doubts(&mut self, reporter: usize, cause: &Cause) -> bool {
        match cause {
            Cause::Lost { peer, how: Loss::Died | Loss::Unreachable { .. } }
                if !self.lost.contains(&peer.rank) =>
            {
                self.doubted.insert((reporter, peer.rank))
            }
            _ => false,
        }
    }

    fn fail(&mut self, group: GroupId, cause: Cause) -> Mail {
        if self.failed.contains_key(&group) {
            return Vec::new();
        }
        self.failed.insert(group, cause.clone());
        self.to_all(&Verdict::Group { group, cause })
    }

    fn peer(&self, rank: usize) -> Peer {
        let known = self.members.get(rank).and_then(Option::as_ref);
        known.map_or_else(|| Peer { rank, host: "never joined".into() }, |member| member.peer.clone())
    }

    fn to_all(&self, verdict: &Verdict) -> Mail {
        // Also to those who have left: rank 0 says so first and stays until it has heard it from all others.
        let here = |r: &usize| self.members[*r].is_some() && !self.lost.contains(r);
        // To rank 0 last: it may end its process, and the arbiter with it, as soon as it hears of a failure.
        (0..self.members.len()).rev().filter(here).map(|r| (r, verdict.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::{CallSite, OpKind};
    use std::time::Duration;

    fn joined(world_size: usize) -> Arbiter {
        joined_to(Arbiter::new(world_size, None))
    }

    fn joined_to(mut arbiter: Arbiter) -> Arbiter {
        let world_size = arbiter.members.len();
        for rank in 0..world_size {
            let addr = SocketAddr::from(([127, 0, 0, 1], 1000 + rank as u16));
            let host = format!("h{rank}");
            let mail = arbiter.handle(rank, Notice::Join { host, addr, local: None, terms: String::new() });
            assert_eq!(mail.len(), if rank + 1 == world_size { world_size } else { 0 });
        }
        arbiter
    }

    fn peer(rank: usize) -> Peer {
        Peer { rank, host: format!("h{rank}") }
    }

    fn signature(count: u64) -> Signature {
        let site = CallSite { file: "a.rs".into(), line: count as u32 };
        Signature { op: OpKind::Barrier, dtype: None, count, reduce: None, root: None, detail: 0, site }
    }

    #[test]
    fn a_rank_is_admitted_once() {
        let mut arbiter = Arbiter::new(2, None);
        assert!(arbiter.admits(1) && !arbiter.admits(2));
        let addr = ([127, 0, 0, 1], 1).into();
        arbiter.handle(1, Notice::Join { host: "h".into(), addr, local: None, terms: String::new() });
        assert!(!arbiter.admits(1));
        assert_eq!(arbiter.handle(1, Notice::WhoIsMissing), [(1, Verdict::Missing { ranks: vec![0] })]);
    }

    #[test]
    fn ranks_on_different_terms_do_not_come_together() {
        let mut arbiter = Arbiter::new(2, None);
        let addr = ([127, 0, 0, 1], 1).into();
        let join = |terms: &str| Notice::Join { host: "h".into(), addr, local: None, terms: terms.into() };
        assert!(arbiter.handle(1, join("a")).is_empty());
        let mail = arbiter.handle(0, join("b"));
        assert_eq!(mail.len(), 2);
        let Verdict::Group { cause: Cause::Protocol { peer, what }, .. } = &mail[0].1 else {
            panic!("{mail:?}")
        };
        assert_eq!((peer.rank, what.as_str()), (0, "it runs with b, rank 1 with a"));
    }

    #[test]
    fn a_death_is_told_to_the_survivors_once() {
        let mut arbiter = joined(3);
        let lost = Verdict::Lost { cause: Cause::Lost { peer: peer(1), how: Loss::Died } };
        assert_eq!(arbiter.disconnected(1, Loss::Died), [(2, lost.clone()), (0, lost)]);
        assert!(arbiter.disconnected(1, Loss::Died).is_empty());
    }

    #[test]
    fn who_comes_after_a_death_is_told() {
        let mut arbiter = Arbiter::new(3, None);
        let join = |rank| {
            let addr = ([127, 0, 0, 1], rank).into();
            Notice::Join { host: format!("h{rank}"), addr, local: None, terms: String::new() }
        };
        assert!(arbiter.handle(2, join(2)).is_empty() && arbiter.handle(0, join(0)).is_empty());
        arbiter.disconnected(2, Loss::Died);
        let lost = Verdict::Lost { cause: Cause::Lost { peer: peer(2), how: Loss::Died } };
        assert_eq!(arbiter.handle(1, join(1)), [(1, lost)], "and not that all are there");
    }

    #[test]
    fn leaving_is_not_dying() {
        let mut arbiter = joined(2);
        let left = Verdict::Left { rank: 1 };
        assert_eq!(arbiter.handle(1, Notice::Leave), [(1, left.clone()), (0, left)]);
        assert!(arbiter.disconnected(1, Loss::Died).is_empty());
        // Whose links were closed by that may take it for a death.
        let lost = |how| Cause::Lost { peer: peer(1), how };
        let report = Notice::Failed { group: WORLD, members: vec![0, 1], cause: lost(Loss::Died) };
        let verdict = Verdict::Group { group: WORLD, cause: lost(Loss::Left) };
        assert_eq!(arbiter.handle(0, report).last(), Some(&(0, verdict)));
    }

    #[test]
    fn a_death_that_only_others_saw_is_believed_when_they_insist() {
        let lost = |how| Cause::Lost { peer: peer(1), how };
        let report = |how| Notice::Failed { group: WORLD, members: vec![0, 1, 2], cause: lost(how) };
        let verdict = |how| Verdict::Group { group: WORLD, cause: lost(how) };
        // Whom it had a link to, or who was about to make one.
        for how in [Loss::Died, Loss::Unreachable { from: 0 }] {
            let mut arbiter = joined(3);
            assert!(arbiter.handle(0, report(how)).is_empty());
            assert!(arbiter.handle(2, report(how)).is_empty());
            assert_eq!(arbiter.handle(0, report(how)).last(), Some(&(0, verdict(how))));
        }

        let mut arbiter = joined(3);
        assert!(arbiter.handle(0, report(Loss::Died)).is_empty());
        assert_eq!(
            arbiter.handle(1, report(Loss::Panicked)).last(),
            Some(&(0, verdict(Loss::Panicked))),
            "its own words"
        );
    }

    #[test]
    fn the_first_report_of_a_group_wins() {
        let mut arbiter = joined(2);
        let cause = |rank| Cause::Aborted { peer: peer(rank), reason: "r".into() };
        let failed = |rank| Notice::Failed { group: WORLD, members: vec![0, 1], cause: cause(rank) };
        assert_eq!(arbiter.handle(1, failed(1)).len(), 2);
        assert!(arbiter.handle(0, failed(0)).is_empty());
    }

    #[test]
    fn waiting_for_different_things_is_a_mismatch() {
        let mut arbiter = joined(3);
        let stalled = |seq, count| Notice::Stalled { group: WORLD, calls: vec![(seq, signature(count))] };
        assert!(arbiter.handle(0, stalled(4, 1)).is_empty());
        assert!(arbiter.handle(1, stalled(5, 2)).is_empty(), "another operation is another matter");
        let mail = arbiter.handle(2, stalled(4, 3));
        let cause = Cause::Mismatch { seq: 4, left: (peer(0), signature(1)), right: (peer(2), signature(3)) };
        assert_eq!(mail.last(), Some(&(0, Verdict::Group { group: WORLD, cause })));
        assert_eq!(mail.len(), 3);
    }

    #[test]
    fn a_mismatch_is_found_where_one_rank_came_through_it() {
        let mut arbiter = joined(3);
        let calls = |calls: &[(u64, u64)]| Notice::Stalled {
            group: WORLD,
            calls: calls.iter().map(|&(seq, count)| (seq, signature(count))).collect(),
        };
        assert!(arbiter.handle(2, calls(&[(3, 0), (4, 1)])).is_empty());
        assert!(arbiter.handle(1, calls(&[(2, 0), (3, 0)])).is_empty(), "all agree, one is behind");
        let mail = arbiter.handle(0, calls(&[(3, 0), (4, 2), (5, 3)]));
        let cause = Cause::Mismatch { seq: 4, left: (peer(0), signature(2)), right: (peer(2), signature(1)) };
        assert_eq!(mail.last(), Some(&(0, Verdict::Group { group: WORLD, cause })));
    }

    #[test]
    fn a_timeout_names_all_who_did_not_arrive() {
        let mut arbiter = joined(4);
        arbiter.handle(1, Notice::Stalled { group: WORLD, calls: vec![(7, signature(1))] });
        arbiter.handle(2, Notice::Stalled { group: WORLD, calls: vec![(6, signature(1))] });
        let (op, waited) = (OpKind::Barrier, Duration::from_secs(1));
        let timed_out = |missing| Cause::TimedOut { reporter: peer(0), op, seq: 7, waited, missing };
        let report =
            Notice::Failed { group: WORLD, members: vec![0, 1, 2, 3], cause: timed_out(vec![peer(1)]) };
        let mail = arbiter.handle(0, report);
        assert_eq!(mail[0].1, Verdict::Group { group: WORLD, cause: timed_out(vec![peer(2), peer(3)]) });
    }

    const LIMIT: Duration = Duration::from_secs(10);

    fn silent(rank: usize) -> Verdict {
        Verdict::Lost { cause: Cause::Lost { peer: peer(rank), how: Loss::Silent { after: LIMIT } } }
    }

    /// Ranks that beat until they fall silent; returns what is said besides beats, and when.
    fn beating(world_size: usize, silent_from: impl Fn(usize) -> f64) -> Vec<(f64, Mail)> {
        let start = Instant::now();
        let mut arbiter = joined_to(Arbiter::new(world_size, Some(Pulse::new(LIMIT, start))));
        (0..world_size).for_each(|rank| arbiter.heard(rank, start));
        let mut said = Vec::new();
        for tenth in 0..600 {
            let after = f64::from(tenth) / 10.0;
            let now = start + Duration::from_secs_f64(after);
            for rank in (0..world_size).filter(|&rank| tenth % 20 == 0 && after < silent_from(rank)) {
                assert!(arbiter.handle(rank, Notice::Beat).is_empty());
                arbiter.heard(rank, now);
            }
            let mut mail = arbiter.poll(now);
            mail.retain(|(_, verdict)| *verdict != Verdict::Beat);
            if !mail.is_empty() {
                said.push((after, mail));
            }
        }
        said
    }

    #[test]
    fn who_falls_silent_is_lost_and_hears_of_it() {
        let to_all = |lost| [2, 1, 0].map(|rank| (rank, silent(lost))).to_vec();
        let said = beating(3, |rank| if rank == 1 { 20.5 } else { f64::MAX });
        assert_eq!(said, [(30.0, to_all(1))], "ten seconds after its last word");
        assert!(beating(3, |_| f64::MAX).is_empty(), "nobody is silent");
    }

    #[test]
    fn nothing_is_expected_from_who_left_or_has_not_come() {
        let start = Instant::now();
        let mut arbiter = joined_to(Arbiter::new(2, Some(Pulse::new(LIMIT, start))));
        arbiter.heard(1, start);
        arbiter.handle(1, Notice::Leave);
        arbiter.heard(1, start);
        let mut new = Arbiter::new(2, Some(Pulse::new(LIMIT, start)));
        new.heard(1, start);
        for second in 0..30 {
            let now = start + Duration::from_secs(second);
            assert!(arbiter.poll(now).iter().all(|(_, verdict)| *verdict == Verdict::Beat));
            assert!(new.poll(now).is_empty());
        }
    }

    #[test]
    fn an_arbiter_that_was_stopped_hears_that_it_was_left_behind() {
        let start = Instant::now();
        let mut arbiter = joined_to(Arbiter::new(3, Some(Pulse::new(LIMIT, start))));
        assert_eq!(arbiter.handle(2, Notice::YouWereSilent), [2, 1, 0].map(|rank| (rank, silent(0))));
        assert!(arbiter.handle(1, Notice::YouWereSilent).is_empty(), "once");
    }
}
