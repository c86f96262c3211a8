//! Operations whose peers know the secret and send what they like: frames of any length in any order, cut anywhere.

use crate::bootstrap::thread_job::ThreadJob;
use crate::control::group_health::GroupHealth;
use crate::engine::collective::Memory;
use crate::engine::core::Progress;
use crate::engine::task::Task;
use crate::group::backend::Address;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use crate::host::workspace::Pattern;
use arbitrary::{Result, Unstructured};
use phalanx_core::{CallSite, DType, Layout, Method, OpKind, ReduceOp, Signature, WORLD};
use phalanx_transport::thread::{Pipes, ThreadTransport};
use phalanx_transport::{Channel, Direction, Key, Outbound, Transport, Wire};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

const RANKS: usize = 3;
const COUNT_MAX: usize = 40;
const OPS: [OpKind; 8] = [
    OpKind::Recv,
    OpKind::Send,
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Barrier,
];

/// Rank 0 reads what has come, all of it, and no more than it was to get; or says what is wrong with it.
pub fn operations(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let checked = input.arbitrary::<u8>().unwrap_or(0) & 1 == 1;
    let mut world = World::new(checked);
    while !input.is_empty() && world.step(&mut input).is_ok_and(|goes_on| goes_on) {}
}

/// What a peer says, as it is made and as it goes.
struct Peer {
    wire: Wire,
    made: ThreadTransport,
    later: VecDeque<u8>,
    /// `None`: it has closed.
    link: Option<ThreadTransport>,
}

struct Running {
    task: Task,
    key: Key,
    fingerprint: u64,
    buffer: Vec<u64>,
    len: usize,
}

struct World {
    backend: ScheduledBackend,
    _others: Vec<ThreadJob>,
    peers: [Peer; RANKS - 1],
    running: Option<Running>,
    /// Bytes and frames that were ever sent to rank 0: no more can move.
    sent: usize,
}

impl World {
    fn new(checked: bool) -> Self {
        let links = Pipes::new(RANKS);
        let peer = |rank| {
            let aside = Pipes::new(2);
            let wire = Wire::with_checksums(Box::new(aside.end(0)), checked);
            Peer { wire, made: aside.end(1), later: VecDeque::new(), link: Some(links.end(rank)) }
        };
        let mut others = ThreadJob::create(RANKS, Duration::from_secs(60));
        let health = GroupHealth::new(Arc::new(others.remove(0)), WORLD, (0..RANKS).collect());
        let wire = Wire::with_checksums(Box::new(links.end(0)), checked);
        let backend = ScheduledBackend::over(wire, Arc::new(health), BackendChoice::Auto, Arc::default());
        Self { backend, _others: others, peers: [peer(1), peer(2)], running: None, sent: 0 }
    }

    /// Whether the group is still in order.
    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<bool> {
        let what: u8 = input.arbitrary()?;
        let peer = usize::from(what >> 7);
        match what % 8 {
            0 if self.running.is_none() => self.begin(peer, input)?,
            1..=3 => self.frame(peer, what >> 3 & 15, input)?,
            4 => {
                let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
                self.peers[peer].later.extend(input.bytes(len)?);
            }
            5 if what & 0x70 == 0 => self.peers[peer].link = None,
            5 => self.deliver(peer, 1 + usize::from(input.arbitrary::<u8>()?)),
            6 => self.deliver(peer, usize::MAX),
            _ => return Ok(self.poll()),
        }
        Ok(true)
    }

