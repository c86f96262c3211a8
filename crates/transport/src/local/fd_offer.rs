//! A descriptor that is to go to another process.

use crate::LinkFault;
use crate::handshake::Hello;
use phalanx_core::Deadline;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Memory on its way to another process.
#[derive(Debug)]
pub(crate) struct FdOffer {
    /// The name of the socket on which the receiver listens.
    pub(crate) name: String,
    /// The rank that sends, and for which group.
    pub(crate) hello: Hello,
    /// Which memory of that group it is.
    pub(crate) seq: u64,
    pub(crate) memory: Arc<OwnedFd>,
    pub(crate) deadline: Deadline,
    /// Hears how it ended.
    pub(crate) outcome: Sender<Result<(), LinkFault>>,
}
