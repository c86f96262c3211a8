//! A backend that performs its operations itself: ranks post their parts on a board in this process. Failures, limits and errors come from
//! the job's [`Health`], so they name the culprit as those of phalanx's own backends do.

use phalanx::backend::{
    Address, Backend, BackendFactory, BackendKind, Buffers, Bytes, Deadline, GroupId, Health, HostCall,
    JobHandle, OnTimeout, OwnedCall, Pending, Request, Signature, register_backend,
};
use phalanx::error::{Cause, Loss, OpKind, Peer};
use phalanx::{Error, ProcessGroup, ReduceOp, Result};
use phalanx_testkit::World;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What each rank has posted for a collective of a group.
type Parts = HashMap<usize, (Signature, Vec<u8>)>;

#[derive(Debug, Default)]
struct Board {
    posted: Mutex<HashMap<(GroupId, u64), Parts>>,
    changed: Condvar,
}

/// The kind is its board: all ranks of a process share it.
#[derive(Debug)]
struct Posting(Arc<Board>);

impl BackendKind for Posting {
    fn about(&self) -> &str {
        "a board in this process"
    }

    fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
        Ok(Arc::new(Factory { job: job.clone(), board: self.0.clone() }))
    }
}

#[derive(Debug)]
struct Factory {
    job: JobHandle,
    board: Arc<Board>,
}

impl BackendFactory for Factory {
    fn create(
        &self,
        id: GroupId,
        members: Vec<usize>,
        _call: &Signature,
        _deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>> {
        let (health, timeout) = (self.job.health(id, members), self.job.timeout());
        Ok(Arc::new(BoardBackend { health, timeout, board: self.board.clone() }))
    }
}

#[derive(Debug)]
struct BoardBackend {
    health: Health,
    timeout: Duration,
    board: Arc<Board>,
}

impl BoardBackend {
    /// The parts of all ranks, in their order, of the collective that comes next.
    fn exchange(&self, signature: &Signature, part: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>> {
        let mut running = self.health.begin(signature, limit)?;
        let key = (self.health.id(), running.seq());
        let mut posted = self.board.posted.lock().unwrap();
        posted.entry(key).or_default().insert(self.health.rank(), (signature.clone(), part.to_vec()));
        self.board.changed.notify_all();
        let mut all = Vec::new();
        for rank in 0..self.health.members().len() {
            let (theirs, bytes) = loop {
                if let Some(part) = posted[&key].get(&rank) {
                    break part.clone();
                }
                posted = self.board.changed.wait_timeout(posted, Duration::from_millis(10)).unwrap().0;
                drop(posted);
                running.wait_for(rank)?;
                posted = self.board.posted.lock().unwrap();
            };
            if !theirs.matches(signature) {
                drop(posted);
                return Err(running.mismatch(rank, theirs));
            }
            all.push(bytes);
        }
        drop(posted);
        running.done();
        Ok(all)
    }

    fn unsupported<T>(&self, op: OpKind) -> Result<T> {
        Err(Error::Unsupported { op, backend: self.name(), hint: "the board has collectives only".into() })
    }
}

impl Backend for BoardBackend {
    fn name(&self) -> &'static str {
        "board"
    }

    fn id(&self) -> GroupId {
        self.health.id()
    }

    fn rank(&self) -> usize {
        self.health.rank()
    }

    fn members(&self) -> &[usize] {
        self.health.members()
    }

    fn local(&self) -> (usize, usize) {
        (self.rank(), self.members().len())
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn perform(&self, call: HostCall<'_>, limit: Duration) -> Result<()> {
        let element = call.signature().dtype.map_or(1, phalanx::DType::size);
        if !matches!(call.request(), Request::AllReduce { .. } | Request::AllGather { .. }) {
            return self.perform_derived(call, limit);
        }
        let (signature, request) = call.into_parts();
        match request {
            Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: ReduceOp::Sum } => {
                let all = self.exchange(&signature, buffer, limit)?;
                for (at, sum) in buffer.chunks_exact_mut(4).enumerate() {
                    let value = |part: &Vec<u8>| f32::from_le_bytes(part[4 * at..][..4].try_into().unwrap());
                    sum.copy_from_slice(&all.iter().map(value).sum::<f32>().to_le_bytes());
                }
            }
            Request::AllGather { buffers: Buffers::InPlace(whole), blocks } => {
                let own = blocks.block(self.rank());
                let part = &whole[own.start * element..own.end * element];
                let all = self.exchange(&signature, part, limit)?.concat();
                whole.copy_from_slice(&all);
            }
            Request::AllGather { buffers: Buffers::Separate(input, output), .. } => {
                output.copy_from_slice(&self.exchange(&signature, input, limit)?.concat());
            }
            _ => return self.unsupported(signature.op),
        }
        Ok(())
    }

