//! The arbiter: decides what happened first. A state machine without sockets, clock or threads.

use super::address_book::AddressBook;
use super::heartbeat::Heartbeat;
use super::limits::{FAILED_MAX, LEFT_MAX, STALLED_MAX, cut};
use super::notice::{Calls, Member, Notice, Verdict};
use super::settings_agreement::SettingsAgreement;
use super::wait_graph::Waits;
use phalanx_core::{Cause, GroupId, Loss, Peer, Signature, WORLD};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

mod deadlocks;
mod first_cause;
mod inquiry;
mod late;
mod losses;

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
    /// How many of them are here.
    present: usize,
    settings: SettingsAgreement,
    failed: HashSet<GroupId>,
    /// How many reports of each rank were believed or looked into.
    failed_by: Vec<usize>,
    /// Verdicts that were sent while ranks were still to come; these hear them first.
    told: Vec<Verdict>,
    lost: BTreeSet<usize>,
    panicked: BTreeSet<usize>,
    /// The ranks whose line has closed, and until when it is open how they ended. In that order.
    ending: VecDeque<(usize, Instant)>,
    /// The ranks that left the job, and the last collective of the group of all ranks that each came through.
    left: BTreeMap<usize, u64>,
    /// The groups that each rank left while it stayed in the job, with its last collective there; oldest first.
    left_groups: Vec<VecDeque<(GroupId, u64)>>,
    /// The rank that reported another's end, of which that one had not said anything itself; in which group, latest, and which end.
    doubted: BTreeMap<(usize, usize), (GroupId, Loss)>,
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
            present: 0,
            settings: SettingsAgreement::default(),
            failed: HashSet::new(),
            failed_by: vec![0; world_size],
            told: Vec::new(),
            lost: BTreeSet::new(),
            panicked: BTreeSet::new(),
            ending: VecDeque::new(),
            left: BTreeMap::new(),
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
            Notice::Join { host, addr, local, settings } => {
                self.present += 1;
                self.members[rank] = Some(Member { peer: Peer { rank, host }, addr, local });
                let mut mail: Mail = self.told.iter().map(|verdict| (rank, verdict.clone())).collect();
                if let Err(reason) = self.settings.join(rank, settings) {
                    mail.extend(self.fail(
                        rank,
                        WORLD,
                        Cause::Aborted { peer: self.peer(rank), reason: cut(&reason) },
                        None,
                    ));
                }
                if self.is_complete() && self.failed.is_empty() && self.lost.is_empty() {
                    let members = AddressBook::new(self.members.iter().flatten().cloned().collect());
                    mail.extend(self.tell_all(Verdict::Complete { members: members.into() }));
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
            Notice::Failed { group, members, cause } => self.reported(rank, group, members, cause),
            Notice::Waits { round, standing } => {
                let step = self.waits.told(rank, round, standing);
                self.step(step)
            }
            Notice::Trace => self.tell_all(Verdict::Trace { by: rank }),
            Notice::Leave { finished } => {
                self.forget(rank);
                if self.left.contains_key(&rank) {
                    return Vec::new();
                }
                self.left.insert(rank, finished);
                let after = self.errors[rank].clone();
                let mut mail = self.tell_all(Verdict::Left { rank, after, finished });
                mail.extend(self.confirm(rank, None));
                mail.extend(self.conclude_answered());
                mail
            }
            Notice::LeaveGroup { group, members, finished } => {
                self.leave_group(rank, group, members, finished)
            }
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
        self.present == self.members.len()
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
    fn leave_group(&mut self, rank: usize, group: GroupId, members: Vec<usize>, finished: u64) -> Mail {
        if self.left.contains_key(&rank) {
            return Vec::new();
        }
        let groups = &mut self.left_groups[rank];
        if groups.len() == LEFT_MAX {
            groups.pop_front();
        }
        groups.push_back((group, finished));
        let others = members.into_iter().filter(|other| *other != rank && !self.lost.contains(other));
        let verdict = Verdict::LeftGroup { group, rank, after: self.errors[rank].clone(), finished };
        let mut mail: Mail = others.map(|other| (other, verdict.clone())).collect();
        mail.extend(self.confirm(rank, Some(group)));
        mail
    }

    /// Whether `rank` left the job, or this group, in order.
    fn has_left(&self, group: GroupId, rank: usize) -> bool {
        self.left.contains_key(&rank) || self.came_to(group, rank).is_some()
    }

    /// The last collective of this group that `rank` came through before it left the group while it stayed in the job.
    fn came_to(&self, group: GroupId, rank: usize) -> Option<u64> {
        let mut left = self.left_groups.get(rank)?.iter();
        left.find(|(of, _)| *of == group).map(|(_, finished)| *finished)
    }

    /// Whether `rank` is known to have left this group, or the job, before it had come through collective `seq`.
    fn left_before(&self, group: GroupId, rank: usize, seq: u64) -> bool {
        let of_job = || self.left.get(&rank).copied().filter(|_| group == WORLD);
        self.came_to(group, rank).or_else(of_job).is_some_and(|finished| finished < seq)
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
            + 16 * self.left_groups[rank].len()
            + host
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
mod tests;
