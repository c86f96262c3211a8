//! What can be driven to its end by polling.

use crate::any_peer::AnyPeer;
use crate::core::{Core, Fault, Progress};
use phalanx_control::group_health::GroupHealth;
use phalanx_core::{Error, Signature};
use phalanx_transport::Direction;
use std::time::Duration;

/// Something that can be driven to its end.
pub trait Operation {
    /// Does all that can be done now.
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault>;
    /// Which links it waits for.
    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>);
    /// What was called.
    fn signature(&self) -> &Signature;
    /// Its place among the group's collectives; 0 for messages.
    fn seq(&self) -> u64;
    /// Payload bytes received, and all there are to receive.
    fn bytes(&self) -> (u64, u64);
    /// Whether its time has begun to run.
    fn is_due(&self, core: &Core) -> bool;
    /// Whether nobody has to wonder that it waits: what it waits for need not come.
    fn may_be_in_vain(&self) -> bool {
        false
    }
    /// Of a message: the other end, as a rank of the group, or `None` while any may send it; and the tag.
    fn message(&self) -> Option<(Option<usize>, u64)> {
        None
    }
    /// The peers that may send it, while any may.
    fn any_peer(&self) -> Option<&AnyPeer> {
        None
    }
    /// The error with which it ends when it is late, where that is no failure of the group.
    fn give_up(&self, _health: &GroupHealth, _waited: Duration) -> Option<Error> {
        None
    }
}
