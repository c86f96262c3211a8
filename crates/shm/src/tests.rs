//! Teams of threads, each with a mapping of its own: random operations of random lengths, against plain arithmetic.

mod gather_scatter;
mod giving_up;
mod namespaces;
mod on_the_way;
pub(crate) mod sleeper;
mod staging;
mod stopped;

use crate::plan::{Kind, Plan};
use crate::{
    Buffers, Call, Fault, Givers, Reduction, Stopped, Team, Transfer, WaitCheck, Window, create, segment_len,
    window_len,
};
use phalanx_algo::MemoryWay;
use phalanx_core::{CallSite, DType, Layout, Method, OpKind, ReduceOp, Signature};
use phalanx_kernels::Kernel;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, LazyLock};
use std::time::Duration;

/// Gives up after so long.
struct Patient(Duration);

impl WaitCheck for Patient {
    fn look(&mut self, _peer: usize, waited: Duration) -> Result<(), Stopped> {
        if waited > self.0 { Err(Stopped) } else { Ok(()) }
    }

    fn look_meanwhile(&mut self, _peer: usize) -> Result<(), Stopped> {
        Ok(())
    }
}

/// One rank of a test.
struct Rank {
    team: Team,
    rank: usize,
    world_size: usize,
    calls: u64,
}

#[derive(Clone, Copy, Debug)]
enum Reach {
    /// Copies between address spaces.
    Memory,
    /// Staging only.
    Staging,
}

fn signature(op: OpKind, count: usize) -> Signature {
    let site = CallSite { file: "tests.rs".into(), line: count as u32 };
    Signature {
        op,
        dtype: Some(DType::U32),
        count: count as u64,
        reduce: None,
        root: None,
        detail: 0,
        method: Method::UNSAID,
        site,
    }
}

fn on_team(world_size: usize, crowded: bool, reach: Reach, body: impl Fn(&mut Rank) + Sync) {
    on_team_where(world_size, |_| crowded, reach, body);
}

/// `crowded` says what each rank thinks.
fn on_team_where(
    world_size: usize,
    crowded: impl Fn(usize) -> bool,
    reach: Reach,
    body: impl Fn(&mut Rank) + Sync,
) {
    let file = create(segment_len(world_size)).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..world_size {
            let (file, body, crowded) = (&file, &body, crowded(rank));
            scope.spawn(move || {
                let mut wait_check = Patient(Duration::from_secs(30));
                let signature = signature(OpKind::Init, 0);
                let mut call = Call { seq: 0, signature: &signature, wait_check: &mut wait_check };
                let mut team = Team::join(file, rank, world_size, crowded, &mut call).unwrap();
                // Threads of one process may; that it is not worth it everywhere does not matter here.
                team.reads_memory = matches!(reach, Reach::Memory);
                body(&mut Rank { team, rank, world_size, calls: 0 });
            });
        }
    });
}

/// What `rank` contributes at `i`, in the operation numbered `n`.
fn value(rank: usize, i: usize, n: usize) -> u32 {
    ((rank + 1) as u32)
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add((i as u32).wrapping_mul(31))
        .wrapping_add(n as u32 * 7)
}

