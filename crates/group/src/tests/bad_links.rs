//! Peers that know the secret and lie about lengths, links that are slow, and links for which a rank has nothing left.

use crate::ProcessGroup;
use crate::bootstrap::thread_job::ThreadJob;
use crate::control::group_health::{FAREWELL_TIME, GroupHealth};
use crate::control::job_context::JobContext;
use crate::control::notice::Notice;
use crate::engine::collective::{Collective as Running, Memory};
use crate::engine::core::Fault;
use crate::engine::message::Payload;
use crate::group::backend::Address;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use crate::host::workspace::Pattern;
use phalanx_algo::Selector;
use phalanx_core::{CallSite, DType, Error, Layout, Loss, Method, OpKind, ReduceOp, Signature, WORLD};
use phalanx_transport::thread::Pipes;
use phalanx_transport::{
    Channel, Direction, Key, LinkFault, Outbound, Patience, Transport, Wait, Wire, WireFault,
};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Rank 0, and the links of a rank 1 that says whatever it likes.
struct World {
    backend: ScheduledBackend,
    liar: Wire,
    other: ThreadJob,
}

impl World {
    fn new() -> Self {
        let pipes = Pipes::new(2);
        let [job, other] = ThreadJob::create(2, Duration::from_secs(60)).try_into().unwrap();
        let health = Arc::new(GroupHealth::new(Arc::new(job), WORLD, vec![0, 1]));
        let wire = Wire::new(Box::new(pipes.end(0)));
        let backend = ScheduledBackend::over(wire, health, BackendChoice::Auto, Arc::default());
        Self { backend, liar: Wire::new(Box::new(pipes.end(1))), other }
    }

    /// Frames of these lengths, of one message.
    fn say(&mut self, key: Key, fingerprint: u64, frames: &[usize], message_len: u64) {
        say(&mut self.liar, key, fingerprint, frames, message_len);
    }
}

fn say(liar: &mut Wire, key: Key, fingerprint: u64, frames: &[usize], message_len: u64) {
    for &len in frames {
        let message = Outbound { peer: 0, key, ordinal: 0, fingerprint, signature: &[], message_len };
        assert!(liar.send(&message, &vec![1; len]).unwrap().complete);
    }
}

/// Message number `ordinal` of a collective, which says that it has so many bytes, in frames of these lengths.
fn say_in_collective(liar: &mut Wire, running: &Running, ordinal: u32, message_len: u64, frames: &[usize]) {
    let key = Key { channel: Channel::Collective, id: running.seq() };
    let fingerprint = running.signature().fingerprint();
    for &len in frames {
        let message = Outbound { peer: 0, key, ordinal, fingerprint, signature: &[], message_len };
        assert!(liar.send(&message, &vec![0; len]).unwrap().complete);
    }
}

fn signature(op: OpKind, dtype: DType, count: u64) -> Signature {
    let reduce = (op == OpKind::AllReduce).then_some(ReduceOp::Sum);
    let root = (op == OpKind::Broadcast).then_some(1);
    let site = CallSite { file: "train.rs".into(), line: 7 };
    Signature { op, dtype: Some(dtype), count, reduce, root, detail: 0, method: Method::UNSAID, site }
}

fn is_nonsense(fault: &Fault) -> bool {
    matches!(fault, Fault::Nonsense { peer: 1, .. } | Fault::Wire { peer: 1, fault: WireFault::Nonsense(_) })
}

/// Frames of a message of ten elements that no correct peer sends.
const LIES: [&[usize]; 4] = [&[0], &[4, 0], &[6, 10], &[9, 2]];

