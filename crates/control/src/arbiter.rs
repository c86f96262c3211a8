//! The arbiter: decides what happened first. A state machine without sockets, clock or threads.

use super::heartbeat::{Due, Heartbeat};
use super::limits::{FAILED_MAX, LEFT_MAX, STALLED_MAX, cut};
use super::notice::{Calls, Member, Notice, Through, Verdict};
use super::outage::{Silence, judge};
use super::terms;
use super::waits::Waits;
use phalanx_core::{Cause, GroupId, Loss, Peer, Signature, WORLD};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

mod circles;
mod inquiry;
mod late;

use inquiry::Inquiry;

/// The first place at which two ranks called different things.
fn disagreement<'c>(ours: &'c Calls, theirs: &'c Calls) -> Option<(u64, &'c Signature, &'c Signature)> {
    let both = |(seq, ours): &'c (u64, Signature)| {
        theirs.iter().find(|(s, _)| s == seq).map(|(_, theirs)| (*seq, ours, theirs))
    };
    ours.iter().filter_map(both).find(|(_, ours, theirs)| !ours.matches(theirs))
}

/// Verdicts to send, each with the rank that it is for.
pub type Mail = Vec<(usize, Verdict)>;

/// Decides, from what all ranks report, what went wrong first.
#[derive(Debug)]
pub struct Arbiter {
    members: Vec<Option<Member>>,
    /// The terms of the first rank that came.
    terms: Option<(usize, String)>,
    failed: HashSet<GroupId>,
    /// How many reports of each rank were believed or looked into.
    failed_by: Vec<usize>,
    /// Verdicts that were sent while ranks were still to come; these hear them first.
    told: Vec<Verdict>,
    lost: BTreeSet<usize>,
    panicked: BTreeSet<usize>,
    /// The ranks whose line has closed, and until when it is open how they ended. In that order.
    ending: VecDeque<(usize, Instant)>,
    left: BTreeSet<usize>,
    /// The groups that each rank left while it stayed in the job; oldest first.
    left_groups: Vec<VecDeque<GroupId>>,
    /// The rank that reported another's end, of which that one had not said anything itself; and in which group, latest.
    doubted: BTreeMap<(usize, usize), GroupId>,
    /// Each rank's last report of its latest collectives, in the groups where it reported latest; oldest first.
    calls: Vec<VecDeque<(GroupId, Calls)>>,
    /// Calls that were late, while ranks are asked about them.
    inquiries: HashMap<GroupId, Inquiry>,
    /// For what an operation of each rank has failed. What becomes of the rank then follows from that, unless it goes on.
    errors: Vec<Option<Cause>>,
    /// The graph of waits between ranks.
    waits: Waits,
    /// The heartbeats of the ranks that are here; `None` where silence means nothing.
    heartbeat: Option<Heartbeat>,
    /// The ranks whose hosts have answered lately though nothing was heard of them; `None` where nobody asks.
    answering: Option<BTreeSet<IpAddr>>,
}

impl Arbiter {
    /// Of a job of so many ranks, none of which is here yet. With a heartbeat, silence is a loss.
    pub fn new(world_size: usize, heartbeat: Option<Heartbeat>) -> Self {
        Self {
            members: vec![None; world_size],
            terms: None,
            failed: HashSet::new(),
            failed_by: vec![0; world_size],
            told: Vec::new(),
            lost: BTreeSet::new(),
            panicked: BTreeSet::new(),
            ending: VecDeque::new(),
            left: BTreeSet::new(),
            left_groups: vec![VecDeque::new(); world_size],
            doubted: BTreeMap::new(),
            calls: vec![VecDeque::new(); world_size],
            inquiries: HashMap::new(),
            errors: vec![None; world_size],
            waits: Waits::default(),
            heartbeat,
            answering: None,
        }
    }

    /// Whether a process may connect as `rank`: once, ever.
    pub fn admits(&self, rank: usize) -> bool {
        self.members.get(rank).is_some_and(Option::is_none)
    }

