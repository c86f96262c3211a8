//! What a rank believes when no verdict comes.

use super::*;
use crate::job_context::Place;
use crate::line::Control;
use crate::membership::Membership;
use crate::membership::tests::membership_of;
use crate::notice::Verdict;
use phalanx_core::{CallSite, OpKind, WORLD};
use phalanx_transport::Wire;

/// The job of rank 2 of three, whose arbiter says nothing.
#[derive(Debug)]
struct Unheard {
    place: Place,
    membership: Arc<Membership>,
}

impl Control for Unheard {
    fn send(&self, _notice: Notice) -> Result<()> {
        Ok(())
    }
}

impl JobContext for Unheard {
    fn open(&self, _group: GroupId, _members: &[usize]) -> Wire {
        unreachable!("no group has links here")
    }

    fn control(&self) -> &dyn Control {
        self
    }

    fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    fn peer(&self, rank: usize) -> Peer {
        Peer { rank, host: "h".into() }
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn leave(&self, _deadline: &Deadline) {}

    fn remind(&self, _words: &str) {}

    fn ranks_share_cores(&self) -> bool {
        false
    }
}

/// What rank 2 of three says when it has lost rank 1 in this collective, or elsewhere (0), after these ranks have left, each when it had come through so many.
fn believed(seq: u64, left: &[(usize, u64)]) -> Cause {
    let timeout = Duration::from_secs(1);
    let place = Place { rank: 2, world_size: 3, local_rank: 2, local_world_size: 3, timeout };
    let job = Arc::new(Unheard { place, membership: membership_of(2) });
    let health = GroupHealth::new(job.clone(), WORLD, vec![0, 1, 2]);
    for &(rank, finished) in left {
        let left = Verdict::Left { rank, after: None, finished };
        job.membership.hear(left, health.runtime().now());
    }
    let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
    let told = ErrorContext { signature: &signature, seq, message: None, bytes: (0, 0), elapsed: timeout };
    let _ = health.fail(Cause::Lost { peer: job.peer(1), how: Loss::Died }, told);
    health.latch.cause().expect("it has failed").clone()
}

#[test]
fn who_left_before_it_came_through_is_named_and_nobody_who_had_come_through() {
    let lost = |rank, how| Cause::Lost { peer: Peer { rank, host: "h".into() }, how };
    assert_eq!(believed(5, &[(0, 4)]), lost(0, Loss::Left));
    assert_eq!(believed(5, &[(0, 5)]), lost(1, Loss::Died));
    assert_eq!(believed(5, &[(0, 5), (1, 4)]), lost(1, Loss::Left), "of that all have heard");
    assert_eq!(believed(0, &[(0, 4)]), lost(1, Loss::Died), "a message of rank 1 needs no other");
}
