//! What becomes of a generation's groups when a rank goes on to the next.

use crate::control::notice::Notice;
use crate::realm::Realm;
use phalanx_core::{Cause, Deadline, Signature, WORLD};
use std::time::{Duration, Instant};

/// How long the arbiter may take to tell all.
const VERDICT_TIME: Duration = Duration::from_secs(1);

/// This rank will do nothing more in any group of the realm. Those that lose it with the group of all ranks fail for the same cause, here
/// and on their other members, which must not wait there for a rank that is gone. Where nothing has failed, it leaves in order.
pub(super) fn fail_groups(realm: &dyn Realm, call: &Signature) {
    let groups = realm.watch().groups();
    let first = groups.iter().find(|alarm| alarm.group() == WORLD).and_then(|alarm| alarm.cause().cloned());
    let others = groups.iter().filter(|alarm| alarm.members().len() > 1 && alarm.cause().is_none());
    let Some(first) = first else {
        others.for_each(|alarm| {
            let (group, members) = (alarm.group(), alarm.members().to_vec());
            let _ = realm.control().send(Notice::LeaveGroup { group, members });
        });
        return;
    };
    let cause = match first {
        // Nobody was late in the other groups.
        Cause::TimedOut { .. } => {
            let reason = format!(
                "it has gone on to another generation, by {} at {}, after: {first}",
                call.op, call.site
            );
            Cause::Aborted {
                peer: realm.peer(realm.place().rank),
                reason: crate::control::limits::cut(&reason),
            }
        }
        first => first,
    };
    let others: Vec<_> = others.collect();
    for alarm in &others {
        let (group, members) = (alarm.group(), alarm.members().to_vec());
        let notice = Notice::Failed { group, members, cause: cause.clone() };
        // Who insists is not doubted.
        for notice in [notice.clone(), notice] {
            let _ = realm.control().send(notice);
        }
    }
    // Where the arbiter is on this rank, its word has reached the others when it is heard here.
    let deadline = Deadline::after(Instant::now(), VERDICT_TIME);
    for alarm in others {
        if alarm.wait(&deadline).is_none() {
            alarm.raise(cause.clone(), None);
        }
    }
}