    fn submit(&self, call: OwnedCall, _limit: Duration) -> Result<Pending> {
        self.unsupported(call.signature().op)
    }

    fn send(&self, to: Address, _bytes: &[u8], _limit: Duration) -> Result<()> {
        self.unsupported(to.signature.op)
    }

    fn recv(&self, from: Address, _bytes: &mut [u8], _limit: Duration, _on: OnTimeout) -> Result<()> {
        self.unsupported(from.signature.op)
    }

    fn submit_message(&self, address: Address, _buffer: Box<dyn Bytes>, _limit: Duration) -> Result<Pending> {
        self.unsupported(address.signature.op)
    }

    fn peer(&self, rank: usize) -> Peer {
        self.health.peer(rank)
    }

    fn failure(&self) -> Option<Cause> {
        self.health.failure()
    }

    fn fail(&self, cause: Cause) -> Cause {
        self.health.fail(cause)
    }

    fn leave(&self) {
        self.health.leave(self.timeout);
    }
}

/// Ranks with a board of their own.
fn world(name: &'static str) -> World {
    register_backend(name, Arc::new(Posting(Arc::default()))).unwrap();
    World::named(name)
}

fn sum(group: &ProcessGroup) -> Result<f32> {
    let mut sum = [group.rank() as f32 + 1.0];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

#[test]
fn ranks_add_up_and_split_and_leave_in_order() {
    let sums = world("board-sums").run(4, |group| {
        let all = sum(&group).unwrap();
        let pair = group.split(Some(group.rank() as u32 / 2), 0).unwrap().unwrap();
        let both = sum(&pair).unwrap();
        drop(pair);
        group.finalize().unwrap();
        (all, both)
    });
    assert_eq!(sums, [(10.0, 3.0); 4]);
}

#[test]
fn a_rank_that_panics_is_named_by_all_others() {
    let errors = world("board-panics").run(3, |group| {
        sum(&group).unwrap();
        if group.rank() == 1 {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _held = group;
                std::panic::panic_any("on purpose");
            }));
            return None;
        }
        Some(sum(&group).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        let Error::PeerLost { peer, how: Loss::Panicked, .. } = &error else { panic!("{error}") };
        assert_eq!(peer.rank, 1);
    }
}

#[test]
fn a_rank_that_leaves_and_one_that_does_not_come_are_named() {
    let errors = world("board-leaves").run(3, |group| {
        if group.rank() == 2 {
            return None;
        }
        Some(sum(&group).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(&error, Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == 2), "{error}");
    }
    static OVER: Mutex<usize> = Mutex::new(0);
    static CHANGED: Condvar = Condvar::new();
    let errors = world("board-late").timeout(Duration::from_secs(1)).run(3, |group| {
        let error = (group.rank() != 0).then(|| sum(&group).unwrap_err());
        *OVER.lock().unwrap() += 1;
        CHANGED.notify_all();
        // Rank 0 does not leave: it only does not come.
        drop(CHANGED.wait_while(OVER.lock().unwrap(), |over| *over < 3).unwrap());
        error
    });
    for error in errors.into_iter().flatten() {
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [0], "{error}");
    }
}

#[test]
fn ranks_that_call_different_operations_are_both_named() {
    let errors = world("board-differs").run(2, |group| match group.rank() {
        0 => sum(&group).unwrap_err().to_string(),
        _ => group.barrier().unwrap_err().to_string(),
    });
    for error in errors {
        assert!(error.contains("rank 0") && error.contains("rank 1") && error.contains("barrier"), "{error}");
    }
}

#[test]
fn an_abort_is_heard_by_those_who_wait() {
    let errors = world("board-aborts").run(2, |group| match group.rank() {
        0 => sum(&group).unwrap_err().to_string(),
        _ => {
            group.abort("no data left");
            String::new()
        }
    });
    assert!(errors[0].contains("no data left") && errors[0].contains("rank 1"), "{}", errors[0]);
}
