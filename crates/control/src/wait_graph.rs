//! The graph of waits: ranks that wait for each other in a circle are found, and are asked before anything is said of them.
//! A state machine without sockets, clock or threads.
//!
//! A rank that has waited for a while tells for what, in all its groups, and everything that tells whether it can go on. A set of
//! ranks can't if no operation of any of them can end before another of the set does something new. What ranks told may be old, so
//! they are asked, twice: what has not changed between the two answers was so on all of them at the moment between.

use phalanx_core::{Cause, GroupId, OpKind, Signature};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod ends;

pub use ends::wait_ends;

/// Operations that a rank tells of at most; one with more says that it can go on.
pub const WAITS_MAX: usize = 32;
/// Groups, and peers with messages, that a rank tells of at most.
pub const COUNTS_MAX: usize = 1024;

/// The waits of a rank at one moment, in all its groups that have not failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// All operations that have begun and not ended.
    pub waits: Vec<Pending>,
    /// The program does nothing before one of them ends.
    pub stands: bool,
    /// The last collective called in each group.
    pub places: Vec<(GroupId, u64)>,
    /// By group and peer: messages of which a part was sent, and of which a part has come.
    pub messages: Vec<(GroupId, usize, u64, u64)>,
    /// Bytes that have moved.
    pub bytes: u64,
    /// One of its operations fails for this cause, and the program has not heard of it yet.
    pub failing: Option<Cause>,
}

/// An operation that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    pub group: GroupId,
    /// Its number among the operations of its kind.
    pub number: u64,
    pub call: Signature,
    pub with: With,
}

/// The ranks of the job that must do something for an operation to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum With {
    /// The other end of a message, and its tag.
    Peer(usize, u64),
    /// Any of the members of the group that are still there, and the tag of the message.
    Any(Vec<usize>, u64),
    /// The members of the group; and whether it takes messages off the links while it waits.
    Members(Vec<usize>, bool),
}

impl Standing {
    fn place(&self, group: GroupId) -> Option<u64> {
        self.places.iter().find(|(of, _)| *of == group).map(|(_, place)| *place)
    }

    fn messages(&self, group: GroupId, peer: usize) -> (u64, u64) {
        let found = self.messages.iter().find(|(of, with, ..)| (*of, *with) == (group, peer));
        found.map_or((0, 0), |&(_, _, sent, come)| (sent, come))
    }

    /// Whether it has an operation that may take bytes from `peer`.
    fn reads(&self, group: GroupId, peer: usize) -> bool {
        self.waits.iter().filter(|wait| wait.group == group).any(|wait| match &wait.with {
            With::Peer(from, _) => receives(wait) && *from == peer,
            With::Any(from, _) => from.contains(&peer),
            // It sets aside what comes in between.
            With::Members(_, takes) => *takes,
        })
    }

    fn sends(&self, group: GroupId, peer: usize) -> bool {
        let sends = |wait: &Pending| matches!(wait.with, With::Peer(to, _) if wait.call.op == OpKind::Send && to == peer);
        self.waits.iter().any(|wait| wait.group == group && sends(wait))
    }
}

fn receives(wait: &Pending) -> bool {
    matches!(wait.call.op, OpKind::Recv | OpKind::RecvAny)
}

/// By rank.
pub type Standings = BTreeMap<usize, Standing>;

/// For which of the ranks in `stuck` this operation of `rank` waits, that do nothing for it.
fn waits_for(rank: usize, wait: &Pending, standings: &Standings, stuck: &BTreeSet<usize>) -> Vec<usize> {
    let group = wait.group;
    let standing = |other: usize| standings.get(&other).filter(|_| stuck.contains(&other));
    let sends_nothing = |peer: usize, theirs: &Standing| {
        // What is on its way may be the message.
        let (sent, _) = theirs.messages(group, rank);
        let (_, come) = standings[&rank].messages(group, peer);
        !theirs.sends(group, rank) && sent == come
    };
    match &wait.with {
        With::Peer(peer, _) => {
            let Some(theirs) = standing(*peer) else { return Vec::new() };
            let is_stuck =
                if receives(wait) { sends_nothing(*peer, theirs) } else { !theirs.reads(group, rank) };
            if is_stuck { vec![*peer] } else { Vec::new() }
        }
        // One that does something is enough.
        With::Any(members, _) => {
            let others = || members.iter().copied().filter(|&other| other != rank);
            let is_stuck = |peer: usize| standing(peer).is_some_and(|theirs| sends_nothing(peer, theirs));
            if others().all(is_stuck) { others().collect() } else { Vec::new() }
        }
        With::Members(members, _) => {
            let is_behind = |other: usize| {
                let place = standing(other).and_then(|theirs| theirs.place(group));
                place.is_some_and(|place| place < wait.number)
            };
            members.iter().copied().filter(|&other| other != rank && is_behind(other)).collect()
        }
    }
}

