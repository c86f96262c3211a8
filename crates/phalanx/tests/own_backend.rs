//! A backend that performs its operations itself: ranks post their parts on a board in this process. Failures, limits and errors come from
//! the job's [`Health`], so they name the culprit as those of phalanx's own backends do. A [`CallQueue`] performs what is asynchronous.

use phalanx::backend::{
    Address, Backend, BackendFactory, BackendKind, Buffers, Bytes, CallQueue, Deadline, GroupId, Health,
    HostCall, JobHandle, LinksStart, OnTimeout, OwnedCall, Pending, Request, Signature, register_backend,
};
use phalanx::error::{Cause, Loss, OpKind, Peer};
use phalanx::transport::JobLinks;
use phalanx::{Error, ProcessGroup, ReduceOp, Result};
use phalanx_testkit::World;
use std::collections::HashMap;
use std::sync::{Arc, Barrier, Condvar, Mutex};
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
        let (health, timeout) = (Arc::new(self.job.health(id, members)), self.job.timeout());
        let place = Place { health: health.clone(), board: self.board.clone() };
        let calls = CallQueue::new(health.clone(), move |call, limit| place.perform(call, limit));
        Ok(Arc::new(BoardBackend { calls, health, timeout }))
    }
}

#[derive(Debug)]
struct BoardBackend {
    calls: CallQueue,
    health: Arc<Health>,
    timeout: Duration,
}

/// A rank's place at the board, where calls are performed, on whichever thread.
struct Place {
    health: Arc<Health>,
    board: Arc<Board>,
}

fn unsupported<T>(op: OpKind) -> Result<T> {
    Err(Error::Unsupported { op, backend: "board", hint: "the board has collectives only".into() })
}

impl Place {
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

    fn perform(&self, call: HostCall<'_>, limit: Duration) -> Result<()> {
        if !matches!(call.request(), Request::AllReduce { .. } | Request::AllGather { .. }) {
            return call.perform_derived("board", |part| self.perform(part, limit));
        }
        let element = call.signature().dtype.map_or(1, phalanx::DType::size);
        let (signature, request) = call.into_parts();
        match request {
            Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: ReduceOp::Sum } => {
                let all = self.exchange(signature, buffer, limit)?;
                for (at, sum) in buffer.chunks_exact_mut(4).enumerate() {
                    let value = |part: &Vec<u8>| f32::from_le_bytes(part[4 * at..][..4].try_into().unwrap());
                    sum.copy_from_slice(&all.iter().map(value).sum::<f32>().to_le_bytes());
                }
            }
            Request::AllGather { buffers: Buffers::InPlace(whole), blocks } => {
                let own = blocks.block(self.health.rank());
                let part = &whole[own.start * element..own.end * element];
                let all = self.exchange(signature, part, limit)?.concat();
                whole.copy_from_slice(&all);
            }
            Request::AllGather { buffers: Buffers::Separate(input, output), .. } => {
                output.copy_from_slice(&self.exchange(signature, input, limit)?.concat());
            }
            _ => return unsupported(signature.op),
        }
        Ok(())
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
        self.calls.perform(call, limit)
    }

    fn submit(&self, call: OwnedCall, limit: Duration) -> Result<Pending> {
        self.calls.submit(call, limit)
    }

    fn send(&self, to: Address, _bytes: &[u8], _limit: Duration) -> Result<()> {
        unsupported(to.signature.op)
    }

    fn recv(&self, from: Address, _bytes: &mut [u8], _limit: Duration, _on: OnTimeout) -> Result<()> {
        unsupported(from.signature.op)
    }

    fn submit_message(&self, address: Address, _buffer: Box<dyn Bytes>, _limit: Duration) -> Result<Pending> {
        unsupported(address.signature.op)
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
        for refused in [group.recv_any(&mut [0u8], 0), group.recv_any_async(vec![0u8], 0).map(|_| 0)] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }) && refused.group_is_usable(), "{refused}");
            assert!(
                refused.to_string().contains("it receives only from a rank that is named: use recv, at ")
            );
        }
        let pair = group.split(Some(group.rank() as u32 / 2), 0).unwrap().unwrap();
        let both = sum(&pair).unwrap();
        drop(pair);
        group.finalize().unwrap();
        (all, both)
    });
    assert_eq!(sums, [(10.0, 3.0); 4]);
}