#[test]
fn a_message_whose_frames_do_not_add_up_is_nonsense() {
    for frames in LIES {
        let mut world = World::new();
        let address = Address { signature: signature(OpKind::Recv, DType::U8, 10), peer: 1, tag: 7 };
        let (mut message, _) = world.backend.message(&address, 10).unwrap();
        let fingerprint = signature(OpKind::Send, DType::U8, 10).fingerprint();
        world.say(Key { channel: Channel::Message, id: 7 }, fingerprint, frames, 10);
        let mut buffer = [0; 10];
        let polled = message.poll(&mut world.backend.engine.lock(), &mut Payload::In(&mut buffer));
        assert!(polled.as_ref().is_err_and(is_nonsense), "{frames:?}: {polled:?}");
    }
}

#[test]
fn a_collective_whose_frames_do_not_add_up_is_nonsense() {
    // Of a reduction, the front of an element may wait for its rest.
    for (op, dtype) in [(OpKind::Broadcast, DType::U8), (OpKind::AllReduce, DType::F32)] {
        for frames in LIES {
            let mut world = World::new();
            let signature = signature(op, dtype, 10);
            let pattern = Pattern::of_call(&signature, Layout::even(2, 10));
            let planned = world.backend.planned(&signature, &pattern).unwrap();
            let mut collective = world.backend.begin(&signature, planned);
            let fingerprint = collective.signature().fingerprint();
            let odd = usize::from(dtype.size() > 1);
            let frames: Vec<usize> = frames.iter().map(|len| len * dtype.size() - len % 2 * odd).collect();
            let (key, len) = (Key { channel: Channel::Collective, id: collective.seq() }, 10 * dtype.size());
            world.say(key, fingerprint, &frames, len as u64);
            let mut buffer = [0u64; 5];
            let memory = &mut bytemuck::cast_slice_mut(&mut buffer)[..len];
            let polled = collective.poll(&mut world.backend.engine.lock(), &mut Memory::in_place(memory));
            assert!(polled.as_ref().is_err_and(is_nonsense), "{op} {frames:?}: {polled:?}");
        }
    }
}

/// The sum of ten elements a rank in a ring of three, of which rank 0 gets what the liar, rank 2, says. Messages are of 20 bytes, and of
/// 40 where what was added up so far travels as `f32`; the third is a result.
#[test]
fn partial_sums_that_are_of_another_length_or_none_are_nonsense() {
    let honest: [(u64, &[usize]); 4] = [(20, &[20]), (40, &[40]), (20, &[20]), (20, &[20])];
    // Which message is a lie instead, and how.
    let lies: [(usize, u64, &[usize]); 12] = [
        (0, 60, &[40]),
        (1, 80, &[40]),
        (1, 30, &[30]),
        (1, 10, &[10]),
        (1, 41, &[41]),
        (1, 40, &[0]),
        (1, 40, &[16, 0]),
        (1, 40, &[24, 40]),
        (1, 40, &[36, 8]),
        (2, 40, &[40]),
        (3, 40, &[20, 20]),
        (3, 10, &[10]),
    ];
    for dtype in [DType::F16, DType::BF16] {
        for lie in [None].into_iter().chain(lies.map(Some)) {
            let pipes = Pipes::new(3);
            let job = ThreadJob::create(3, Duration::from_secs(60)).swap_remove(0);
            let health = Arc::new(GroupHealth::new(Arc::new(job), WORLD, vec![0, 1, 2]));
            let ring = Arc::new(Selector::forced_from("all_reduce=ring").unwrap());
            let backend =
                ScheduledBackend::over(Wire::new(Box::new(pipes.end(0))), health, BackendChoice::Auto, ring);
            let (mut liar, _next) = (Wire::new(Box::new(pipes.end(2))), pipes.end(1));
            let signature = signature(OpKind::AllReduce, dtype, 30);
            let pattern = Pattern::of_call(&signature, Layout::even(3, 30));
            let planned = backend.planned(&signature, &pattern).unwrap();
            let mut running = backend.begin(&signature, planned);
            for (ordinal, (message_len, frames)) in honest.into_iter().enumerate() {
                let (message_len, frames) = match lie {
                    Some((at, message_len, frames)) if at == ordinal => (message_len, frames),
                    _ => (message_len, frames),
                };
                say_in_collective(&mut liar, &running, ordinal as u32, message_len, frames);
            }
            let mut buffer = [0u8; 60];
            let polled = running.poll(&mut backend.engine.lock(), &mut Memory::in_place(&mut buffer));
            let is_nonsense = |fault: &Fault| {
                matches!(
                    fault,
                    Fault::Nonsense { peer: 2, .. } | Fault::Wire { peer: 2, fault: WireFault::Nonsense(_) }
                )
            };
            match lie {
                None => assert!(polled.is_ok(), "{dtype}: {polled:?}"),
                Some(lie) => assert!(polled.as_ref().is_err_and(is_nonsense), "{dtype} {lie:?}: {polled:?}"),
            }
        }
    }
}

