//! Ranks that call the same and perform it differently, which no setting lets them: all hear how, before a byte is used.

use crate::bootstrap::assembly::meet_all;
use crate::bootstrap::regroup::Assignment;
use crate::bootstrap::thread_job::ThreadJob;
use crate::control::group_health::{GroupHealth, ParentCall};
use crate::engine::partial::Partials;
use crate::group::backend::{Backend, BackendFactory};
use crate::group::call::{HostCall, HostRequest};
use crate::group::request::{Buffers, Request};
use crate::host::BackendChoice;
use crate::host::choose_backend::HostBackends;
use crate::host::hierarchical::HierarchicalBackend;
use crate::host::host_context::HostContext;
use crate::host::scheduled::ScheduledBackend;
use crate::host::shm::ShmBackend;
use phalanx_algo::{Link, Selector};
use phalanx_core::{CallSite, DType, Deadline, Error, Layout, OpKind, ReduceOp, Signature, WORLD};
use phalanx_rendezvous::{Config, TcpStoreServer};
use phalanx_transport::Secret;
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Elements: enough for each host's ranks to have slices of their own.
const LEN: usize = 100_000;
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// One rank's part in a test.
pub(super) struct Part {
    rank: usize,
    job: Arc<dyn HostContext>,
    choice: BackendChoice,
    deadline: Deadline,
    /// All have made what they perform the call with: who hears of the mismatch before that would give up there.
    made: Arc<Barrier>,
}

impl Part {
    fn when_all_have<B>(&self, made: phalanx_core::Result<B>) -> B {
        self.made.wait();
        made.unwrap()
    }

    fn members(&self) -> Vec<usize> {
        (0..self.job.place().world_size).collect()
    }

    /// The world over two levels, whatever is recommended.
    pub(super) fn two_levels(&self, algorithms: &str) -> HierarchicalBackend {
        self.two_levels_with(Selector::forced_from(algorithms).unwrap())
    }

    fn two_levels_with(&self, selector: Selector) -> HierarchicalBackend {
        let health = Arc::new(GroupHealth::new(self.job.clone(), WORLD, self.members()));
        let selector = Arc::new(selector);
        let made =
            HierarchicalBackend::join(&self.job, health, &init(), self.choice, selector, &self.deadline);
        self.when_all_have(made)
    }

    /// The world as a team in shared memory, on a rank that plans otherwise than a build does.
    fn team(&self, reaches_memory: bool, slice_bytes: usize) -> ShmBackend {
        let health = Arc::new(GroupHealth::new(self.job.clone(), WORLD, self.members()));
        self.when_all_have(ShmBackend::planning_otherwise(
            &self.job,
            health,
            &self.deadline,
            reaches_memory,
            slice_bytes,
        ))
    }

    /// The world, with algorithms that need not be those of the other ranks.
    pub(super) fn world(&self, algorithms: &str) -> Arc<dyn Backend> {
        let selector = Arc::new(Selector::forced_from(algorithms).unwrap());
        let job = self.job.clone();
        let backends = HostBackends::new(job, self.choice, selector);
        let made = backends.create(WORLD, self.members(), &init(), &self.deadline);
        self.when_all_have(made)
    }
}

/// The call that makes the world.
fn init() -> Signature {
    Signature::bare(OpKind::Init, CallSite::caller())
}

/// A sum of so many elements: an all_reduce, or, of these blocks, a reduce_scatter.
struct Sum {
    world_size: usize,
    len: usize,
    blocks: Option<Layout>,
}

/// An all_reduce.
fn sum(world_size: usize, len: usize) -> Sum {
    Sum { world_size, len, blocks: None }
}

impl Sum {
    fn request<'a>(&self, dtype: DType, buffer: &'a mut [u8]) -> (Signature, HostRequest<'a>) {
        let (buffers, reduce) = (Buffers::InPlace(buffer), ReduceOp::Sum);
        let request = match self.blocks.clone() {
            None => Request::AllReduce { buffers, reduce },
            Some(blocks) => Request::ReduceScatter { buffers, blocks, reduce },
        };
        let bare = Signature::bare(request.kind(), CallSite::caller());
        let (dtype, count, reduce) = (Some(dtype), self.len as u64, Some(reduce));
        (Signature { dtype, count, reduce, ..bare }, request)
    }

    fn perform(&self, backend: &dyn Backend, rank: usize, buffer: &mut [f32]) -> Result<(), Error> {
        let (signature, request) = self.request(DType::F32, bytemuck::cast_slice_mut(buffer));
        backend.perform(HostCall::new(&signature, request, rank, self.world_size)?, LIMIT)
    }
}