    fn begin(&mut self, peer: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let (what, count) = (usize::from(input.arbitrary::<u8>()?), usize::from(input.arbitrary::<u8>()?));
        let op = OPS[what % OPS.len()];
        let (is_message, is_barrier) = (matches!(op, OpKind::Recv | OpKind::Send), op == OpKind::Barrier);
        let dtype = [DType::U8, DType::F32, DType::I64, DType::F16][what / 8 % 4];
        let count = if is_barrier { 0 } else { 1 + count % COUNT_MAX };
        let reduces = matches!(op, OpKind::AllReduce | OpKind::Reduce);
        let is_rooted = matches!(op, OpKind::Broadcast | OpKind::Reduce | OpKind::Gather);
        let signature = Signature {
            op,
            dtype: (!is_barrier).then_some(dtype),
            count: count as u64,
            reduce: reduces.then_some(ReduceOp::Sum),
            root: is_rooted.then_some((what / 24 % RANKS) as u32),
            detail: 0,
            method: Method::UNSAID,
            site: CallSite { file: "train.rs".into(), line: 1 },
        };
        let len = count * dtype.size();
        let (task, key, fingerprint) = if is_message {
            let fingerprint = Signature { op: OpKind::Send, ..signature.clone() }.fingerprint();
            let address = Address { signature, peer: 1 + peer, tag: 1 };
            let (message, number) = self.backend.message(&address, len).expect("the group is in order");
            (Task::Message(message, number), Key { channel: Channel::Message, id: 1 }, fingerprint)
        } else {
            let pattern = Pattern::of_call(&signature, Layout::even(RANKS, count));
            let planned = self.backend.planned(&signature, &pattern).expect("the group is in order");
            let collective = self.backend.begin(&signature, planned);
            let (id, fingerprint) = (collective.seq(), collective.signature().fingerprint());
            (Task::Collective(Box::new(collective)), Key { channel: Channel::Collective, id }, fingerprint)
        };
        self.running = Some(Running { task, key, fingerprint, buffer: vec![0; len.div_ceil(8)], len });
        Ok(())
    }

    /// A frame much as the operation awaits it. `how`: what is wrong with it.
    fn frame(&mut self, peer: usize, how: u8, input: &mut Unstructured<'_>) -> Result<()> {
        let Some(Running { key, fingerprint, len, .. }) = &self.running else { return Ok(()) };
        let (frame, message): (u8, u8) = (input.arbitrary()?, input.arbitrary()?);
        let part = |of: usize| len / of;
        // Whole, a rank's share, half, or anything.
        let message_len = match message % 4 {
            0 => *len,
            1 => part(RANKS),
            2 => part(2),
            _ => usize::from(message >> 2),
        };
        let frame_len = if frame == 0 { message_len } else { usize::from(frame) - 1 };
        let outbound = Outbound {
            peer: 1,
            key: if how & 1 == 1 { Key { id: key.id ^ u64::from(how >> 1), ..*key } } else { *key },
            ordinal: if how & 1 == 0 { u32::from(how >> 2) } else { 0 },
            fingerprint: if how == 15 { 0 } else { *fingerprint },
            signature: &[],
            message_len: message_len as u64,
        };
        let Peer { wire, made, later, .. } = &mut self.peers[peer];
        assert!(wire.send(&outbound, &[1; 256][..frame_len.min(256)]).is_ok_and(|sent| sent.complete));
        let mut bytes = [0; 1024];
        let n = made.recv(0, &mut bytes).expect("it was sent");
        later.extend(&bytes[..n]);
        Ok(())
    }

    fn deliver(&mut self, peer: usize, most: usize) {
        let Peer { later, link: Some(link), .. } = &mut self.peers[peer] else { return };
        let bytes: Vec<u8> = later.drain(..most.min(later.len())).collect();
        self.sent += link.send(0, &[IoSlice::new(&bytes)]).expect("rank 0 listens");
    }

    /// Does what can be done; whether the group is still in order.
    fn poll(&mut self) -> bool {
        let Some(Running { task, key, buffer, len, .. }) = &mut self.running else { return true };
        let core = &mut *self.backend.engine.lock();
        let mut moves = 0;
        loop {
            let buffer: &mut [u8] = bytemuck::cast_slice_mut(buffer);
            match task.poll(core, &mut Memory::in_place(&mut buffer[..*len])) {
                // What it sends is little, and goes at once.
                Ok(Progress::Moved) => moves += 1,
                Ok(Progress::Idle) => break,
                Ok(Progress::Finished) => {
                    let (received, all) = task.bytes();
                    assert_eq!(received, all, "it has ended before all was here");
                    self.running = None;
                    return true;
                }
                Err(_) => return false,
            }
            assert!(moves <= self.sent + 64, "it goes round and round");
        }
        let (received, all) = task.bytes();
        assert!(received <= all, "{received} bytes were taken where {all} were due");
        let mut wants = Vec::new();
        task.wants(core, &mut wants);
        for (peer, _) in wants.into_iter().filter(|(_, direction)| *direction == Direction::Recv) {
            if let Ok(Some(arrival)) = core.wire.arrival(peer, *key) {
                let more = core.wire.read(peer, *key, &mut [0]);
                assert!(arrival.left > 0 && !matches!(more, Ok(1)), "it idles before bytes that have come");
            }
        }
        true
    }
}