#[test]
fn what_a_rank_sent_before_it_left_may_be_long_on_its_way() {
    let World { backend, mut liar, other } = World::new();
    other.control().send(Notice::LeaveGroup { group: WORLD, members: vec![0, 1], finished: 0 }).unwrap();
    let group = ProcessGroup::new(Arc::new(backend));
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            let mut buffer = [0u8; 10];
            group.recv(&mut buffer, 1, 7).map(|()| buffer)
        });
        // Who has left is not waited for that long where there is no link.
        std::thread::sleep(2 * FAREWELL_TIME);
        let fingerprint = signature(OpKind::Send, DType::U8, 10).fingerprint();
        say(&mut liar, Key { channel: Channel::Message, id: 7 }, fingerprint, &[10], 10);
        assert_eq!(received.join().unwrap().unwrap(), [1; 10]);
    });
}

/// A network that takes long for the last bytes of a rank that has left the job.
#[test]
fn as_long_as_something_comes_who_has_left_the_job_is_not_lost() {
    let World { backend, mut liar, other } = World::new();
    other.control().send(Notice::Leave { finished: 0 }).unwrap();
    let group = ProcessGroup::new(Arc::new(backend));
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            let mut buffer = [0u8; 10];
            group.recv(&mut buffer, 1, 7).map(|()| buffer)
        });
        let fingerprint = signature(OpKind::Send, DType::U8, 10).fingerprint();
        for len in [2, 3, 1, 2, 2] {
            std::thread::sleep(FAREWELL_TIME / 2);
            say(&mut liar, Key { channel: Channel::Message, id: 7 }, fingerprint, &[len], 10);
        }
        assert_eq!(received.join().unwrap().unwrap(), [1; 10]);
    });
}

#[test]
fn who_has_left_the_job_need_not_close_its_links() {
    let World { backend, liar: _liar, other } = World::new();
    other.control().send(Notice::Leave { finished: 0 }).unwrap();
    let error = ProcessGroup::new(Arc::new(backend)).recv(&mut [0u8; 10], 1, 7).unwrap_err();
    assert!(matches!(&error, Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == 1), "{error}");
}

/// How long no call may wait.
const TOO_LONG: Duration = Duration::from_secs(30);

/// The links of rank 0 of two, over which nothing goes; says whether what was offered to them was withdrawn.
#[derive(Default)]
struct NoLinks {
    fault: Option<LinkFault>,
    withdrawn: Arc<AtomicBool>,
    /// The first call that receives waits for as long as it may; how long that was.
    in_call: Option<Arc<Mutex<Duration>>>,
    patience: Option<Arc<dyn Patience>>,
}

impl NoLinks {
    fn nothing(&self) -> Result<usize, LinkFault> {
        self.fault.clone().map_or(Ok(0), Err)
    }
}

