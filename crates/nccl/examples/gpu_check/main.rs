//! What each rank of `scripts/gpu-check` runs: the part of the check that `GPU_CHECK_PART` names, on the device `GPU_CHECK_DEVICE`.

mod blocking;
mod capture;
mod cases;
mod limit;
#[path = "../../tests/suite/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod suite;

use blocking::Blocking;
use limit::LONG;
use phalanx_core::{Error, ReduceOp, Result};
use phalanx_group::ProcessGroup;
use phalanx_nccl::{
    Call, Communicator, Cuda, DataType, Device, DeviceBuffer, Fallback, HybridGroup, Kind, Nccl, Stream,
    UniqueId, Work,
};
use std::time::Duration;

pub(crate) fn main() -> Result<()> {
    let part = std::env::var("GPU_CHECK_PART").unwrap_or_default();
    if part == "facts" {
        return facts();
    }
    let group = phalanx_group::init()?;
    let named = std::env::var("GPU_CHECK_DEVICE").ok().and_then(|number| number.parse().ok());
    let device = named.unwrap_or(group.local_rank());
    let case = match &*part {
        "abort" => Some(cases::abort(&group, device)),
        "two" => Some(cases::two(&group, device)),
        "graph" => Some(cases::graph(&group, device)),
        "killed" => return cases::killed(&group, device),
        _ => None,
    };
    if let Some(outcome) = case {
        return outcome.and_then(|()| group.finalize());
    }
    let fallback = if part == "fallback" { Fallback::Always } else { Fallback::Never };
    let all = HybridGroup::with_fallback(&group, device, fallback)?;
    match &*part {
        "suite" | "fallback" => suite::everything(&all, |_| ()),
        "times" => times(&group, &all)?,
        other => {
            return Err(Error::config(format!(
                "GPU_CHECK_PART is {other:?}: facts, suite, fallback, times, abort, two, graph, or killed"
            )));
        }
    }
    all.finalize()
}

/// A line `gpus N`, and what there is.
#[expect(clippy::print_stdout, reason = "a program for people")]
fn facts() -> Result<()> {
    let cuda = Cuda::load()?;
    println!("gpus {}", Device::count(cuda)?);
    println!("{}, {cuda}, {}", Device::open(cuda, 0)?, Nccl::load()?);
    Ok(())
}

/// An all_reduce by our call, by NCCL's own on a communicator as ours is, and on one of NCCL's that blocks, in turns, on fresh data: a line `all_reduce BYTES OURS
/// BARE BLOCKING`, in microseconds of the device's clock, each the median of `ROUNDS`. For one rank, whose all_reduce in place is nothing, an all_gather, which copies.
#[expect(clippy::print_stdout, reason = "a program for people")]
fn times(group: &ProcessGroup, all: &HybridGroup) -> Result<()> {
    let largest: usize =
        std::env::var("GPU_CHECK_BYTES").ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(256 << 20);
    let (nccl, rank, world_size) = (Nccl::load()?, group.rank(), group.world_size());
    let new_id = || {
        let id = if rank == 0 { Some(UniqueId::new(nccl)?.as_bytes().to_vec()) } else { None };
        group.broadcast_object(id, 0)?.try_into().map_err(|_| Error::config("an id of another length"))
    };
    let id = UniqueId::from_bytes(new_id()?);
    let comm = Communicator::init(nccl, all.device(), &id, rank, world_size, LONG)?;
    let blocking = Blocking::new(nccl, all.device(), &new_id()?, rank, world_size)?;
    let sizes =
        std::iter::successors(Some(1024), |bytes| Some(bytes * 16)).take_while(|&bytes| bytes <= largest);
    for bytes in sizes {
        let numbers: Vec<f32> = (0..bytes / 4).map(|i| ((i * 7919 + rank) % 1009) as f32).collect();
        let input = DeviceBuffer::from_host(all.stream(), &numbers)?;
        let mut output = DeviceBuffer::from_host(all.stream(), &numbers)?;
        let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..=ROUNDS {
            if world_size > 1 {
                rounds[0].push(ours(all, || all.all_reduce(&mut output, ReduceOp::Max))?);
                let (kind, at, count) = (Kind::AllReduce(ReduceOp::Max), output.address(), output.len());
                rounds[1].push(bare(&comm, all.stream(), kind, [at, at], count)?);
                // SAFETY: the buffer has so many elements, and is used by nobody else until the stream is past this.
                rounds[2].push(theirs(all.stream(), || unsafe { blocking.max(at, count, all.stream()) })?);
            } else {
                rounds[0].push(ours(all, || all.all_gather(&input, &mut output))?);
                let (from, to, count) = (input.address(), output.address(), input.len());
                rounds[1].push(bare(&comm, all.stream(), Kind::AllGather, [from, to], count)?);
                // SAFETY: both buffers have so many elements, and are used by nobody else until the stream is past this.
                let gather = || unsafe { blocking.gather(from, to, count, all.stream()) };
                rounds[2].push(theirs(all.stream(), gather)?);
            }
        }
        let [ours, bare, theirs] = rounds.map(|mut times| {
            // The first is slower.
            times.remove(0);
            times.sort();
            times[ROUNDS / 2].as_secs_f64() * 1e6 / CALLS as f64
        });
        if rank == 0 {
            let what = if world_size > 1 { "all_reduce" } else { "all_gather_of_one" };
            println!("{what} {bytes} {ours:.2} {bare:.2} {theirs:.2}");
        }
    }
    blocking.end()?;
    comm.finalize(LONG)
}

const ROUNDS: usize = 9;
/// Calls of a round, one behind the other.
const CALLS: usize = 20;

fn ours(all: &HybridGroup, mut call: impl FnMut() -> Result<Work>) -> Result<Duration> {
    let (time, works) = timed(all.stream(), || (0..CALLS).map(|_| call()).collect::<Result<Vec<_>>>())?;
    works.into_iter().try_for_each(Work::wait).map(|()| time)
}

fn theirs(stream: &Stream, call: impl Fn() -> Result<()>) -> Result<Duration> {
    Ok(timed(stream, || (0..CALLS).try_for_each(|_| call()))?.0)
}

fn bare(
    comm: &Communicator,
    stream: &Stream,
    kind: Kind,
    [from, to]: [u64; 2],
    count: usize,
) -> Result<Duration> {
    let call = Call { kind, from, to, count, data_type: DataType::F32 };
    let (time, ()) = timed(stream, || {
        // SAFETY: the buffers have so many elements, and are used by nobody else until the stream is past this.
        (0..CALLS).try_for_each(|_| unsafe { comm.launch_raw(&[call], stream, LONG) })
    })?;
    Ok(time)
}

/// How long the device needs for what `work` puts on `stream`.
fn timed<R>(stream: &Stream, work: impl FnOnce() -> Result<R>) -> Result<(Duration, R)> {
    let before = stream.record_time()?;
    let outcome = work()?;
    let after = stream.record_time()?;
    after.wait(LONG)?;
    Ok((after.since(&before)?, outcome))
}