/// What comes of the sum at a rank. Nowhere is a number of one of the `odd` ranks added to one of the others.
fn outcome(rank: usize, backend: &dyn Backend, sum: &Sum, odd: &[usize]) -> Error {
    let mut buffer = vec![(1 << rank) as f32; sum.len];
    let done = sum.perform(backend, rank, &mut buffer);
    let error = done.expect_err("ranks do it in different ways");
    let odd: u32 = odd.iter().map(|rank| 1 << rank).sum();
    let is_mixed = |x: &f32| *x as u32 & odd != 0 && *x as u32 & !odd != 0;
    assert!(!buffer.iter().any(is_mixed), "rank {rank} has used what was sent in another way");
    error
}

fn all<R: Send>(world_size: usize, rank: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..world_size).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Ranks as threads.
pub(super) fn threads<R: Send>(world_size: usize, body: impl Fn(Part) -> R + Sync) -> Vec<R> {
    let jobs: Vec<Arc<dyn HostContext>> =
        ThreadJob::create(world_size, LIMIT).into_iter().map(|job| Arc::new(job) as _).collect();
    let deadline = Deadline::after(Instant::now(), LIMIT);
    let made = Arc::new(Barrier::new(world_size));
    all(world_size, |rank| {
        let (job, made) = (jobs[rank].clone(), made.clone());
        body(Part { rank, job, choice: BackendChoice::Auto, deadline, made })
    })
}

