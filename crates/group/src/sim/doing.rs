//! A call that a simulated rank waits in, with the buffers it owns.

use super::program::{Line, Program};
use crate::engine::any_peer::AnyPeer;
use crate::engine::collective::Memory;
use crate::engine::core::{Core, Fault, Progress};
use crate::engine::operation::Operation;
use crate::engine::task::Task;
use crate::group::backend::Address;
use crate::host::scheduled::ScheduledBackend;
use crate::trace::clock;
use phalanx_core::{OpKind, Result, Signature};
use phalanx_transport::Direction;

/// An operation that a simulated program has begun.
#[derive(Debug)]
pub(super) struct Doing {
    task: Task,
    input: Vec<i64>,
    /// Apart where the operation wants it.
    output: Option<Vec<i64>>,
}

impl Doing {
    /// Call `part` of line `at`, which the rank takes for `line`.
    pub(super) fn begin(
        backend: &ScheduledBackend,
        program: &Program,
        (at, part): (usize, usize),
        rank: usize,
        line: &Line,
    ) -> Result<Self> {
        if line.op == OpKind::RecvAny {
            return Self::to_or_from_any(backend, program, at, rank, line);
        }
        if line.op == OpKind::Send {
            let (address, input) = program.message(at, part, rank, line);
            let (message, number) = backend.message(&address, input.len() * 8)?;
            return Ok(Self { task: Task::Message(message, number), input, output: None });
        }
        let (signature, pattern) = program.call(at, rank, line);
        let rank_in_group = program.group(at, rank).map_or(0, |group| group.rank_of(rank)) as u32;
        backend.check(&signature)?;
        let collective = backend.begin(&signature, backend.planned(&signature, &pattern)?);
        let mut input = program.input(at, rank);
        input.resize(signature.count as usize, 0);
        let output = match line.op {
            OpKind::Scatter if signature.root == Some(rank_in_group) => Some(Vec::new()),
            OpKind::AllToAll => Some(input.clone()),
            _ => None,
        };
        Ok(Self { task: Task::Collective(Box::new(collective)), input, output })
    }

    /// A message to the root, or one that it takes from whichever rank sends first.
    fn to_or_from_any(
        backend: &ScheduledBackend,
        program: &Program,
        at: usize,
        rank: usize,
        line: &Line,
    ) -> Result<Self> {
        let group = program.group(at, rank).expect("whoever calls in a group is in it");
        let (root, tag, len) = (line.root_in(group), at as u64 + 2, line.count);
        let (signature, _) = program.call(at, rank, line);
        if rank == root {
            let (message, number) = backend.any_message(&signature, tag, len * 8)?;
            let (task, input) = (Task::Message(message, number), vec![i64::MIN; len]);
            return Ok(Self { task, input, output: None });
        }
        let (_, mut input) = program.sent_to_any(at, rank);
        input.resize(len, 0);
        let signature = Signature { op: OpKind::Send, ..signature };
        let address = Address { signature, peer: group.rank_of(root), tag };
        let (message, number) = backend.message(&address, len * 8)?;
        Ok(Self { task: Task::Message(message, number), input, output: None })
    }

    /// The rank of the group whose message was taken, where any might have sent it.
    pub(super) fn sender(&self) -> Option<usize> {
        let from = self.task.message().and_then(|(from, _)| from);
        from.filter(|_| self.task.signature().op == OpKind::RecvAny)
    }

    /// Where the result is.
    pub(super) fn result(&self) -> &[i64] {
        self.output.as_ref().unwrap_or(&self.input)
    }

    /// It ended well.
    pub(super) fn ended(&self, backend: &ScheduledBackend) {
        self.task.ended(&backend.engine.health, clock::now);
    }

    /// It failed.
    pub(super) fn failed(&self, backend: &ScheduledBackend) {
        if let Task::Message(message, number) = &self.task {
            message.step_aside(&mut backend.engine.lock());
            backend.engine.health.latch.messages.end_message(*number, message.signature(), false, clock::now);
        }
    }
}

impl Operation for Doing {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        let input: &mut [u8] = bytemuck::cast_slice_mut(&mut self.input);
        let mut memory = match &mut self.output {
            Some(output) => Memory::separate(input, bytemuck::cast_slice_mut(output)),
            None => Memory::in_place(input),
        };
        self.task.poll(core, &mut memory)
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

/// A message as one of its two ends sees it; the receiver's buffer holds nothing yet.
impl Program {
    fn message(&self, at: usize, part: usize, rank: usize, line: &Line) -> (Address, Vec<i64>) {
        let (sends, tag) = self.end_of(at, part, rank);
        let (from, to) = self.ends(at, rank);
        let values = self.sent(at, rank, tag, line.count + tag as usize);
        let len = values.len();
        let (call, _) = self.call(at, rank, line);
        let op = if sends { OpKind::Send } else { OpKind::Recv };
        let signature = Signature { op, count: len as u64, ..call };
        let peer = self.group(at, rank).map_or(0, |group| group.rank_of(if sends { to } else { from }));
        let address = Address { signature, peer, tag };
        (address, if sends { values } else { vec![i64::MIN; len] })
    }
}
