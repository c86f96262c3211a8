//! For whom a late call waits in the end. Who has not come to it may wait elsewhere, for a rank that may be in no group with those that are late.

use super::{Link, Pending, Standings, With, circle, stuck, waits_for};
use phalanx_core::GroupId;
use std::collections::{BTreeSet, VecDeque};

/// Waits that are told.
const TOLD_MAX: usize = 8;

/// For whom a late call waits.
#[derive(Debug, Default, PartialEq)]
pub struct WaitEnds {
    /// A rank that waits for nobody, or has not answered.
    pub roots: Vec<usize>,
    /// A rank that has an error of its own.
    pub fallen: Vec<usize>,
    /// The waits of those that wait for others, from the absent on.
    pub meanwhile: Vec<Link>,
    /// If there is neither: the circle in which ranks wait for each other.
    pub circle: Vec<Link>,
}

/// Follows the waits from the ranks that have not come to a call to their ends. Nobody waits for those that have `left` a group.
pub fn wait_ends(
    absent: &[usize],
    answers: &Standings,
    has_fallen: impl Fn(usize) -> bool,
    has_left: impl Fn(GroupId, usize) -> bool,
) -> WaitEnds {
    let (mut ends, mut paths) = (WaitEnds::default(), Vec::new());
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from(absent.to_vec()));
    while let Some(rank) = next.pop_front() {
        if !seen.insert(rank) {
            continue;
        }
        if has_fallen(rank) {
            ends.fallen.push(rank);
            continue;
        }
        let waits = answers.get(&rank).map_or(&[][..], |standing| &standing.waits);
        let path: Vec<(&Pending, Vec<usize>)> =
            waits.iter().map(|wait| (wait, behind(rank, wait, answers, &has_left))).collect();
        next.extend(path.iter().flat_map(|(_, ranks)| ranks));
        if path.iter().all(|(_, ranks)| ranks.is_empty()) {
            ends.roots.push(rank);
        } else {
            paths.push((rank, path));
        }
    }
    let is_end = |rank: &usize| ends.roots.contains(rank) || ends.fallen.contains(rank);
    for (rank, path) in paths.iter().take(TOLD_MAX) {
        let nearest =
            path.iter().find_map(|(wait, ranks)| Some((*wait, *ranks.iter().find(|on| is_end(on))?)));
        let first = || path.iter().rev().find_map(|(wait, ranks)| Some((*wait, *ranks.first()?)));
        ends.meanwhile.extend(nearest.or_else(first).map(|(wait, on)| (*rank, wait.clone(), on)));
    }
    // It waits, though for nobody in particular.
    for &root in ends.roots.iter().take(TOLD_MAX) {
        let waits = answers.get(&root).into_iter().flat_map(|standing| &standing.waits);
        ends.meanwhile.extend(waits.filter_map(|wait| match &wait.with {
            With::Any(members, _) => {
                Some((root, wait.clone(), *members.iter().find(|&&other| other != root)?))
            }
            _ => None,
        }));
    }
    if ends.roots.is_empty() && ends.fallen.is_empty() {
        let stuck = stuck(answers);
        let first = absent.iter().find(|rank| stuck.contains(rank));
        ends.circle = first.map_or_else(Vec::new, |&first| circle(first, answers, &stuck));
    }
    ends
}

/// The ranks that have not done their part in an operation of `rank`. Of a rank of which nothing is known, it is assumed.
fn behind(
    rank: usize,
    wait: &Pending,
    answers: &Standings,
    has_left: impl Fn(GroupId, usize) -> bool,
) -> Vec<usize> {
    match &wait.with {
        With::Peer(peer, _) if !answers.contains_key(peer) => vec![*peer],
        With::Peer(..) => waits_for(rank, wait, answers, &answers.keys().copied().collect()),
        // Nobody in particular, as long as one of them may go on.
        With::Any(..) => waits_for(rank, wait, answers, &stuck(answers)),
        With::Members(members, _) => {
            let place = |other: &usize| answers.get(other).and_then(|theirs| theirs.place(wait.group));
            let is_behind = |other: &usize| {
                *other != rank
                    && !has_left(wait.group, *other)
                    && place(other).is_none_or(|place| place < wait.number)
            };
            members.iter().copied().filter(is_behind).collect()
        }
    }
}
