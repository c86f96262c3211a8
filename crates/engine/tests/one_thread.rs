//! A whole group in one thread: its operations are polled at a time that the test gives, over links that are queues.

use phalanx_algo::{Algorithm, Shape};
use phalanx_control::Control;
use phalanx_control::arbiter::{Arbiter, Mail};
use phalanx_control::changes::Changes;
use phalanx_control::group_health::GroupHealth;
use phalanx_control::job_context::{JobContext, Place};
use phalanx_control::membership::Membership;
use phalanx_control::notice::Notice;
use phalanx_control::runtime::Runtime;
use phalanx_core::{
    CallSite, DType, Deadline, Error, GroupId, Layout, Method, OpKind, Peer, ReduceOp, Result, Signature,
    WORLD,
};
use phalanx_engine::attempt::{Attempt, Outcome};
use phalanx_engine::collective::{Borrowed, Collective, Memory};
use phalanx_engine::core::{Core, Progress};
use phalanx_engine::message::{Message, Payload};
use phalanx_engine::message_queues::queue_key;
use phalanx_engine::partial::Arithmetic;
use phalanx_engine::plan::{Plan, Sums};
use phalanx_trace::{Now, Recorded};
use phalanx_transport::{LinkFault, Transport, Wire};
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// What a link holds: less than a message, and enough for all that stands before its payload.
const ROOM: usize = 1000;

/// Time that goes on when the test says so.
#[derive(Debug)]
struct Clock(Mutex<Instant>);

impl Runtime for Clock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, _changes: &Changes, _seen: u64, _limit: Duration) {
        unreachable!("nothing that is polled sleeps");
    }

    fn trace_time(&self) -> Now {
        Now { at: 0, epoch: 0 }
    }
}

/// The arbiter, which hears notices and is heard at once.
#[derive(Debug)]
struct Line {
    rank: usize,
    arbiter: Arc<Mutex<Arbiter>>,
    members: Arc<Vec<Arc<Membership>>>,
}