/// Ranks that met in a store, each with these variables besides.
fn met<R: Send>(
    world_size: usize,
    variables: impl Fn(usize) -> (&'static str, String) + Sync,
    body: impl Fn(Part) -> R + Sync,
) -> Vec<R> {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start((Ipv4Addr::LOCALHOST, 0).into(), &secret).unwrap();
    let (made, done) = (Arc::new(Barrier::new(world_size)), Barrier::new(world_size));
    all(world_size, |rank| {
        let (own, value) = variables(rank);
        let config = Config::from_lookup(|name| match name {
            _ if name == own => Some(value.clone()),
            "PHALANX_RANK" => Some(rank.to_string()),
            "PHALANX_WORLD_SIZE" => Some(world_size.to_string()),
            "PHALANX_STORE" => Some(format!("tcp://{}", server.addr())),
            "PHALANX_SECRET" => Some(secret.to_hex()),
            _ => None,
        });
        let config = config.unwrap();
        let deadline = Deadline::after(Instant::now(), config.init_timeout);
        let open = config.open_store(&deadline).unwrap();
        let assignment = Assignment::new(0, rank, (0..world_size as u64).collect());
        let job = Arc::new(meet_all(&config, &secret, &assignment, &open, &deadline).unwrap());
        let choice = match &*config.backend {
            "tcp" => BackendChoice::Links,
            "shm" => BackendChoice::Shm,
            _ => BackendChoice::Auto,
        };
        let part = Part { rank, job, choice, deadline, made: made.clone() };
        let error = catch_unwind(AssertUnwindSafe(|| body(part)));
        done.wait();
        error.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn over_tcp(world_size: usize, body: impl Fn(Part) -> Error + Sync) -> Vec<Error> {
    met(world_size, |_| ("PHALANX_BACKEND", "tcp".into()), body)
}

pub(super) fn over_pipes<R: Send>(world_size: usize, body: impl Fn(Part) -> R + Sync) -> Vec<R> {
    met(world_size, |_| ("PHALANX_BACKEND", "shm".into()), body)
}

/// All name the same two ranks, and how each of them does it, or at least how that begins.
fn assert_named(errors: &[Error], ways: [&str; 2]) {
    let mut told: Vec<_> = errors
        .iter()
        .map(|error| {
            let Error::Mismatch { left, right, .. } = error else { panic!("{error}") };
            let mut both = [left.1.method.to_string(), right.1.method.to_string()];
            both.sort();
            assert!(both.iter().zip(ways).all(|(method, begins)| method.starts_with(begins)), "{error}");
            let words = error.to_string();
            assert!(
                words.contains("how to perform") && ways.iter().all(|method| words.contains(method)),
                "{words}"
            );
            (left.0.rank, right.0.rank)
        })
        .collect();
    told.dedup();
    assert_eq!(told.len(), 1, "{errors:?}");
}

const ALGORITHMS: [&str; 2] = ["all_reduce=recursive_doubling", "all_reduce=flat"];

fn other_algorithm(part: Part) -> Error {
    outcome(part.rank, &*part.world(ALGORITHMS[part.rank]), &sum(2, LEN), &[1])
}

/// The same algorithm on other blocks.
fn other_blocks(part: Part) -> Error {
    let blocks = Some(Layout::from_counts(&[LEN / 2 - part.rank, LEN / 2 + part.rank]));
    let sum = Sum { blocks, ..sum(2, LEN) };
    outcome(part.rank, &*part.world("reduce_scatter=ring"), &sum, &[1])
}

#[test]
fn another_algorithm_is_named_to_all() {
    let ways = ["flat in 2 blocks of 50000", "recursive_doubling in 2 blocks of 50000"];
    for errors in [threads(2, other_algorithm), over_tcp(2, other_algorithm)] {
        assert_named(&errors, ways);
    }
    let ways = ways.map(|way| format!("messages, {way}"));
    assert_named(&over_pipes(2, other_algorithm), [&ways[0], &ways[1]]);
}

#[test]
fn other_blocks_are_named_to_all() {
    let ways = ["ring in 2 blocks of 49999, 50001", "ring in 2 blocks of 50000"];
    for errors in [threads(2, other_blocks), over_tcp(2, other_blocks)] {
        assert_named(&errors, ways);
    }
    let ways = ways.map(|way| format!("messages, {way}"));
    assert_named(&over_pipes(2, other_blocks), [&ways[0], &ways[1]]);
}

/// Of half types, sums that are begun travel as other bytes than contributions do.
#[test]
fn other_sums_are_named_to_all() {
    let errors = threads(2, |part| {
        let health = Arc::new(GroupHealth::new(part.job.clone(), WORLD, part.members()));
        let selector = Arc::new(Selector::forced_from("all_reduce=flat").unwrap());
        let backend = ScheduledBackend::new(health, part.choice, selector);
        let mut buffer = vec![0u8; 2 * LEN];
        let sums = Partials::new(buffer.len());
        let (signature, request) = sum(2, LEN).request(DType::F16, &mut buffer);
        let call = HostCall::new(&signature, request, part.rank, 2).unwrap();
        let whole = ParentCall { signature: &signature, seq: 1, called: Instant::now(), limit: LIMIT };
        let done = match part.rank {
            0 => backend.perform(call, LIMIT),
            _ => backend.perform_part(whole, call, 2, Some(sums)),
        };
        done.expect_err("rank 1 sends sums")
    });
    assert_named(
        &errors,
        ["flat in 2 blocks of 50000 of sums in f32", "flat in 2 blocks of 50000 with sums in f32"],
    );
}

#[test]
fn another_way_of_a_team_is_named_to_all() {
    // Against a rank that stages slices: one whose slices are others, and one that writes to the others' memory.
    let (len, slice) = (1 << 20, 32 << 10);
    let staged = format!("reduce in two phases of {} bytes by {}", 4 * len, 2 * slice);
    let others = [
        (format!("reduce in two phases of {} bytes by {slice}", 4 * len), (false, slice / 2)),
        (format!("reduce by push of {} bytes by {}", 4 * len, 2 * slice), (true, slice)),
    ];
    for (other, planned) in others {
        let errors = over_pipes(2, |part| {
            let (reaches_memory, slice) = if part.rank == 0 { (false, slice) } else { planned };
            outcome(part.rank, &part.team(reaches_memory, slice), &sum(2, len), &[1])
        });
        let mut ways = [staged.as_str(), &other];
        ways.sort_unstable();
        assert_named(&errors, ways);
    }
}

pub(super) fn on_two_hosts<R: Send>(body: impl Fn(Part) -> R + Sync) -> Vec<R> {
    met(4, |rank| ("PHALANX_HOST_ID", format!("host {}", rank / 2)), body)
}

#[test]
fn another_way_over_two_levels_is_named_to_all() {
    // One rank, or a whole host, that has one rank speak for all of a host.
    for odd in [&[3][..], &[2, 3]] {
        let errors = on_two_hosts(|part| {
            let from = if odd.contains(&part.rank) { usize::MAX } else { 0 };
            let backend = part.two_levels("").slicing_from(from);
            outcome(part.rank, &backend, &sum(4, LEN), odd)
        });
        assert_named(&errors, ["slices on two levels, ", "speakers on two levels, "]);
    }
}

#[test]
fn another_algorithm_between_hosts_is_named_to_all() {
    let errors = on_two_hosts(|part| {
        let link = Link { latency_s: [1.0, 1e-9][part.rank / 2], ..Link::TCP };
        let backend = part.two_levels_with(Selector { link, ..Selector::default() });
        outcome(part.rank, &backend, &sum(4, LEN), &[2, 3])
    });
    let across =
        ["recursive_doubling", "ring"].map(|name| format!("slices on two levels, {name} in 2 blocks"));
    assert_named(&errors, [&across[0], &across[1]]);
}

#[test]
fn another_forced_way_over_two_levels_is_named_to_all() {
    let forced = ["all_reduce=two_level/speakers", "all_reduce=two_level/slices"];
    let errors = on_two_hosts(|part| {
        outcome(part.rank, &part.two_levels(forced[part.rank / 2]), &sum(4, LEN), &[2, 3])
    });
    assert_named(&errors, ["slices on two levels", "speakers on two levels"]);
    let forced = ["all_reduce=ring", "all_reduce=two_level/slices"];
    let errors = on_two_hosts(|part| {
        outcome(part.rank, &part.two_levels(forced[part.rank / 2]), &sum(4, LEN), &[2, 3])
    });
    assert_named(&errors, ["one level", "slices on two levels"]);
}

#[test]
fn another_forced_way_in_shared_memory_is_named_to_all() {
    let forced = ["all_reduce=shm/two_phases", "all_reduce=shm/one_shot"];
    let errors =
        over_pipes(2, |part| outcome(part.rank, &*part.world(forced[part.rank]), &sum(2, 1000), &[1]));
    assert_named(&errors, ["reduce in one shot of 4000 bytes", "reduce in two phases of 4000 bytes"]);
}

/// A rank that sends messages, and one that waits for flags.
#[test]
fn messages_and_shared_memory_are_named_to_all() {
    let forced = ["all_reduce=ring", ""];
    let errors =
        over_pipes(2, |part| outcome(part.rank, &*part.world(forced[part.rank]), &sum(2, LEN), &[1]));
    for error in &errors {
        let words = error.to_string();
        assert!(words.contains("by messages") && words.contains("by the recommended way"), "{words}");
    }
}

/// What is forced for one operation leaves the others where they were.
#[test]
fn a_forced_algorithm_leaves_other_operations_in_shared_memory() {
    over_pipes(2, |part| {
        let backend = part.world("all_reduce=ring,reduce_scatter=shm/one_shot");
        assert_eq!(backend.name(), "shm");
        let mut buffer = vec![part.rank as f32 + 1.0; 1000];
        let scattered = Sum { blocks: Some(Layout::even(2, 1000)), ..sum(2, 1000) };
        for sum in [&sum(2, 1000), &scattered, &sum(2, 1000)] {
            sum.perform(&*backend, part.rank, &mut buffer).unwrap();
            if sum.blocks.is_some() {
                // Of its own block alone: the other is anything.
                buffer[[500, 0][part.rank]..][..500].fill(0.0);
            }
        }
        // 1 + 2, that from both, and that of the rank whose block it is.
        assert_eq!(buffer, vec![6.0; 1000]);
        Error::Internal { what: "none: all was well".into() }
    });
}
