//! Ends well without [`finalize`](phalanx::ProcessGroup::finalize), in the way that its argument names: what the tests of
//! endings run. A program that says nothing and exits with 0 has done all that it promised.
//!
//! `phalanx run -n 3 target/debug/examples/without_finalize all_reduce_async`

use phalanx::{Error, ProcessGroup, ReduceOp, Result, Work};

/// Far more than fits into the buffers of a connection: ranks must wait for each other.
const LARGE: usize = 1 << 20;

/// A way to end, by its name.
type Way = (&'static str, fn(ProcessGroup) -> Result<()>);

const WAYS: [Way; 12] = [
    ("blocking", blocking),
    ("all_reduce_async", |group| sum(&group, 1000)),
    ("large", |group| sum(&group, LARGE)),
    ("reduce_scatter_async", |group| {
        group.reduce_scatter_async(vec![1u32; 100 * group.world_size()], ReduceOp::Sum)?.wait().map(drop)
    }),
    ("all_gather_async", |group| group.all_gather_async(&[group.rank() as u64; 100])?.wait().map(drop)),
    ("send_async", send),
    ("split_async", split),
    ("barrier_last", |group| {
        sum(&group, 1000)?;
        group.barrier()
    }),
    ("not_awaited", not_awaited),
    ("work_outlives_group", |group| work_of(group)?.wait().map(drop)),
    ("another_thread", another_thread),
    ("coalesced", coalesced),
];

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let way = WAYS.iter().find(|(known, _)| *known == name);
    let unknown = || Error::Config { what: format!("no such way to end: '{name}'") };
    let (_, way) = way.ok_or_else(unknown)?;
    way(phalanx::init()?)
}

fn blocking(group: ProcessGroup) -> Result<()> {
    let mut buffer = vec![1.0f32; 1000];
    group.all_reduce(&mut buffer, ReduceOp::Sum)?;
    assert_eq!(buffer, vec![group.world_size() as f32; 1000]);
    Ok(())
}

fn sum(group: &ProcessGroup, len: usize) -> Result<()> {
    let sums = group.all_reduce_async(vec![1.0f32; len], ReduceOp::Sum)?.wait()?;
    assert_eq!(sums, vec![group.world_size() as f32; len]);
    Ok(())
}

/// Round the ring, both directions of each rank at once.
fn send(group: ProcessGroup) -> Result<()> {
    let (rank, world_size) = (group.rank(), group.world_size());
    let (next, previous) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);
    let sent = group.send_async(vec![rank as u64; LARGE / 8], next, 7)?;
    let came = group.recv_async(vec![0u64; LARGE / 8], previous, 7)?.wait()?;
    assert_eq!(came, vec![previous as u64; LARGE / 8]);
    sent.wait().map(drop)
}

fn split(group: ProcessGroup) -> Result<()> {
    let half = group.split(Some(group.rank() as u32 % 2), 0)?.expect("every rank has a color");
    sum(&half, 1000)
}

/// Nobody waits for the last operations: they are performed all the same.
fn not_awaited(group: ProcessGroup) -> Result<()> {
    for _ in 0..3 {
        drop(group.all_reduce_async(vec![1.0f32; LARGE], ReduceOp::Sum)?);
    }
    Ok(())
}

/// The group's handle is gone when this returns.
fn work_of(group: ProcessGroup) -> Result<Work<Vec<f32>>> {
    group.all_reduce_async(vec![1.0f32; LARGE], ReduceOp::Sum)
}

/// The last handle goes on a thread that `main` waits for.
fn another_thread(group: ProcessGroup) -> Result<()> {
    let theirs = group.clone();
    let thread = std::thread::spawn(move || sum(&theirs, 1000));
    drop(group);
    thread.join().expect("it does not panic")
}

/// Many operations under way at once, waited for in the order in which they were begun.
fn coalesced(group: ProcessGroup) -> Result<()> {
    let works: Vec<_> = (0..20)
        .map(|i| group.all_reduce_async(vec![1.0f32; 100 * (i + 1)], ReduceOp::Sum))
        .collect::<Result<_>>()?;
    works.into_iter().try_for_each(|work| work.wait().map(drop))
}
