//! A call that a simulated rank waits in, with the buffers it owns.

use super::program::{Line, Program};
use crate::backend::Address;
use crate::engine::collective::{Collective, Memory};
use crate::engine::message::{Message, Payload};
use crate::engine::{Core, Fault, Operation, Progress};
use crate::host::HostBackend;
use phalanx_core::{OpKind, Result, Signature};
use phalanx_transport::Direction;

#[derive(Debug)]
enum Task {
    Collective(Collective),
    /// With its number.
    Message(Message, u64),
}

/// See the [module](self).
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
        backend: &HostBackend,
        program: &Program,
        (at, part): (usize, usize),
        rank: usize,
        line: &Line,
    ) -> Result<Self> {
        if line.op == OpKind::Send {
            let (address, input) = program.message(at, part, rank, line);
            let (message, number) = backend.message(&address, input.len() * 8)?;
            return Ok(Self { task: Task::Message(message, number), input, output: None });
        }
        let collective = backend.begin(&program.call(at, rank, line))?;
        let mut input = program.input(at, rank);
        input.resize(if line.op == OpKind::Barrier { 0 } else { line.count }, 0);
        let output = match line.op {
            OpKind::Scatter if line.root == rank => Some(Vec::new()),
            OpKind::AllToAll => Some(input.clone()),
            _ => None,
        };
        Ok(Self { task: Task::Collective(collective), input, output })
    }

    /// Where the result is.
    pub(super) fn result(&self) -> &[i64] {
        self.output.as_ref().unwrap_or(&self.input)
    }

    /// It ended well.
    pub(super) fn ended(&self, backend: &HostBackend) {
        let fate = &backend.engine.fate;
        match &self.task {
            Task::Collective(collective) => fate.ended(collective.seq(), collective.signature()),
            Task::Message(message, number) => fate.alarm.messages.end(*number, message.signature()),
        }
    }

    /// It failed.
    pub(super) fn failed(&self, backend: &HostBackend) {
        if let Task::Message(message, number) = &self.task {
            message.step_aside(&mut backend.engine.lock());
            backend.engine.fate.alarm.messages.end_in_vain(*number);
        }
    }
}

impl Operation for Doing {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        let input: &mut [u8] = bytemuck::cast_slice_mut(&mut self.input);
        match (&mut self.task, &mut self.output) {
            (Task::Collective(collective), Some(output)) => {
                collective.poll(core, &mut Memory::Separate(input, bytemuck::cast_slice_mut(output)))
            }
            (Task::Collective(collective), None) => collective.poll(core, &mut Memory::InPlace(input)),
            (Task::Message(message, _), _) if message.signature().op == OpKind::Recv => {
                message.poll(core, &mut Payload::In(input))
            }
            (Task::Message(message, _), _) => message.poll(core, &mut Payload::Out(input)),
        }
    }

    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        match &self.task {
            Task::Collective(collective) => collective.wants(core, wants),
            Task::Message(message, _) => message.wants(wants),
        }
    }

    fn signature(&self) -> &Signature {
        match &self.task {
            Task::Collective(collective) => collective.signature(),
            Task::Message(message, _) => message.signature(),
        }
    }

    fn seq(&self) -> u64 {
        match &self.task {
            Task::Collective(collective) => collective.seq(),
            Task::Message(..) => 0,
        }
    }

    fn bytes(&self) -> (u64, u64) {
        match &self.task {
            Task::Collective(collective) => collective.bytes(),
            Task::Message(message, _) => message.bytes(),
        }
    }

    fn is_due(&self, core: &Core) -> bool {
        match &self.task {
            Task::Collective(collective) => core.turn == collective.seq(),
            Task::Message(message, _) => message.is_due(core),
        }
    }
}

/// A message as one of its two ends sees it; the receiver's buffer holds nothing yet.
impl Program {
    fn message(&self, at: usize, part: usize, rank: usize, line: &Line) -> (Address, Vec<i64>) {
        let (sends, tag) = self.end_of(at, part, rank);
        let (from, to) = self.ends(at);
        let values = self.sent(at, tag, line.count + tag as usize);
        let len = values.len();
        let mut call = self.call(at, rank, line);
        call.signature.op = if sends { OpKind::Send } else { OpKind::Recv };
        call.signature.count = len as u64;
        let peer = if sends { to } else { from };
        let address = Address { signature: call.signature, peer, tag };
        (address, if sends { values } else { vec![i64::MIN; len] })
    }
}
