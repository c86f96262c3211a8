//! An operation that was begun, with the buffers that it owns.

use crate::control::group_health::GroupHealth;
use crate::engine::any_peer::AnyPeer;
use crate::engine::core::{Core, Fault, Progress};
use crate::engine::operation::Operation;
use crate::engine::task::Task;
use crate::group::memory::{Changed, OwnedBuffer};
use crate::group::pending::Completion;
use crate::group::recv_any::Received;
use crate::host::workspace::Workspace;
use crate::progress::Job;
use crate::trace::clock;
use phalanx_core::{OpKind, Result, Signature};
use phalanx_transport::Direction;
use std::sync::Arc;
use std::time::Duration;

/// Ends in the completion that it was begun with.
pub(super) struct Owned {
    task: Task,
    workspace: Workspace<OwnedBuffer, OwnedBuffer>,
    completion: Completion,
    limit: Duration,
    health: Arc<GroupHealth>,
}

impl Owned {
    pub(super) fn new(
        task: Task,
        workspace: Workspace<OwnedBuffer, OwnedBuffer>,
        completion: Completion,
        limit: Duration,
        health: Arc<GroupHealth>,
    ) -> Self {
        Self { task, workspace, completion, limit, health }
    }

    fn nonsense(task: &Task, health: &GroupHealth, changed: Changed) -> Fault {
        let Signature { op, site, .. } = task.signature();
        Fault::Nonsense { peer: health.rank, what: changed.describe(*op, site) }
    }
}

impl Operation for Owned {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        let Self { task, workspace, health, .. } = self;
        let progress = match workspace.memory() {
            Ok(mut memory) => task.poll(core, &mut memory)?,
            Err(changed) => return Err(Self::nonsense(task, health, changed)),
        };
        if progress == Progress::Finished {
            workspace.finish().map_err(|changed| Self::nonsense(task, health, changed))?;
        }
        Ok(progress)
    }

    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        self.task.wants(core, wants);
    }

    fn signature(&self) -> &Signature {
        self.task.signature()
    }

    fn seq(&self) -> u64 {
        self.task.seq()
    }

    fn bytes(&self) -> (u64, u64) {
        self.task.bytes()
    }

    fn is_due(&self, core: &Core) -> bool {
        self.task.is_due(core)
    }

    fn message(&self) -> Option<(Option<usize>, u64)> {
        self.task.message()
    }

    fn any_peer(&self) -> Option<&AnyPeer> {
        self.task.any_peer()
    }
}

impl Job for Owned {
    fn complete(self: Box<Self>, outcome: Result<()>) {
        let Self { task, completion, workspace, health, .. } = *self;
        // If it failed, the group has, and that says it all.
        if outcome.is_ok() {
            task.ended(&health, clock::now);
        }
        completion.complete(outcome.map(|()| {
            let buffer = workspace.into_buffer();
            match (task.signature().op, task.message()) {
                (OpKind::RecvAny, Some((Some(from), _))) => Box::new(Received::new(buffer, from)),
                _ => buffer,
            }
        }));
    }

    fn is_awaited(&self) -> bool {
        self.completion.is_awaited()
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
