//! Communicators: one rank's end of the line to the hub.

use crate::job::Job;
use crate::result::{IN_PROGRESS, INVALID_ARGUMENT, NcclResult, OK, SYSTEM_ERROR};
use crate::wire::{Kind, Reply, Request, Way};
use crate::{context, encryption, fault, hub, last_error, lock, version};
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Which rank of which communicator to be, on which device.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) hub: String,
    /// The communicator's number in its hub.
    pub(crate) number: u64,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: c_int,
    pub(crate) blocking: bool,
}

pub(crate) struct Comm {
    pub(crate) place: Place,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What `ncclCommGetAsyncError` says.
    status: NcclResult,
    /// What goes on behind the caller's back, or has and nobody has ended it.
    job: Option<Arc<Job>>,
    /// The part of it that is made, to be aborted with it.
    part: Option<Arc<Comm>>,
    line: Option<Arc<UnixStream>>,
    replies: HashMap<u64, Reply>,
    aborted: bool,
    finalized: bool,
    collectives: u64,
    messages: u64,
    launches: u64,
    /// By which ways data has gone.
    connected: HashSet<Way>,
    /// The least compute capability of its devices.
    capability: u64,
    /// Scalars of the operators made here.
    scalars: Vec<f64>,
}

impl Comm {
    fn new(place: Place) -> Arc<Self> {
        let state = State { status: IN_PROGRESS, ..State::default() };
        Arc::new(Self { place, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Connects a part of this one, however long that takes, unless this one is aborted.
    pub(crate) fn part(&self, place: Place) -> Option<Arc<Self>> {
        let part = Self::new(place);
        {
            let mut state = lock(&self.state);
            if state.aborted {
                return None;
            }
            state.part = Some(part.clone());
        }
        part.connect();
        let mut state = lock(&self.state);
        state.part = None;
        Some(part).filter(|_| !state.aborted)
    }

    /// Begins to connect; a communicator that blocks is connected when this returns.
    pub(crate) fn start(place: Place) -> Arc<Self> {
        let comm = Self::new(place);
        let worker = comm.clone();
        comm.in_background(move || worker.connect());
        comm
    }

    /// Does `work` now if calls block, else behind the caller's back; the status is in progress until it is done.
    pub(crate) fn in_background(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.status == OK {
            state.status = IN_PROGRESS;
        }
        if self.place.blocking {
            drop(state);
            return work();
        }
        let job = Job::begin();
        state.job = Some(job.clone());
        drop(state);
        let comm = self.clone();
        std::thread::spawn(move || {
            work();
            job.end(lock(&comm.state).status);
        });
    }

    /// Ends a job that is over.
    fn end_job(&self) {
        let job = lock(&self.state).job.take();
        job.into_iter().for_each(|job| job.join());
    }

    /// An error stays.
    pub(crate) fn settle(&self, status: NcclResult) {
        let mut state = lock(&self.state);
        if matches!(state.status, OK | IN_PROGRESS) {
            state.status = status;
        }
        self.changed.notify_all();
    }

    /// As [`settle`](Self::settle), and says why.
    pub(crate) fn refuse(&self, status: NcclResult) {
        last_error::say();
        self.settle(status);
    }

    fn connect(self: &Arc<Self>) {
        if fault::has("init-hangs") {
            return self.wait_for_abort();
        }
        std::thread::sleep(Duration::from_millis(fault::number("init-slow").unwrap_or_default()));
        let connected =
            hub::address(&self.place.hub).and_then(|at| UnixStream::connect_addr(&at)).map(Arc::new);
        let Ok(line) = connected else { return self.settle(SYSTEM_ERROR) };
        let Place { number, rank, size, device, .. } = self.place;
        let seq = self.next_collective();
        lock(&self.state).line = Some(line.clone());
        let key = match encryption::key() {
            Ok(key) => key,
            Err(code) => return self.settle(code),
        };
        let is_gone = fault::number("gone") == Some(0);
        let join = Request {
            kind: if is_gone { Kind::Gone } else { Kind::Join },
            seq,
            who: rank as u64,
            count: size as u64,
            dtype: number,
            operator: device as u64 | host() << 32,
            scalar: 0.0,
            data: [context::capability(), key].map(u64::to_ne_bytes).concat(),
        };
        if join.write(&line).is_err() {
            return self.settle(SYSTEM_ERROR);
        }
        if is_gone {
            return self.wait_for_abort();
        }
        let listener = self.clone();
        std::thread::spawn(move || listener.listen(&line));
        if let Some(reply) = self.reply(seq) {
            lock(&self.state).capability = reply.data.try_into().map_or(0, u64::from_ne_bytes);
            self.settle(reply.code as NcclResult);
        }
    }

    /// Connects the ranks by ways that are new, which takes some time, and until all whom they concern have come. `false` if the communicator is aborted.
    pub(crate) fn connect_ways(&self, mut ways: Vec<Way>, time: Duration) -> bool {
        ways.sort_unstable();
        ways.dedup();
        ways.retain(|way| lock(&self.state).connected.insert(*way));
        if ways.is_empty() {
            return true;
        }
        std::thread::sleep(time);
        let ask = |(who, count): Way| {
            let (kind, seq, data) = (Kind::Connect, self.next_message(), Vec::new());
            self.say(&Request { kind, seq, who, count, dtype: 0, operator: 0, scalar: 0.0, data });
            seq
        };
        let asked: Vec<u64> = ways.into_iter().map(ask).collect();
        asked.into_iter().all(|seq| self.reply(seq).is_some())
    }

    pub(crate) fn has_ways(&self, ways: &[Way]) -> bool {
        let state = lock(&self.state);
        ways.iter().all(|way| state.connected.contains(way))
    }

    /// What is not said any more is not missed: a rank that is gone leaves work that does not end.
    fn listen(&self, line: &UnixStream) {
        while let Ok(reply) = Reply::read(line) {
            if reply.seq == 0 {
                self.settle(reply.code as NcclResult);
                continue;
            }
            lock(&self.state).replies.insert(reply.seq, reply);
            self.changed.notify_all();
        }
    }

    /// Sends a part; a line that is broken says nothing.
    pub(crate) fn say(&self, request: &Request) {
        let line = lock(&self.state).line.clone();
        if let Some(line) = line {
            let _ = request.write(&line);
        }
    }

    /// Waits for what comes of `seq`, or until the communicator is aborted.
    pub(crate) fn reply(&self, seq: u64) -> Option<Reply> {
        let mut state = lock(&self.state);
        loop {
            if state.aborted {
                return None;
            }
            if let Some(reply) = state.replies.remove(&seq) {
                return Some(reply);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn wait_for_abort(&self) {
        let mut state = lock(&self.state);
        while !state.aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn abort(&self) {
        let mut state = lock(&self.state);
        state.aborted = true;
        if let Some(line) = state.line.take() {
            let _ = line.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        let part = state.part.take();
        drop(state);
        part.into_iter().for_each(|part| part.abort());
        if version::joins_jobs_of_other_threads() {
            self.end_job();
        }
    }

    pub(crate) fn status(&self) -> NcclResult {
        let status = lock(&self.state).status;
        if status == OK && version::ends_jobs_when_asked() {
            self.end_job();
        }
        status
    }

    /// What a call answers that wants to use the communicator.
    pub(crate) fn ready(&self) -> NcclResult {
        match self.status() {
            IN_PROGRESS => INVALID_ARGUMENT,
            _ if lock(&self.state).finalized => INVALID_ARGUMENT,
            OK => {
                self.end_job();
                OK
            }
            status => status,
        }
    }

    pub(crate) fn finalize(&self) {
        lock(&self.state).finalized = true;
    }

    /// Collectives have even numbers, the same on all ranks; messages odd ones.
    pub(crate) fn next_collective(&self) -> u64 {
        let mut state = lock(&self.state);
        state.collectives += 2;
        state.collectives
    }

    pub(crate) fn next_message(&self) -> u64 {
        let mut state = lock(&self.state);
        state.messages += 2;
        state.messages + 1
    }

    pub(crate) fn next_launch(&self) -> u64 {
        let mut state = lock(&self.state);
        state.launches += 1;
        state.launches
    }

    /// Operators from 5 on are made here.
    pub(crate) fn new_operator(&self, scalar: f64) -> c_int {
        let scalars = &mut lock(&self.state).scalars;
        scalars.push(scalar);
        scalars.len() as c_int + 4
    }

    pub(crate) fn capability(&self) -> u64 {
        lock(&self.state).capability
    }

    pub(crate) fn scalar(&self, operator: c_int) -> Option<f64> {
        lock(&self.state).scalars.get(usize::try_from(operator - 5).ok()?).copied()
    }
}

/// Ranks on different hosts have different devices, and NCCL lets `NCCL_HOSTID` say which host this is.
fn host() -> u64 {
    let name = std::env::var("NCCL_HOSTID").unwrap_or_default();
    name.bytes().fold(0, |hash, byte| (hash * 31 + u64::from(byte)) % (1 << 31))
}