    /// Takes a notice from `rank`.
    pub fn handle(&mut self, rank: usize, notice: Notice) -> Mail {
        if let Err(what) = self.check(rank, &notice) {
            return self.fail(rank, WORLD, Cause::Protocol { peer: self.peer(rank), what }, None);
        }
        match notice {
            Notice::Join { host, addr, local, terms } => {
                self.members[rank] = Some(Member { peer: Peer { rank, host }, addr, local });
                let mut mail: Mail = self.told.iter().map(|verdict| (rank, verdict.clone())).collect();
                let (first, theirs) = self.terms.get_or_insert_with(|| (rank, terms.clone()));
                if *theirs != terms {
                    let reason = terms::difference((rank, &terms), (*first, theirs));
                    mail.extend(self.fail(
                        rank,
                        WORLD,
                        Cause::Aborted { peer: self.peer(rank), reason: cut(&reason) },
                        None,
                    ));
                }
                if self.is_complete() && self.failed.is_empty() && self.lost.is_empty() {
                    let members = self.members.iter().flatten().cloned().collect();
                    mail.extend(self.tell_all(Verdict::Complete { members }));
                }
                mail
            }
            Notice::WhoIsMissing => {
                let ranks = (0..self.members.len()).filter(|&r| self.members[r].is_none()).collect();
                vec![(rank, Verdict::Missing { ranks })]
            }
            Notice::Calls { group, calls } => self.called(rank, group, calls),
            Notice::InError { cause } => self.set_error(rank, Some(cause)),
            Notice::GoesOn => self.set_error(rank, None),
            // Who panics is about to lose all its groups, and the others must not take that for anything else.
            Notice::Failed { cause: Cause::Lost { peer, how: Loss::Panicked }, .. } if peer.rank == rank => {
                self.panicked(rank)
            }
            // A group fails once; its verdict is on its way to the reporter already.
            Notice::Failed { group, .. } if self.failed.contains(&group) => Vec::new(),
            // A late call was reported before this. What follows from that, or from a rank that was stopped, comes second.
            Notice::Failed { group, .. } if self.inquiries.contains_key(&group) => self.insist(rank, group),
            Notice::Failed { group, members, cause } if Inquiry::is_worth(&cause) => {
                self.inquire(rank, group, members, cause)
            }
            Notice::Waits { round, standing } => {
                let step = self.waits.told(rank, round, standing);
                self.step(step)
            }
            Notice::Failed { group, cause, .. } => {
                let cause = self.corrected(group, cause);
                if self.doubts(rank, group, &cause) {
                    return Vec::new();
                }
                let (cause, through) = self.origin(self.insisted(group, cause));
                self.fail(rank, group, cause, through)
            }
            Notice::Trace => self.tell_all(Verdict::Trace { by: rank }),
            Notice::Leave => {
                self.forget(rank);
                if !self.left.insert(rank) {
                    return Vec::new();
                }
                let after = self.errors[rank].clone();
                let mut mail = self.tell_all(Verdict::Left { rank, after });
                mail.extend(self.confirm(rank, None));
                mail.extend(self.conclude_answered());
                mail
            }
            Notice::LeaveGroup { group, members } => self.leave_group(rank, group, members),
            Notice::WhoIsBehind { group, seq, members } => self.behind(rank, group, seq, members),
            Notice::Beat => Vec::new(),
            // Of a rank that was given up itself, that is no news.
            Notice::YouWereSilent if self.lost.contains(&rank) => Vec::new(),
            Notice::YouWereSilent => self.silent(0),
        }
    }

    /// Refuses a notice that no correct rank sends.
    fn check(&self, rank: usize, notice: &Notice) -> Result<(), String> {
        notice.check(self.members.len(), self.is_complete())?;
        match notice {
            Notice::Join { .. } if !self.admits(rank) => Err("it joined a second time".into()),
            Notice::Failed { .. } if self.failed_by[rank] >= FAILED_MAX => {
                Err(format!("more than {FAILED_MAX} groups have failed by its word"))
            }
            _ => Ok(()),
        }
    }