impl Control for Line {
    fn send(&self, notice: Notice) -> Result<()> {
        let mut arbiter = self.arbiter.lock().unwrap();
        let mut mail = VecDeque::from(arbiter.handle(self.rank, notice));
        while let Some((rank, verdict)) = mail.pop_front() {
            let member = &self.members[rank];
            let more: Mail = member.answer(&verdict).map_or_else(Vec::new, |said| arbiter.handle(rank, said));
            mail.extend(more);
            member.hear(verdict, member.runtime().now());
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Job {
    place: Place,
    line: Line,
}

impl JobContext for Job {
    fn open(&self, _group: GroupId, _members: &[usize]) -> Wire {
        unreachable!("the one group is made over its links");
    }

    fn control(&self) -> &dyn Control {
        &self.line
    }

    fn membership(&self) -> &Arc<Membership> {
        &self.line.members[self.place.rank]
    }

    fn peer(&self, rank: usize) -> Peer {
        peer(rank)
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn leave(&self, _deadline: &Deadline) {}

    fn remind(&self, _words: &str) {}

    fn ranks_share_cores(&self) -> bool {
        false
    }
}

fn peer(rank: usize) -> Peer {
    Peer { rank, host: format!("h{rank}") }
}

/// Bytes on their way, by where they come from and go to.
type Queues = Arc<Mutex<HashMap<(usize, usize), VecDeque<u8>>>>;

struct Links {
    rank: usize,
    world_size: usize,
    queues: Queues,
}

impl Transport for Links {
    fn name(&self) -> &'static str {
        "queues"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let mut queues = self.queues.lock().unwrap();
        let queue = queues.entry((self.rank, peer)).or_default();
        let before = queue.len();
        bytes.iter().for_each(|part| queue.extend(part.iter().take(ROOM - queue.len())));
        Ok(queue.len() - before)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let mut queues = self.queues.lock().unwrap();
        let queue = queues.entry((peer, self.rank)).or_default();
        let n = queue.len().min(buffer.len());
        buffer.iter_mut().zip(queue.drain(..n)).for_each(|(to, from)| *to = from);
        Ok(n)
    }

    fn is_linked(&mut self, _peer: usize) -> bool {
        true
    }
}

/// What each rank of a group has, and their clock.
#[expect(clippy::disallowed_methods, reason = "a moment to begin with")]
fn group(world_size: usize) -> (Vec<Core>, Arc<Clock>) {
    let clock = Arc::new(Clock(Mutex::new(Instant::now())));
    let member =
        |rank| Membership::new(Recorded { me: peer(rank), world_size, timeout: LIMIT }, 64, clock.clone());
    let members = Arc::new((0..world_size).map(member).collect::<Vec<_>>());
    let arbiter = Arc::new(Mutex::new(Arbiter::new(world_size, None)));
    let queues = Queues::default();
    let core = |rank| {
        let line = Line { rank, arbiter: arbiter.clone(), members: members.clone() };
        let (host, addr) = (peer(rank).host, ([127, 0, 0, 1], 1).into());
        line.send(Notice::Join { host, addr, local: None, settings: String::new() }).unwrap();
        let place = Place { rank, world_size, local_rank: 0, local_world_size: 1, timeout: LIMIT };
        let health = GroupHealth::new(Arc::new(Job { place, line }), WORLD, (0..world_size).collect());
        let links = Links { rank, world_size, queues: queues.clone() };
        Core::new(Arc::new(health), Wire::new(Box::new(links)), |_| 2)
    };
    ((0..world_size).map(core).collect(), clock)
}

/// The first collective of a rank: a sum of numbers over a ring.
fn sum(rank: usize, world_size: usize, count: usize) -> Collective {
    let signature = Signature {
        dtype: Some(DType::U64),
        count: count as u64,
        reduce: Some(ReduceOp::Sum),
        ..Signature::bare(OpKind::AllReduce, CallSite { file: "train.rs".into(), line: 41 })
    };
    let layout = Layout::even(world_size, count);
    let shape = Shape { rank, world_size, layout: &layout, recv_layout: None, root: 0 };
    let plan = Plan::new(Algorithm::AllReduceRing, &shape, DType::U64.size(), Sums::InPlace);
    let arithmetic = Arithmetic::of(&signature, Some(ReduceOp::Sum), world_size).unwrap();
    Collective::new(1, signature, Method::UNSAID, Arc::new(plan), arithmetic)
}

#[test]
fn ranks_that_are_polled_in_turn_add_up() {
    for (world_size, count) in [(1, 5), (2, 1), (3, 1000), (5, 777)] {
        let (mut cores, clock) = group(world_size);
        let mut buffers: Vec<Vec<u8>> = (0..world_size as u64)
            .map(|rank| (0..count as u64).flat_map(|i| (rank * 1000 + i).to_le_bytes()).collect())
            .collect();
        let mut running: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(rank, buffer)| {
                let collective = sum(rank, world_size, count);
                let operation = Borrowed { collective, memory: Memory::in_place(buffer) };
                (operation, Attempt::new(clock.now(), LIMIT), false)
            })
            .collect();
        for round in 0.. {
            assert!(round < 10_000, "nothing moves any more, in a group of {world_size}");
            for (core, (operation, attempt, done)) in cores.iter_mut().zip(&mut running).filter(|(_, r)| !r.2)
            {
                match attempt.poll(core, operation, || clock.now()) {
                    Outcome::Finished => *done = true,
                    Outcome::Moved | Outcome::Idle => {}
                    Outcome::Failed(error) => panic!("{error}"),
                }
            }
            if running.iter().all(|(.., done)| *done) {
                break;
            }
        }
        let ranks = 0..world_size as u64;
        let expected: Vec<u8> = (0..count as u64)
            .flat_map(|i| ranks.clone().map(|rank| rank * 1000 + i).sum::<u64>().to_le_bytes())
            .collect();
        assert!(buffers.iter().all(|buffer| *buffer == expected), "in a group of {world_size}");
    }
}

fn of_one_byte(op: OpKind) -> Signature {
    let site = CallSite { file: "train.rs".into(), line: 41 };
    Signature { dtype: Some(DType::U8), count: 1, ..Signature::bare(op, site) }
}

/// A message with tag 3, to or from one peer.
fn message(core: &mut Core, op: OpKind, peer: usize) -> Message {
    let ticket = core.queues.join(queue_key(op, peer, 3));
    Message::new(peer, 3, ticket, of_one_byte(op), 1)
}

#[test]
fn a_receive_from_any_peer_stands_behind_what_was_called_before_and_before_what_comes_later() {
    fn send(core: &mut Core, byte: u8) {
        let sent = message(core, OpKind::Send, 0).poll(core, &mut Payload::Out(&[byte])).unwrap();
        assert_eq!(sent, Progress::Finished);
    }
    fn receive(message: &mut Message, core: &mut Core) -> Option<u8> {
        let mut byte = [0];
        let progress = message.poll(core, &mut Payload::In(&mut byte)).unwrap();
        (progress == Progress::Finished).then_some(byte[0])
    }
    let (mut cores, _) = group(3);
    let [taker, one, two] = &mut cores[..] else { panic!("three ranks") };
    let mut before = message(taker, OpKind::Recv, 1);
    let mut any = Message::from_any(vec![1, 2], (3, 1), of_one_byte(OpKind::RecvAny), 1, taker);
    let mut later = message(taker, OpKind::Recv, 2);
    send(one, 10);
    assert_eq!(receive(&mut any, taker), None, "the message of rank 1 is for the receive before");
    send(two, 20);
    assert_eq!(receive(&mut later, taker), None, "the first message of rank 2 is for the receive from any");
    assert_eq!((any.ends(), receive(&mut any, taker), any.ends()), ((None, 3), Some(20), (Some(2), 3)));
    assert_eq!(receive(&mut later, taker), None);
    send(two, 21);
    assert_eq!((receive(&mut later, taker), receive(&mut before, taker)), (Some(21), Some(10)));
    // It has left the line of rank 1.
    send(one, 11);
    let mut next = message(taker, OpKind::Recv, 1);
    assert_eq!(receive(&mut next, taker), Some(11));
}

#[test]
fn who_does_not_come_is_named_when_the_time_is_over_and_not_before() {
    let (mut cores, clock) = group(2);
    let mut buffer = vec![0; 8];
    let mut operation = Borrowed { collective: sum(0, 2, 1), memory: Memory::in_place(&mut buffer) };
    let mut attempt = Attempt::new(clock.now(), LIMIT);
    let mut waited = 0;
    let error = loop {
        match attempt.poll(&mut cores[0], &mut operation, || clock.now()) {
            Outcome::Failed(error) => break error,
            Outcome::Finished => panic!("nobody else has come"),
            Outcome::Moved | Outcome::Idle => {
                *clock.0.lock().unwrap() += Duration::from_secs(1);
                waited += 1;
            }
        }
    };
    assert!((60..70).contains(&waited), "it took {waited} s");
    let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
}