/// Whatever waits for it and whatever comes after it, blocking or not, made of other operations or not.
#[test]
fn asynchronous_calls_take_their_turn() {
    world("board-async").run(3, |group| {
        let rank = group.rank() as f32;
        let first = group.all_reduce_async(vec![rank; 2], ReduceOp::Sum).unwrap();
        let second = group.broadcast_async(vec![rank], 2).unwrap();
        assert_eq!(sum(&group).unwrap(), 6.0);
        assert!(first.is_done() && second.is_done(), "the blocking call came before them");
        let third = group.all_gather_async(&[rank]).unwrap();
        assert_eq!(third.wait().unwrap(), [0.0, 1.0, 2.0]);
        assert_eq!((first.wait().unwrap(), second.wait().unwrap()), (vec![3.0; 2], vec![2.0]));
        let many = group.all_reduce_coalesced_async(vec![vec![rank], vec![1.0; 9]], ReduceOp::Sum).unwrap();
        assert_eq!(many.wait().unwrap(), [vec![3.0], vec![3.0; 9]]);
        // Nobody waits for this one, and the end does.
        drop(group.all_reduce_async(vec![rank], ReduceOp::Sum).unwrap());
        group.finalize().unwrap();
    });
}

/// As of blocking calls: who has left, what differs, and that time is over; calls that were begun after it end too.
#[test]
fn asynchronous_calls_are_told_what_went_wrong() {
    let errors = world("board-async-leaves").run(3, |group| {
        if group.rank() == 2 {
            return Vec::new();
        }
        let works = [(); 2].map(|()| group.all_reduce_async(vec![1.0f32], ReduceOp::Sum).unwrap());
        works.map(|work| work.wait().unwrap_err()).into()
    });
    for errors in errors.iter().filter(|errors| !errors.is_empty()) {
        let told = matches!(&errors[0], Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == 2);
        assert!(told && errors[0].to_string().contains("own_backend.rs"), "{}", errors[0]);
        assert!(matches!(errors[1], Error::Poisoned { .. }), "{}", errors[1]);
    }
    let errors = world("board-async-differs").run(2, |group| {
        let work = match group.rank() {
            0 => group.all_reduce_async(vec![1.0f32], ReduceOp::Sum),
            _ => group.all_reduce_async(vec![1.0f32; 2], ReduceOp::Sum),
        };
        work.unwrap().wait().unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
    let over = Barrier::new(2);
    world("board-async-late").timeout(Duration::from_secs(1)).run(2, move |group| {
        if group.rank() == 1 {
            let error = group.all_reduce_async(vec![1.0f32], ReduceOp::Sum).unwrap().wait().unwrap_err();
            assert!(matches!(&error, Error::Timeout { missing, .. } if missing[0].rank == 0), "{error}");
        }
        over.wait();
    });
}

/// What ranks of one job have in common for one purpose, and no others do.
#[test]
fn ranks_of_a_job_have_keys_in_common() {
    #[derive(Debug, Default)]
    struct Keyed(Mutex<Vec<[[u8; 32]; 2]>>, Mutex<Vec<String>>);
    impl BackendKind for Keyed {
        fn about(&self) -> &str {
            "takes keys"
        }
        fn factory(&self, job: &JobHandle) -> Result<Arc<dyn BackendFactory>> {
            self.0.lock().unwrap().push([job.key("mine")?, job.key("other")?]);
            Ok(job.over_links())
        }
        fn links(&self, at: &LinksStart<'_>) -> Result<Box<dyn JobLinks>> {
            self.1.lock().unwrap().push(at.secret().key_for("mine"));
            Ok(at.tcp())
        }
    }
    let kind = Arc::new(Keyed::default());
    register_backend("keyed", kind.clone()).unwrap();
    let mut of_jobs = Vec::new();
    for _ in 0..2 {
        World::named("keyed").run(3, |group| group.finalize().unwrap());
        let keys = std::mem::take(&mut *kind.0.lock().unwrap());
        assert_eq!(keys.len(), 3);
        assert!(keys.iter().all(|of_rank| *of_rank == keys[0]) && keys[0][0] != keys[0][1]);
        // The transport's key for the same purpose.
        let digits: String = keys[0][0].iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(std::mem::take(&mut *kind.1.lock().unwrap()).iter().all(|of_links| *of_links == digits));
        of_jobs.push(keys[0]);
    }
    assert_ne!(of_jobs[0], of_jobs[1]);
}

#[test]
fn a_rank_that_panics_is_named_by_all_others() {
    let errors = world("board-panics").run(3, |group| {
        if group.rank() == 1 {
            sum(&group).unwrap();
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _held = group;
                std::panic::panic_any("on purpose");
            }));
            return None;
        }
        // The loss also ends the first sum on a rank that is still in it.
        Some((0..2).find_map(|_| sum(&group).err()).expect("rank 1 has panicked"))
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