    fn is_complete(&self) -> bool {
        self.members.iter().all(Option::is_some)
    }

    /// The line of `rank` has closed.
    pub fn disconnected(&mut self, rank: usize, how: Loss) -> Mail {
        if self.left.contains(&rank) || !self.lost.insert(rank) {
            return Vec::new();
        }
        self.lose(rank, how)
    }

    /// The line of `rank` has closed without a farewell. Somebody may say until then how its process ended; see [`settle`](Self::settle).
    pub fn closed(&mut self, rank: usize, until: Instant) -> Mail {
        if self.left.contains(&rank) || self.lost.contains(&rank) || self.errors[rank].is_some() {
            return self.disconnected(rank, Loss::Died);
        }
        self.ending.push_back((rank, until));
        Vec::new()
    }

    /// Decides on those whose lines have closed, in that order: nobody who ended later is to be taken for the first.
    pub fn settle(&mut self, now: Instant, exit_of: impl Fn(usize) -> Option<Loss>) -> Mail {
        let mut mail = Vec::new();
        while let Some(&(rank, until)) = self.ending.front() {
            let Some(how) = exit_of(rank).or_else(|| (now >= until).then_some(Loss::Died)) else { break };
            self.ending.pop_front();
            mail.extend(self.disconnected(rank, how));
        }
        mail
    }

    /// Whether it is open how a process ended: [`settle`](Self::settle) again soon.
    pub fn is_settling(&self) -> bool {
        !self.ending.is_empty()
    }

    /// `rank` said something, whatever it was.
    pub fn heard(&mut self, rank: usize, now: Instant) {
        let expected = !self.admits(rank) && !self.left.contains(&rank) && !self.lost.contains(&rank);
        if let Some(heartbeat) = self.heartbeat.as_mut().filter(|_| expected) {
            heartbeat.heard(rank, now);
        }
    }