impl Transport for NoLinks {
    fn name(&self) -> &'static str {
        "none"
    }

    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        2
    }

    fn send(&mut self, _peer: usize, _bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        self.nothing()
    }

    fn recv(&mut self, _peer: usize, _buffer: &mut [u8]) -> Result<usize, LinkFault> {
        if let (Some(in_call), Some(patience)) = (self.in_call.take(), &self.patience) {
            let begun = Instant::now();
            while !patience.is_over(begun.elapsed()) && begun.elapsed() < TOO_LONG {
                std::thread::sleep(Duration::from_millis(1));
            }
            *in_call.lock().unwrap() = begun.elapsed();
        }
        self.nothing()
    }

    fn wait_with(&mut self, patience: Arc<dyn Patience>) {
        self.patience = Some(patience);
    }

    fn is_linked(&mut self, _peer: usize) -> bool {
        self.fault.is_none()
    }

    fn watch(&mut self, _peer: usize, _direction: Direction, _wait: &mut Wait) -> bool {
        true
    }

    fn withdraw(&mut self) {
        self.withdrawn.store(true, Ordering::Relaxed);
    }
}

/// A group of which this is rank 0.
fn over(links: NoLinks) -> (ProcessGroup, ThreadJob) {
    let [job, other] = ThreadJob::create(2, Duration::from_secs(60)).try_into().unwrap();
    let health = Arc::new(GroupHealth::new(Arc::new(job), WORLD, vec![0, 1]));
    let wire = Wire::new(Box::new(links));
    let backend = ScheduledBackend::over(wire, health, BackendChoice::Auto, Arc::default());
    (ProcessGroup::new(Arc::new(backend)), other)
}

#[test]
fn a_rank_that_can_make_no_link_names_itself() {
    let fault = Some(LinkFault::Starved("too many open files".into()));
    let (group, _other) = over(NoLinks { fault, ..NoLinks::default() });
    let error = group.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap_err();
    let Error::Aborted { peer, reason, .. } = &error else { panic!("{error}") };
    assert!(peer.rank == 0 && reason.contains("too many open files"), "{error}");
}

#[test]
fn what_a_call_offered_is_withdrawn_before_it_fails() {
    let calls: [fn(&ProcessGroup) -> Error; 3] = [
        |group| group.send(&[1u8; 1 << 20], 1, 0).unwrap_err(),
        |group| group.all_reduce(&mut [1u8; 1 << 20], ReduceOp::Sum).unwrap_err(),
        |group| group.send_async(vec![1u8; 1 << 20], 1, 0).unwrap().wait().unwrap_err(),
    ];
    for call in calls {
        let links = NoLinks::default();
        let withdrawn = links.withdrawn.clone();
        let (group, _other) = over(links);
        let error = call(&group.with_timeout(Duration::from_millis(200)));
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(withdrawn.load(Ordering::Relaxed), "{error}");
    }
}

/// The error of rank 0, which receives over a link whose first call waits, and how long that waited.
fn receive_in_a_call(limit: Duration, meanwhile: impl FnOnce(&ProcessGroup) + Send) -> (Error, Duration) {
    let in_call = Arc::new(Mutex::new(Duration::ZERO));
    let (group, _other) = over(NoLinks { in_call: Some(in_call.clone()), ..NoLinks::default() });
    let error = std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&group));
        group.with_timeout(limit).recv(&mut [0u8; 10], 1, 0).unwrap_err()
    });
    let waited = *in_call.lock().unwrap();
    (error, waited)
}

#[test]
fn a_call_of_a_link_waits_until_the_time_of_its_operation_is_over() {
    let (error, waited) = receive_in_a_call(Duration::from_secs(2), |_| {});
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(waited >= Duration::from_secs(1) && waited < TOO_LONG, "{waited:?}");
}

#[test]
fn a_call_of_a_link_waits_until_its_group_has_failed() {
    let (error, waited) = receive_in_a_call(2 * TOO_LONG, |group| {
        std::thread::sleep(Duration::from_millis(100));
        group.abort("on purpose");
    });
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    assert!(waited < TOO_LONG, "{waited:?}");
}