/// The ranks that can't go on before another of them does something: the largest such set.
fn stuck(standings: &Standings) -> BTreeSet<usize> {
    let mut stuck: BTreeSet<usize> =
        standings.iter().filter(|(_, standing)| !standing.waits.is_empty()).map(|(&rank, _)| rank).collect();
    loop {
        let is_stuck = |rank: &usize| {
            standings[rank].waits.iter().all(|wait| !waits_for(*rank, wait, standings, &stuck).is_empty())
        };
        let (stay, go): (BTreeSet<usize>, BTreeSet<usize>) = stuck.iter().partition(|rank| is_stuck(rank));
        if go.is_empty() {
            return stay;
        }
        stuck = stay;
    }
}

/// A wait of a circle: who, in what, for whom.
pub type Link = (usize, Pending, usize);

/// The waits that lead from `first` back to where they have been, all among `stuck`.
fn circle(first: usize, standings: &Standings, stuck: &BTreeSet<usize>) -> Vec<Link> {
    let (mut links, mut rank): (Vec<Link>, usize) = (Vec::new(), first);
    loop {
        if let Some(begin) = links.iter().position(|(who, ..)| *who == rank) {
            let mut circle = links.split_off(begin);
            // From its lowest rank on, wherever it was entered.
            let lowest = circle.iter().enumerate().min_by_key(|(_, (who, ..))| *who).map_or(0, |(at, _)| at);
            circle.rotate_left(lowest);
            return circle;
        }
        let waits = standings.get(&rank).into_iter().flat_map(|standing| &standing.waits);
        let mut waits =
            waits.filter_map(|wait| Some((wait, *waits_for(rank, wait, standings, stuck).first()?)));
        let Some((wait, on)) = waits.next_back() else { return Vec::new() };
        links.push((rank, wait.clone(), on));
        rank = on;
    }
}

/// Ranks that are asked for what they wait.
#[derive(Debug)]
struct Asked {
    round: u64,
    /// The ranks that have not answered.
    open: BTreeSet<usize>,
    answers: Standings,
    /// The first answers.
    before: Option<Standings>,
    /// For how many beats that has lasted.
    beats: u32,
}

/// A survey of ranks' waits, while calls are late.
#[derive(Debug)]
struct Survey {
    round: u64,
    /// The ranks that have not answered.
    open: BTreeSet<usize>,
    answers: Standings,
}

/// A step to be taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Ask these ranks for what they wait.
    Ask {
        round: u64,
        ranks: Vec<usize>,
    },
    /// These wait for each other for ever.
    Deadlock(Vec<Link>),
    /// All have answered the [survey](Waits::survey).
    Surveyed,
}

/// The waits of all ranks, as far as the arbiter has heard of them.
#[derive(Debug, Default)]
pub struct Waits {
    /// The last report of each rank.
    told: Standings,
    round: u64,
    asked: Option<Asked>,
    survey: Option<Survey>,
}

impl Waits {
    /// `rank` tells for what it waits: unasked in round 0.
    pub fn told(&mut self, rank: usize, round: u64, standing: Standing) -> Step {
        if let Some(survey) = self.survey.as_mut().filter(|survey| survey.round == round) {
            survey.open.remove(&rank);
            survey.answers.insert(rank, standing);
            return if survey.open.is_empty() { Step::Surveyed } else { Step::Nothing };
        }
        self.told.insert(rank, standing.clone());
        match &mut self.asked {
            Some(asked) if asked.round == round => {
                if asked.open.remove(&rank) {
                    asked.answers.insert(rank, standing);
                }
                if asked.open.is_empty() { self.compare() } else { Step::Nothing }
            }
            Some(_) => Step::Nothing,
            None => self.suspect(Some(rank)),
        }
    }

    /// Some time has passed: who seemed to be in a circle may be so still.
    pub fn beat(&mut self) -> Step {
        if let Some(asked) = &mut self.asked {
            asked.beats += 1;
            if asked.beats < 2 {
                return Step::Nothing;
            }
            // Somebody does not answer.
            self.asked = None;
        }
        self.suspect(None)
    }

    /// Asks those that seem to wait for each other, by what they told last; all, or with `rank`.
    fn suspect(&mut self, rank: Option<usize>) -> Step {
        let suspects = match rank {
            // Most that wait, wait for a rank that has told of no wait.
            Some(rank) => stuck(&self.reached(rank)),
            None => stuck(&self.told),
        };
        if suspects.is_empty() || rank.is_some_and(|rank| !suspects.contains(&rank)) {
            return Step::Nothing;
        }
        self.ask(suspects, None)
    }

