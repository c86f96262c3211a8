//! The first cause of a group's failure, which all its ranks report: which report counts, whether it is believed at once, and which cause stands behind
//! it, for a rank may be lost of an earlier error.

use super::inquiry::Inquiry;
use super::{Arbiter, Mail};
use crate::notice::{Through, Verdict};
use phalanx_core::{Cause, GroupId, Loss};

impl Arbiter {
    /// A rank reports that a group has failed. The first report that is believed decides.
    pub(super) fn reported(
        &mut self,
        rank: usize,
        group: GroupId,
        members: Vec<usize>,
        cause: Cause,
    ) -> Mail {
        match &cause {
            // Who panics is about to lose all its groups, and the others must not take that for anything else.
            Cause::Lost { peer, how: Loss::Panicked } if peer.rank == rank => self.panicked(rank),
            // A group fails once; its verdict is on its way to the reporter already.
            _ if self.failed.contains(&group) => Vec::new(),
            // A late call was reported before this. What follows from that, or from a rank that was stopped, comes second.
            _ if self.inquiries.contains_key(&group) => self.insist(rank, group),
            _ if Inquiry::is_worth(&cause) => self.inquire(rank, group, members, cause),
            _ => {
                let cause = self.corrected(group, cause);
                if self.doubts(rank, group, &cause) {
                    return Vec::new();
                }
                let (cause, through) = self.origin(self.insisted(group, cause));
                self.fail(rank, group, cause, through)
            }
        }
    }

    /// The group has failed of this, and all hear of it, unless they have.
    pub(super) fn fail(&mut self, reporter: usize, group: GroupId, cause: Cause, through: Through) -> Mail {
        if !self.failed.insert(group) {
            return Vec::new();
        }
        self.failed_by[reporter] += 1;
        self.tell_all(Verdict::Group { group, cause, through })
    }

    /// Sets the cause of whatever becomes of `rank` from now on. Rank 0 takes the arbiter with it, so the others must know before that.
    pub(super) fn set_error(&mut self, rank: usize, cause: Option<Cause>) -> Mail {
        // The panic of a rank stays its cause.
        if !self.panicked.contains(&rank) {
            self.errors[rank].clone_from(&cause);
        }
        if rank == 0 { self.tell_all(Verdict::InError { cause }) } else { Vec::new() }
    }

    /// The origin of `cause`: if that is the loss of a rank that had an error before, the cause of that error; and how it came from there.
    pub(super) fn origin(&self, cause: Cause) -> (Cause, Through) {
        match cause {
            Cause::Lost { peer, how } => match self.errors.get(peer.rank).and_then(Option::as_ref) {
                Some(first) => {
                    let left = matches!(how, Loss::Left | Loss::LeftLast);
                    let how = if left { Loss::LeftAfterError } else { how };
                    (first.clone(), Some((peer, how)))
                }
                None => (Cause::Lost { peer, how }, None),
            },
            other => (other, None),
        }
    }

    /// Corrects what the reporter cannot know: that a closed link was left in order.
    pub(super) fn corrected(&self, group: GroupId, cause: Cause) -> Cause {
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
    pub(super) fn doubts(&mut self, reporter: usize, group: GroupId, cause: &Cause) -> bool {
        let Cause::Lost { peer, how } = cause else { return false };
        let is_confirmed = self.lost.contains(&peer.rank) || self.has_left(group, peer.rank);
        let is_hearsay = matches!(how, Loss::Died | Loss::Unreachable { .. } | Loss::Left | Loss::LeftLast);
        is_hearsay && !is_confirmed && self.doubted.insert((reporter, peer.rank), (group, *how)).is_none()
    }

    /// The meaning of a report that is made again. A rank that closed its links and has said itself why has not died: it has lost another,
    /// which saw only the closed link. If both have seen no more than that, something on the way has closed it, and the higher rank is named. Whichever
    /// of the two insists first, the cause is the same.
    pub(super) fn insisted(&self, group: GroupId, cause: Cause) -> Cause {
        let Cause::Lost { peer, how: Loss::Died } = &cause else { return cause };
        if self.lost.contains(&peer.rank) || self.ending.iter().any(|(ending, _)| *ending == peer.rank) {
            return cause;
        }
        let own_reports = (peer.rank, 0)..=(peer.rank, usize::MAX);
        let own_report = self.doubted.range(own_reports).find(|(_, (of, _))| *of == group);
        let Some((&(from, lost), seen)) = own_report else { return cause };
        let saw_no_more = |seen: &(GroupId, Loss)| *seen == (group, Loss::Died);
        let is_mutual = saw_no_more(seen) && self.doubted.get(&(lost, from)).is_some_and(saw_no_more);
        let (from, lost) = if is_mutual { (from.min(lost), from.max(lost)) } else { (from, lost) };
        Cause::Lost { peer: self.peer(lost), how: Loss::Unreachable { from } }
    }

    /// `rank` says itself that it left this group, or the job: whoever has reported that was right, and waits for it no longer.
    pub(super) fn confirm(&mut self, rank: usize, group: Option<GroupId>) -> Mail {
        let is_it = |(_, peer): &(usize, usize), of: &GroupId| {
            *peer == rank && group.is_none_or(|group| group == *of)
        };
        let reports: Vec<_> = self.doubted.extract_if(.., |key, (of, _)| is_it(key, of)).collect();
        let (cause, through) = self.origin(Cause::Lost { peer: self.peer(rank), how: Loss::Left });
        let fail = |((reporter, _), (of, _))| self.fail(reporter, of, cause.clone(), through.clone());
        reports.into_iter().flat_map(fail).collect()
    }
}
