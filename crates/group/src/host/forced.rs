//! Warnings about ways that are forced and not taken. One rank of a group warns: the others know nothing else.

use crate::control::group_health::GroupHealth;
use crate::group::backend::counted;
use crate::warning::warn_first;
use phalanx_algo::{Kind, Selector, Way};

/// Warns of the forced ways that a group, whose ranks work together `by` this, can never take.
pub(crate) fn warn_of_never(selector: &Selector, health: &GroupHealth, by: Kind) {
    if health.members().len() == 1 {
        // Nothing is moved, in whichever way.
        return;
    }
    for (way, why) in selector.never_taken(by, health.members().len()) {
        warn_not_taken(health, way, &why);
    }
}

/// Words for the description of such a group, behind others: the forced ways that it can never take. None for most.
pub(crate) fn never_taken(selector: &Selector, health: &GroupHealth, by: Kind) -> String {
    let words = |(way, why): (Way, String)| {
        format!("; PHALANX_ALGO: {}={} is not taken: {why}", way.op(), way.name())
    };
    selector.never_taken(by, health.members().len()).into_iter().map(words).collect()
}

/// Warns of a forced way that is not taken.
pub(crate) fn warn_not_taken(health: &GroupHealth, way: Way, why: &str) {
    if health.rank > 0 {
        return;
    }
    let (op, name, ranks) = (way.op(), way.name(), counted(health.members().len(), "rank"));
    let group = health.latch.group();
    let words = format!(
        "PHALANX_ALGO: {op}={name} is not taken in group {group} ({ranks}), but the recommended way: {why}"
    );
    warn_first(&health.peer(0).to_string(), &words);
}