    /// When to [`poll`](Self::poll), if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.heartbeat.as_ref().map(Heartbeat::deadline)
    }

    /// Does what is due. Call it after everything that has arrived was handled.
    pub fn poll(&mut self, now: Instant) -> Mail {
        // What the others said meanwhile counts: this process may have been stopped.
        let mut mail = self.close_insisted();
        let Some(heartbeat) = &mut self.heartbeat else { return mail };
        let Due { beat, silent } = heartbeat.poll(now);
        for rank in silent {
            let meaning = self.meaning(rank, now);
            mail.extend(match meaning {
                Silence::Peer => self.silent(rank),
                // The ranks of this host hear of it; the others find out by themselves.
                Silence::Itself => self.silent(0),
                Silence::Between => self.apart(rank),
            });
        }
        if beat {
            let step = self.waits.beat();
            mail.extend(self.step(step));
            // To all at one moment: so all notice at one moment when it ends.
            mail.extend(self.tell_all(Verdict::Beat));
        }
        mail
    }

    /// Declares a rank lost whose line stands, but from which nothing comes. It is told as well: it may only have been stopped, and must not go on.
    fn silent(&mut self, rank: usize) -> Mail {
        let Some(after) = self.heartbeat.as_ref().map(Heartbeat::limit) else { return Vec::new() };
        if self.left.contains(&rank) || self.lost.contains(&rank) {
            return Vec::new();
        }
        let mail = self.lose(rank, Loss::Silent { after });
        self.lost.insert(rank);
        mail
    }

    /// Declares a rank lost that is on the only other host, when the network is cut.
    fn apart(&mut self, rank: usize) -> Mail {
        let Some(after) = self.heartbeat.as_ref().map(Heartbeat::limit) else { return Vec::new() };
        if self.left.contains(&rank) || !self.lost.insert(rank) {
            return Vec::new();
        }
        self.lose(rank, Loss::Apart { from: 0, after })
    }

    /// The addresses of ranks of which nothing was heard for a while, and of all others that may say whether the network stands.
    pub fn in_doubt(&self, now: Instant) -> Vec<SocketAddr> {
        let is_in_doubt =
            self.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.in_doubt(now).next().is_some());
        let own = self.addr(0).map(|addr| addr.ip());
        let remote = |addr: &SocketAddr| Some(addr.ip()) != own;
        match is_in_doubt {
            true => self.members.iter().flatten().map(|member| member.addr).filter(remote).collect(),
            false => Vec::new(),
        }
    }

    /// Which hosts have answered lately.
    pub fn answered(&mut self, hosts: BTreeSet<IpAddr>) {
        self.answering = Some(hosts);
    }

    fn addr(&self, rank: usize) -> Option<SocketAddr> {
        Some(self.members.get(rank)?.as_ref()?.addr)
    }

    /// The end that is in trouble when `rank` is silent.
    fn meaning(&self, rank: usize, now: Instant) -> Silence {
        let (Some(answering), Some(own), Some(peer)) = (&self.answering, self.addr(0), self.addr(rank))
        else {
            return Silence::Peer;
        };
        let mut hosts: BTreeMap<IpAddr, bool> = answering.iter().map(|host| (*host, true)).collect();
        for member in self.members.iter().flatten() {
            let is_heard = self.heartbeat.as_ref().is_some_and(|heartbeat| {
                let at = heartbeat.heard_at(member.peer.rank);
                at.is_some_and(|at| now.saturating_duration_since(at) < heartbeat.limit() / 2)
            });
            *hosts.entry(member.addr.ip()).or_default() |= is_heard;
        }
        judge(own.ip(), peer.ip(), &hosts.into_iter().collect::<Vec<_>>())
    }

    fn lose(&mut self, rank: usize, how: Loss) -> Mail {
        self.forget(rank);
        let (cause, through) = self.origin(Cause::Lost { peer: self.peer(rank), how });
        let mut mail = self.tell_all(Verdict::Lost { rank, is_gone: true, cause, through });
        // Perhaps it was the last that had not answered.
        mail.extend(self.conclude_answered());
        mail
    }

    /// Declares a rank lost that panicked. It is still there, and hears what comes of it.
    fn panicked(&mut self, rank: usize) -> Mail {
        let (cause, through) = self.origin(Cause::Lost { peer: self.peer(rank), how: Loss::Panicked });
        // That it ends after this is no news.
        self.errors[rank].get_or_insert_with(|| cause.clone());
        if !self.panicked.insert(rank) {
            return Vec::new();
        }
        self.tell_all(Verdict::Lost { rank, is_gone: false, cause, through })
    }

    /// Sets the cause of whatever becomes of `rank` from now on. Rank 0 takes the arbiter with it, so the others must know before that.
    fn set_error(&mut self, rank: usize, cause: Option<Cause>) -> Mail {
        // The panic of a rank stays its cause.
        if !self.panicked.contains(&rank) {
            self.errors[rank].clone_from(&cause);
        }
        if rank == 0 { self.tell_all(Verdict::InError { cause }) } else { Vec::new() }
    }

    /// The origin of `cause`: if that is the loss of a rank that had an error before, the cause of that error; and how it came from there.
    fn origin(&self, cause: Cause) -> (Cause, Through) {
        match cause {
            Cause::Lost { peer, how } => match self.errors.get(peer.rank).and_then(Option::as_ref) {
                Some(first) => {
                    let how = if how == Loss::Left { Loss::LeftAfterError } else { how };
                    (first.clone(), Some((peer, how)))
                }
                None => (Cause::Lost { peer, how }, None),
            },
            other => (other, None),
        }
    }

    /// Nothing more is expected from `rank`.
    fn forget(&mut self, rank: usize) {
        self.waits.gone(rank);
        for inquiry in self.inquiries.values_mut() {
            inquiry.heard(rank);
        }
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.forget(rank);
        }
    }

    /// Those who wait for it there are told.
    fn leave_group(&mut self, rank: usize, group: GroupId, members: Vec<usize>) -> Mail {
        if self.left.contains(&rank) {
            return Vec::new();
        }
        let groups = &mut self.left_groups[rank];
        if groups.len() == LEFT_MAX {
            groups.pop_front();
        }
        groups.push_back(group);
        let others = members.into_iter().filter(|other| *other != rank && !self.lost.contains(other));
        let after = self.errors[rank].clone();
        let verdict = |other| (other, Verdict::LeftGroup { group, rank, after: after.clone() });
        let mut mail: Mail = others.map(verdict).collect();
        mail.extend(self.confirm(rank, Some(group)));
        mail
    }

    /// Whether `rank` left the job, or this group, in order.
    fn has_left(&self, group: GroupId, rank: usize) -> bool {
        self.left.contains(&rank) || self.left_groups.get(rank).is_some_and(|left| left.contains(&group))
    }

    /// Ranks that wait for each other may be at different places: one has come through a call that another, who took it
    /// for something else, still waits in.
    fn called(&mut self, rank: usize, group: GroupId, calls: Calls) -> Mail {
        let own = &mut self.calls[rank];
        own.retain(|(of, _)| *of != group);
        if own.len() == STALLED_MAX {
            own.pop_front();
        }
        own.push_back((group, calls));
        let ours = self.latest(group, rank).expect("it was just told");
        let found = (0..self.members.len())
            .find_map(|other| Some((other, disagreement(ours, self.latest(group, other)?)?)));
        if let Some((other, (seq, ours, theirs))) = found {
            let mut sides = [(self.peer(rank), ours.clone()), (self.peer(other), theirs.clone())];
            sides.sort_by_key(|(peer, _)| peer.rank);
            let [left, right] = sides;
            return self.fail(rank, group, Cause::Mismatch { seq, tag: None, left, right }, None);
        }
        let is_last = self.inquiries.get_mut(&group).is_some_and(|inquiry| inquiry.heard(rank));
        if is_last { self.conclude_answered() } else { Vec::new() }
    }

    /// The last report of `rank` of its latest collectives in `group`.
    fn latest(&self, group: GroupId, rank: usize) -> Option<&Calls> {
        self.calls.get(rank)?.iter().find(|(of, _)| *of == group).map(|(_, calls)| calls)
    }

    /// The last collective that this rank is known to have called; 0 for none.
    fn place(&self, group: GroupId, rank: usize) -> u64 {
        let latest = self.latest(group, rank).and_then(|calls| calls.last());
        latest.map_or(0, |(seq, _)| *seq)
    }

    /// Answers with what is known now, and asks the ranks that seem late: a rank that asks again hears what they say.
    fn behind(&self, asker: usize, group: GroupId, seq: u64, members: Vec<usize>) -> Mail {
        let is_behind = |&r: &usize| {
            r != asker && !self.has_left(group, r) && !self.lost.contains(&r) && self.place(group, r) < seq
        };
        let ranks: Vec<usize> = members.into_iter().filter(is_behind).collect();
        let mut mail: Mail = ranks.iter().map(|&r| (r, Verdict::WhereAreYou { group })).collect();
        mail.push((asker, Verdict::Behind { group, seq, ranks }));
        mail
    }

    /// Corrects what the reporter cannot know: that a closed link was left in order.
    fn corrected(&self, group: GroupId, cause: Cause) -> Cause {
        match cause {
            Cause::Lost { peer, how: Loss::Died | Loss::Unreachable { .. } }
                if self.has_left(group, peer.rank) =>
            {
                Cause::Lost { peer, how: Loss::Left }
            }
            other => other,
        }
    }

    /// Whether to wait before believing `cause`: a rank that closes its links may be about to say why, on its own line, and if it is dead
    /// that line closes too. A reporter that insists is believed: then the network has cut only the two of them apart.
    fn doubts(&mut self, reporter: usize, group: GroupId, cause: &Cause) -> bool {
        let Cause::Lost { peer, how } = cause else { return false };
        let is_confirmed = self.lost.contains(&peer.rank) || self.has_left(group, peer.rank);
        let is_hearsay = matches!(how, Loss::Died | Loss::Unreachable { .. } | Loss::Left);
        is_hearsay && !is_confirmed && self.doubted.insert((reporter, peer.rank), group).is_none()
    }

    /// The meaning of a report that is made again. A rank that closed its links and has said itself why has not died: it has lost another,
    /// which saw only the closed link. Whichever of the two insists first, the cause is the same.
    fn insisted(&self, group: GroupId, cause: Cause) -> Cause {
        let Cause::Lost { peer, how: Loss::Died } = &cause else { return cause };
        if self.lost.contains(&peer.rank) || self.ending.iter().any(|(ending, _)| *ending == peer.rank) {
            return cause;
        }
        let own_reports = (peer.rank, 0)..=(peer.rank, usize::MAX);
        match self.doubted.range(own_reports).find(|(_, of)| **of == group) {
            Some((&(from, lost), _)) => {
                Cause::Lost { peer: self.peer(lost), how: Loss::Unreachable { from } }
            }
            None => cause,
        }
    }

    /// `rank` says itself that it left this group, or the job: whoever has reported that was right, and waits for it no longer.
    fn confirm(&mut self, rank: usize, group: Option<GroupId>) -> Mail {
        let is_it = |(_, peer): &(usize, usize), of: &GroupId| {
            *peer == rank && group.is_none_or(|group| group == *of)
        };
        let reports: Vec<_> = self.doubted.extract_if(.., |key, of| is_it(key, of)).collect();
        let (cause, through) = self.origin(Cause::Lost { peer: self.peer(rank), how: Loss::Left });
        let fail = |((reporter, _), of)| self.fail(reporter, of, cause.clone(), through.clone());
        reports.into_iter().flat_map(fail).collect()
    }

    fn fail(&mut self, reporter: usize, group: GroupId, cause: Cause, through: Through) -> Mail {
        if !self.failed.insert(group) {
            return Vec::new();
        }
        self.failed_by[reporter] += 1;
        self.tell_all(Verdict::Group { group, cause, through })
    }

    fn peer(&self, rank: usize) -> Peer {
        let known = self.members.get(rank).and_then(Option::as_ref);
        known.map_or_else(|| Peer { rank, host: "never joined".into() }, |member| member.peer.clone())
    }

    fn tell_all(&mut self, verdict: Verdict) -> Mail {
        let stays = !matches!(verdict, Verdict::Beat | Verdict::Trace { .. } | Verdict::InError { .. });
        if stays && !self.is_complete() {
            self.told.push(verdict.clone());
        }
        // Also to those who have left: rank 0 says so first and stays until it has heard it from all others.
        let here = |r: &usize| self.members[*r].is_some() && !self.lost.contains(r);
        // To rank 0 last: it may end its process, and the arbiter with it, as soon as it hears of a failure.
        (0..self.members.len()).rev().filter(here).map(|r| (r, verdict.clone())).collect()
    }
}

#[cfg(feature = "__fuzz")]
impl Arbiter {
    /// About how many bytes it holds for `rank`.
    pub fn held(&self, rank: usize) -> usize {
        let calls = |calls: &Calls| calls.iter().map(|(_, call)| 200 + call.site.file.len()).sum::<usize>();
        let calls: usize = self.calls[rank].iter().map(|(_, told)| 100 + calls(told)).sum();
        let doubted = self.doubted.range((rank, 0)..(rank + 1, 0)).count();
        let host = self.members[rank].as_ref().map_or(0, |member| member.peer.host.len());
        self.waits.held(rank)
            + calls
            + 50 * (self.failed_by[rank] + doubted)
            + 8 * self.left_groups[rank].len()
            + host
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
mod tests;
