//! The state that all handles share.

use crate::device::Device;
use crate::joint_health::JointHealth;
use crate::stream::Stream;
use std::sync::Mutex;

pub(super) struct Shared {
    pub(super) health: JointHealth,
    pub(super) device: Device,
    /// On which data comes to the host, and on which it goes back: devices do both at a time.
    pub(super) to_host: Stream,
    pub(super) to_device: Stream,
    /// Collectives of the group are performed one after the other, and one here may be made of many.
    pub(super) turn: Mutex<()>,
}