fn bytes(elements: &[u32]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

fn bytes_mut(elements: &mut [u32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(elements)
}

impl Rank {
    fn run<R>(
        &mut self,
        op: OpKind,
        count: usize,
        act: impl FnOnce(&mut Team, &mut Call<'_>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let signature = signature(op, count);
        let mut wait_check = Patient(Duration::from_secs(30));
        self.calls += 1;
        act(&mut self.team, &mut Call { seq: self.calls, signature: &signature, wait_check: &mut wait_check })
    }

    fn contribution(&self, len: usize, n: usize) -> Vec<u32> {
        (0..len).map(|i| value(self.rank, i, n)).collect()
    }

    fn sum(&self, i: usize, n: usize) -> u32 {
        (0..self.world_size).fold(0, |sum, rank| sum.wrapping_add(value(rank, i, n)))
    }

    fn reduction(root: Option<usize>) -> Reduction<'static> {
        static SUM: LazyLock<Kernel> = LazyLock::new(|| Kernel::new(ReduceOp::Sum, DType::U32).unwrap());
        Reduction { kernel: &SUM, element: 4, root }
    }

    fn all_reduce_in(&mut self, buffer: &mut [u8], n: usize, root: Option<usize>) {
        let len = buffer.len() / 4;
        buffer.copy_from_slice(bytes(&self.contribution(len, n)));
        let op = if root.is_some() { OpKind::Reduce } else { OpKind::AllReduce };
        self.run(op, len, |team, call| team.all_reduce(call, buffer, Self::reduction(root))).unwrap();
        if root.is_none_or(|root| root == self.rank) {
            let result: &[u32] = bytemuck::cast_slice(buffer);
            (0..len).for_each(|i| {
                assert_eq!(result[i], self.sum(i, n), "{op} of {len} at {i}, operation {n}");
            });
        }
    }

    fn reduce_scatter(&mut self, len: usize, n: usize) {
        let blocks = Layout::even(self.world_size, len);
        let own = blocks.block(self.rank);
        let (input, mut output) = (self.contribution(len, n), vec![0; own.len()]);
        self.run(OpKind::ReduceScatter, len, |team, call| {
            let buffers = Buffers::Separate(bytes(&input), bytes_mut(&mut output));
            team.reduce_scatter(call, buffers, &blocks, Self::reduction(None))
        })
        .unwrap();
        for (i, &result) in output.iter().enumerate() {
            assert_eq!(result, self.sum(own.start + i, n), "reduce_scatter of {len} at {i}");
        }
        let mut buffer = input;
        self.run(OpKind::ReduceScatter, len, |team, call| {
            let buffers = Buffers::InPlace(bytes_mut(&mut buffer));
            team.reduce_scatter(call, buffers, &blocks, Self::reduction(None))
        })
        .unwrap();
        assert_eq!(buffer[own], output, "in place");
    }

    fn all_gather(&mut self, len: usize, n: usize) {
        let blocks = Layout::even(self.world_size, len);
        let range = |rank: usize| blocks.block(rank).start * 4..blocks.block(rank).end * 4;
        let (rank, own) = (self.rank, blocks.block(self.rank));
        let mut output = vec![0; len];
        output[own.clone()].copy_from_slice(&self.contribution(len, n)[own]);
        let largest = (0..self.world_size).map(|r| range(r).len()).max().unwrap();
        let transfer = Transfer {
            same: true,
            givers: Givers::All,
            largest,
            part: &|_| range(rank),
            place: Some(&range),
            own: None,
            layout: None,
        };
        self.run(OpKind::AllGather, len, |team, call| {
            team.pull(call, Buffers::InPlace(bytes_mut(&mut output)), transfer)
        })
        .unwrap();
        for giver in 0..self.world_size {
            let block = blocks.block(giver);
            block.for_each(|i| assert_eq!(output[i], value(giver, i, n), "all_gather of {len} at {i}"));
        }
    }

    fn broadcast(&mut self, len: usize, n: usize, root: usize) {
        let mut buffer = if self.rank == root { self.contribution(len, n) } else { vec![0; len] };
        self.run(OpKind::Broadcast, len, |team, call| team.broadcast(call, bytes_mut(&mut buffer), root))
            .unwrap();
        (0..len).for_each(|i| assert_eq!(buffer[i], value(root, i, n), "broadcast of {len} at {i}"));
    }

    /// Rank `a` gives rank `b` `(a + 2b + len) % (len + 1)` elements.
    fn all_to_all(&mut self, len: usize, n: usize) {
        let (rank, world_size) = (self.rank, self.world_size);
        let count = |from: usize, to: usize| (from + 2 * to + len) % (len + 1);
        let starts = |counts: &dyn Fn(usize) -> usize| -> Vec<usize> {
            (0..=world_size).map(|r| (0..r).map(counts).sum()).collect()
        };
        let (sent, received) = (starts(&|r| count(rank, r)), starts(&|r| count(r, rank)));
        let input: Vec<u32> = (0..world_size)
            .flat_map(|to| (0..count(rank, to)).map(move |i| value(rank, i + to, n)))
            .collect();
        let mut output = vec![0; received[world_size]];
        let range = |starts: &[usize], r: usize| starts[r] * 4..starts[r + 1] * 4;
        let place = |r: usize| range(&received, r);
        let part = |r: usize| range(&sent, r);
        let transfer = Transfer {
            same: false,
            givers: Givers::All,
            largest: 0,
            part: &part,
            place: Some(&place),
            own: None,
            layout: None,
        };
        self.run(OpKind::AllToAll, len, |team, call| {
            team.pull_uneven(call, bytes(&input), bytes_mut(&mut output), transfer)
        })
        .unwrap();
        for from in (0..world_size).filter(|&r| r != rank) {
            for i in 0..count(from, rank) {
                assert_eq!(
                    output[received[from] + i],
                    value(from, i + rank, n),
                    "all_to_all of {len} from {from}"
                );
            }
        }
    }

    fn barrier(&mut self) {
        self.run(OpKind::Barrier, 0, Team::barrier).unwrap();
    }
}

/// Lengths in elements around every border between ways and pieces.
const LENGTHS: [usize; 20] = [
    0, 1, 2, 3, 12, 13, 100, 128, 129, 256, 257, 511, 1000, 4096, 4099, 16_384, 33_000, 70_001, 150_000,
    700_007,
];

fn every_operation(rank: &mut Rank) {
    let world_size = rank.world_size;
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let mut buffer = vec![0u32; len];
        rank.all_reduce_in(bytes_mut(&mut buffer), n, None);
        rank.all_reduce_in(bytes_mut(&mut buffer), n, Some(n % world_size));
        rank.reduce_scatter(len, n);
        rank.all_gather(len, n);
        rank.broadcast(len, n, n % world_size);
        rank.all_to_all(len / world_size, n);
        rank.exchange(bytes_mut(&mut buffer), !(n + rank.rank).is_multiple_of(3), n);
        rank.gather(len / world_size, n, n % world_size);
        rank.scatter(len / world_size, n, (n + 1) % world_size);
        rank.barrier();
    }
}

#[test]
fn every_operation_with_copies_between_address_spaces() {
    for world_size in 1..=5 {
        on_team(world_size, world_size > 3, Reach::Memory, every_operation);
    }
}

#[test]
fn every_operation_through_staging() {
    for world_size in 2..=5 {
        on_team(world_size, world_size != 3, Reach::Staging, every_operation);
    }
}

/// Also where a way would never be recommended: of long buffers, of short ones, on few cores or many.
#[test]
fn every_operation_in_every_way_by_force() {
    use OpKind::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let ops = [AllReduce, Reduce, ReduceScatter, AllGather, Broadcast, AllToAll, Gather, Scatter, Barrier];
    let most = ops.iter().map(|op| MemoryWay::of(*op).len()).max().unwrap();
    for (world_size, reach) in [(2, Reach::Memory), (3, Reach::Memory), (4, Reach::Staging)] {
        for round in 0..most {
            on_team(world_size, world_size == 3, reach, |rank| {
                for op in ops {
                    rank.team.force(op, MemoryWay::of(op)[round % MemoryWay::of(op).len()]);
                }
                every_operation(rank);
                let way = MemoryWay::of(AllReduce)[round % MemoryWay::of(AllReduce).len()];
                let told: Vec<_> = std::iter::from_fn(|| rank.team.not_taken()).collect();
                let obstacle = told.iter().find(|not_taken| not_taken.op == AllReduce);
                let is_limited = match way {
                    MemoryWay::Push => !rank.team.reads_memory,
                    way => way != MemoryWay::TwoPhases,
                };
                assert_eq!(obstacle.map(|not_taken| not_taken.way), is_limited.then_some(way), "{told:?}");
            });
        }
    }
}

#[test]
fn a_rank_with_another_forced_way_is_found_out() {
    on_team(2, true, Reach::Staging, |rank| {
        let way = [MemoryWay::OneShot, MemoryWay::TwoPhases][rank.rank];
        rank.team.force(OpKind::AllReduce, way);
        let mut buffer = vec![0u32; 1000];
        let done = rank.run(OpKind::AllReduce, 1000, |team, call| {
            team.all_reduce(call, bytes_mut(&mut buffer), Rank::reduction(None))
        });
        let Err(Fault::Mismatch { method, .. }) = done else { panic!("{done:?}") };
        let words = ["reduce in one shot of 4000 bytes", "reduce in two phases of 4000 bytes"];
        assert!(method.as_str().starts_with(words[rank.rank]), "{method}");
    });
}

/// One may run on one core, another on two.
#[test]
fn ranks_may_disagree_about_cores() {
    for crowded in 0..3 {
        on_team_where(3, |rank| rank == crowded, Reach::Staging, every_operation);
    }
}

/// Counters that this team has not raised yet are so far behind then.
#[test]
fn after_billions_of_pieces_no_counter_that_is_behind_has_reached_them() {
    let all_are_there = Barrier::new(2);
    on_team(2, true, Reach::Staging, |rank| {
        let team = &mut rank.team;
        all_are_there.wait();
        team.piece = 3 << 30;
        (team.piece - 8..team.piece).for_each(|piece| team.post(piece, &[]));
        team.done(team.piece - 1);
        all_are_there.wait();
        for n in 0..20 {
            let mut buffer = vec![0u32; 300_000];
            rank.all_reduce_in(bytes_mut(&mut buffer), n, None);
        }
    });
}

fn window(rank: &mut Rank, file: &std::os::fd::OwnedFd, len: usize) -> Window {
    rank.team.window(file, len).unwrap()
}

#[test]
fn windows_are_reduced_where_they_lie() {
    let len = 100_000;
    for (world_size, reach) in [(2, Reach::Memory), (3, Reach::Staging), (4, Reach::Memory)] {
        let file = create(window_len(world_size, len * 4).unwrap()).unwrap();
        on_team(world_size, world_size > 2, reach, |rank| {
            let mut window = window(rank, &file, len * 4);
            assert!(window.bytes().iter().all(|&b| b == 0));
            for n in 0..20 {
                let (from, to) = (n * 1000, len - n * 3000);
                rank.all_reduce_in(&mut window.bytes_mut()[from * 4..to * 4], n, None);
                rank.all_reduce_in(&mut window.bytes_mut()[from * 4..to * 4], n, Some(n % world_size));
            }
        });
    }
}

#[test]
fn windows_that_all_have_dropped_are_given_back() {
    let (file, dropped) = (create(window_len(2, 4096).unwrap()).unwrap(), Barrier::new(2));
    on_team(2, true, Reach::Memory, |rank| {
        let window = window(rank, &file, 4096);
        if rank.rank == 0 {
            drop(window);
            rank.barrier();
            assert_eq!(rank.team.windows.len(), 1, "the other may still use it");
        } else {
            rank.barrier();
            drop(window);
        }
        dropped.wait();
        rank.barrier();
        assert_eq!(rank.team.windows.len(), 0);
    });
}

#[test]
fn ranks_may_disagree_about_windows() {
    let lengths = [400usize, 1000, 5000, 20_000, 40_000, 60_000, 100_000];
    for (world_size, reach) in [(2, Reach::Memory), (3, Reach::Staging), (4, Reach::Memory)] {
        let file = create(window_len(world_size, 400_000).unwrap()).unwrap();
        on_team(world_size, world_size > 2, reach, |rank| {
            let mut window = window(rank, &file, 400_000);
            let mut plain = vec![0u32; 100_000];
            let plain = bytes_mut(&mut plain);
            for (n, len) in lengths.into_iter().enumerate() {
                for which in 0..1usize << rank.world_size {
                    let buffer = if which >> rank.rank & 1 == 1 { window.bytes_mut() } else { &mut *plain };
                    rank.all_reduce_in(&mut buffer[..len * 4], n, None);
                }
            }
            drop(window);
            rank.all_reduce_in(plain, 99, None);
        });
    }
}

/// Ranks arrive in any order, some far ahead: nothing is overwritten before it was read.
#[test]
fn who_only_gives_may_run_ahead() {
    for reach in [Reach::Memory, Reach::Staging] {
        on_team(3, false, reach, |rank| {
            for n in 0..300 {
                if n % 37 == rank.rank * 10 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                rank.broadcast([1, 50, 3000, 70_000][n % 4], n, n / 100);
            }
        });
    }
}

/// After calls in an order that is expected, in another, and after more of them than are kept.
#[test]
fn another_call_is_named() {
    let more_than_kept: Vec<usize> = (1..=20).chain((1..=20).rev()).chain(1..=20).collect();
    let histories = [&[][..], &[7, 7], &[8, 8], &[7, 8, 9, 7, 8, 9, 7, 9, 8], &more_than_kept];
    // Who is first is not asked: only that one is told.
    for before in histories.repeat(4) {
        on_team(2, false, Reach::Memory, |rank| another_call_is_named_after(before, rank));
    }
}

fn another_call_is_named_after(before: &[usize], rank: &mut Rank) {
    for (n, &len) in before.iter().enumerate() {
        rank.all_reduce_in(&mut vec![0; 4 * len], n, None);
    }
    let lens = [7, 8];
    let mut buffer = vec![0u32; lens[rank.rank]];
    let len = buffer.len();
    let result = rank.run(OpKind::AllReduce, len, |team, call| {
        team.all_reduce(call, bytes_mut(&mut buffer), Rank::reduction(None))
    });
    match result {
        Err(Fault::Mismatch { theirs: Some(theirs), seq, their_seq, peer, method: ours }) => {
            let theirs_len = lens[1 - rank.rank];
            let method = |len: usize| Method::from(format!("reduce inline of {} bytes", 4 * len));
            assert_eq!(
                *theirs,
                Signature { method: method(theirs_len), ..signature(OpKind::AllReduce, theirs_len) }
            );
            let number = before.len() as u64 + 1;
            assert_eq!((seq, their_seq, peer, ours), (number, number, 1 - rank.rank, method(len)));
        }
        // The other was first, and closed the team.
        Err(Fault::Closed { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// A caller may give a buffer of another length than the signature says, on one rank.
#[test]
fn nobody_writes_beyond_a_buffer_that_is_shorter_than_the_others() {
    const LEN: usize = 4 << 20;
    const SHORT: usize = LEN - (64 << 10);
    type Act = fn(&mut Team, &mut Call<'_>, &mut [u8]) -> Result<(), Fault>;
    let acts: [(OpKind, Act); 2] = [
        (OpKind::AllReduce, |team, call, buffer| team.all_reduce(call, buffer, Rank::reduction(None))),
        (OpKind::Broadcast, |team, call, buffer| team.broadcast(call, buffer, 0)),
    ];
    for (op, act) in acts {
        on_team(2, false, Reach::Memory, |rank| {
            let mut memory = vec![rank.rank as u8 + 1; LEN];
            let len = if rank.rank == 0 { LEN } else { SHORT };
            let (buffer, rest) = memory.split_at_mut(len);
            let result = rank.run(op, LEN, |team, call| act(team, call, buffer));
            assert!(matches!(result, Err(Fault::Mismatch { .. } | Fault::Closed { .. })), "{op}: {result:?}");
            assert!(rest.iter().all(|&byte| byte == 2), "{op}: what lies after the buffer has changed");
        });
    }
}

#[test]
fn a_rank_joins_once() {
    let file = create(segment_len(2)).unwrap();
    std::thread::scope(|scope| {
        let join = |rank| {
            let signature = signature(OpKind::Init, 0);
            let mut wait_check = Patient(Duration::from_secs(30));
            Team::join(
                &file,
                rank,
                2,
                false,
                &mut Call { seq: 0, signature: &signature, wait_check: &mut wait_check },
            )
        };
        let others = [0, 1].map(|rank| scope.spawn(move || join(rank)));
        let teams = others.map(|other| other.join().unwrap().unwrap());
        let Err(Fault::Failed(error)) = join(1) else { panic!("there are two of rank 1") };
        assert!(error.to_string().contains("as rank 1, as another has"), "{error}");
        // Those that are there work on.
        let barriers = teams.map(|mut team| {
            scope.spawn(move || {
                let signature = signature(OpKind::Barrier, 0);
                let mut wait_check = Patient(Duration::from_secs(30));
                team.barrier(&mut Call { seq: 1, signature: &signature, wait_check: &mut wait_check })
            })
        });
        assert!(barriers.into_iter().all(|barrier| barrier.join().unwrap().is_ok()));
    });
}

#[test]
fn parts_of_other_lengths_are_named() {
    let named = Barrier::new(2);
    on_team(2, false, Reach::Memory, |rank| {
        let (mut output, input) = ([0u8; 8], [1u8; 8]);
        let len = if rank.rank == 0 { 4 } else { 8 };
        let part = |_| 0..8;
        let place = |_| 0..len;
        let transfer = Transfer {
            same: false,
            givers: Givers::All,
            largest: 0,
            part: &part,
            place: Some(&place),
            own: None,
            layout: None,
        };
        let result =
            rank.run(OpKind::AllToAll, 0, |team, call| team.pull_uneven(call, &input, &mut output, transfer));
        match (rank.rank, result) {
            (0, Err(Fault::Counts { peer: 1, sent: 8, expected: 4 }))
            | (1, Ok(()) | Err(Fault::Closed { by: Some(0) })) => {}
            other => panic!("{other:?}"),
        }
        named.wait();
    });
}

#[test]
fn who_waits_in_vain_is_stopped() {
    on_team(2, true, Reach::Memory, |rank| {
        if rank.rank == 1 {
            return;
        }
        let signature = signature(OpKind::Barrier, 0);
        let mut wait_check = Patient(Duration::from_millis(50));
        let result =
            rank.team.barrier(&mut Call { seq: 1, signature: &signature, wait_check: &mut wait_check });
        assert!(matches!(result, Err(Fault::Stopped)), "{result:?}");
    });
}

#[test]
fn who_panics_waits_until_nobody_writes_its_memory() {
    let (writes, written) = (Barrier::new(2), AtomicBool::new(false));
    on_team(2, true, Reach::Memory, |rank| {
        let closed = rank.team.region.closed();
        if rank.rank == 0 {
            let lease = rank.team.under_lease(|| {
                writes.wait();
                while !closed.is_closed() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(50));
                written.store(true, Ordering::Relaxed);
            });
            return lease.unwrap();
        }
        writes.wait();
        let panics = || {
            rank.run(OpKind::Barrier, 0, |team, call| {
                team.run(call, Plan::of(Kind::Barrier, MemoryWay::Mutual), |_, _| -> Result<(), _> {
                    panic!("on purpose")
                })
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert!(written.load(Ordering::Relaxed), "it went on while its memory was written");
    });
}