    /// The reports of the ranks for which `rank` waits, and for which those wait, and so on.
    fn reached(&self, rank: usize) -> Standings {
        let (mut reached, mut next) = (Standings::new(), vec![rank]);
        while let Some(rank) = next.pop() {
            let Some(standing) = self.told.get(&rank).filter(|_| !reached.contains_key(&rank)) else {
                continue;
            };
            reached.insert(rank, standing.clone());
            for wait in &standing.waits {
                match &wait.with {
                    With::Peer(peer, _) => next.push(*peer),
                    With::Any(members, _) => next.extend(members),
                    With::Members(members, _) => {
                        let is_behind = |other: &&usize| {
                            let place = self.told.get(other).and_then(|theirs| theirs.place(wait.group));
                            place.is_some_and(|place| place < wait.number)
                        };
                        next.extend(members.iter().filter(is_behind));
                    }
                }
            }
        }
        reached
    }

    fn ask(&mut self, ranks: BTreeSet<usize>, before: Option<Standings>) -> Step {
        self.round += 1;
        let (round, open) = (self.round, ranks.clone());
        self.asked = Some(Asked { round, open, answers: Standings::new(), before, beats: 0 });
        Step::Ask { round, ranks: ranks.into_iter().collect() }
    }

    /// Compares the answers, once all have come.
    fn compare(&mut self) -> Step {
        let Some(Asked { mut answers, before, .. }) = self.asked.take() else { return Step::Nothing };
        answers.retain(|rank, standing| {
            standing.stands && before.as_ref().is_none_or(|before| before.get(rank) == Some(standing))
        });
        let stuck = stuck(&answers);
        match (stuck.first(), before) {
            (None, _) => Step::Nothing,
            (Some(_), None) => self.ask(stuck, Some(answers)),
            (Some(&first), Some(_)) => Step::Deadlock(circle(first, &answers, &stuck)),
        }
    }

    /// A call is late: `ranks` are asked for what they wait. While a survey goes on, only those of them again that waited for nothing.
    pub fn survey(&mut self, ranks: BTreeSet<usize>) -> Step {
        let Some(survey) = &mut self.survey else {
            self.round += 1;
            let (round, asked) = (self.round, ranks.iter().copied().collect());
            self.survey = Some(Survey { round, open: ranks, answers: Standings::new() });
            return Step::Ask { round, ranks: asked };
        };
        let Survey { round, open, answers } = survey;
        let is_idle = |rank: &usize| answers.get(rank).is_some_and(|standing| standing.waits.is_empty());
        let idle: Vec<usize> = ranks.into_iter().filter(is_idle).collect();
        for rank in &idle {
            answers.remove(rank);
            open.insert(*rank);
        }
        Step::Ask { round: *round, ranks: idle }
    }

    /// No answer of `rank` to the survey will come.
    pub fn gone(&mut self, rank: usize) {
        if let Some(survey) = &mut self.survey {
            survey.open.remove(&rank);
        }
    }

    /// Whether everybody has answered the survey, or is not waited for any more.
    pub fn is_surveyed(&self) -> bool {
        self.survey.as_ref().is_none_or(|survey| survey.open.is_empty())
    }

    /// Closes the survey with the answers that have come so far.
    pub fn close_survey(&mut self) {
        if let Some(survey) = &mut self.survey {
            survey.open.clear();
        }
    }

    /// Forgets the survey.
    pub fn end_survey(&mut self) {
        self.survey = None;
    }

    /// The answers to the survey.
    pub fn answers(&self) -> Option<&Standings> {
        self.survey.as_ref().map(|survey| &survey.answers)
    }

    /// About how many bytes are held for `rank`.
    #[cfg(feature = "__fuzz")]
    pub fn held(&self, rank: usize) -> usize {
        let size = |standing: &Standing| {
            let members = |wait: &Pending| {
                if let With::Members(of, _) | With::Any(of, _) = &wait.with { of.len() } else { 0 }
            };
            let waits = standing.waits.iter().map(|wait| 300 + wait.call.site.file.len() + 8 * members(wait));
            let cause = standing.failing.as_ref().map_or(0, |_| 500);
            waits.sum::<usize>() + 16 * standing.places.len() + 32 * standing.messages.len() + cause
        };
        let asked = self.asked.iter().flat_map(|asked| [Some(&asked.answers), asked.before.as_ref()]);
        let all = asked.chain([self.answers()]).flatten().chain([&self.told]);
        all.filter_map(|standings| standings.get(&rank)).map(size).sum()
    }
}

#[cfg(test)]
mod tests;
