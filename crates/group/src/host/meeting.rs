//! The members of a new group wait for each other before they share memory.

use crate::control::group_health::GroupHealth;
use crate::group::backend::Backend;
use crate::group::call::HostCall;
use crate::group::request::Request;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use phalanx_core::{Deadline, OpKind, Result, Signature};
use std::sync::Arc;
use std::time::Instant;

/// Waits until all members are there, if `call` is one to which they need not come: by a barrier over links, which end with it. While they share
/// memory a rank knows only for which other it waits, and not whether that one is there and waits too.
pub(crate) fn meet(health: &GroupHealth, call: &Signature, deadline: &Deadline) -> Result<()> {
    if call.op != OpKind::NewGroup {
        return Ok(());
    }
    let barrier = HostCall::new(call, Request::Barrier, health.rank, health.members().len())?;
    let links = ScheduledBackend::new(Arc::new(health.meeting()), BackendChoice::Links, Arc::default());
    links.perform(barrier, deadline.remaining(Instant::now()))
}
