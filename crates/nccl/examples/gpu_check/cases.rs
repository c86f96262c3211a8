//! What goes wrong in a job, or nearly: each ends as it should, in its time.

use super::capture::Capture;
use super::limit::LONG;
use phalanx_core::{Error, ReduceOp, Result};
use phalanx_group::ProcessGroup;
use phalanx_nccl::{DeviceBuffer, NcclGroup, Stream, Work};
use std::process::Command;
use std::time::Duration;

/// The sum of the ranks' numbers from 1 on, of which each is `scale` times its rank's.
fn sum(all: &NcclGroup, scale: usize) -> Result<()> {
    let n = all.world_size();
    let mut sum = DeviceBuffer::from_host(all.stream(), &[(scale * (all.rank() + 1)) as u64; 1000])?;
    all.all_reduce(&mut sum, ReduceOp::Sum)?.wait()?;
    let found = sum.to_host(all.stream(), LONG)?;
    assert!(found.iter().all(|&it| it == (scale * n * (n + 1) / 2) as u64), "{:?}", &found[..9]);
    Ok(())
}

/// Rank 0 begins a sum on a thread, which ends, and aborts what it has begun. The others hear of that.
pub(crate) fn abort(group: &ProcessGroup, device: usize) -> Result<()> {
    let all = NcclGroup::new(group, device)?;
    sum(&all, 1)?;
    group.barrier()?;
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1u64])?;
    let outcome = if group.rank() == 0 {
        let begin = || all.all_reduce(&mut buffer, ReduceOp::Sum);
        let work = std::thread::scope(|threads| threads.spawn(begin).join().expect("it does not panic"));
        std::thread::sleep(Duration::from_millis(100));
        all.abort("the check says so");
        work.and_then(Work::wait)
    } else {
        // What the others do in the meantime, and then find it aborted.
        std::thread::sleep(Duration::from_secs(1));
        all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait)
    };
    match outcome {
        Err(Error::Aborted { ref peer, .. }) if peer.rank == 0 => {}
        other => panic!("not aborted by rank 0, but {other:?}"),
    }
    assert!(all.stream().synchronize(LONG)?, "the device is still at work");
    drop((buffer, all));
    // Another communicator of this process works.
    let all = NcclGroup::new(group, device)?;
    sum(&all, 2)?;
    all.finalize()
}

/// Two communicators of all ranks, which call in one order on two streams of one device.
pub(crate) fn two(group: &ProcessGroup, device: usize) -> Result<()> {
    let (one, other) = (NcclGroup::new(group, device)?, NcclGroup::new(group, device)?);
    let fresh = |all: &NcclGroup| DeviceBuffer::from_host(all.stream(), &[all.rank() as f32 + 1.0; 1 << 16]);
    for _ in 0..50 {
        let (mut a, mut b) = (fresh(&one)?, fresh(&other)?);
        let first = one.all_reduce(&mut a, ReduceOp::Sum)?;
        let second = other.all_reduce(&mut b, ReduceOp::Sum)?;
        second.wait()?;
        first.wait()?;
        let n = group.world_size();
        for found in [a.to_host(one.stream(), LONG)?, b.to_host(other.stream(), LONG)?] {
            assert!(found.iter().all(|&it| it == (n * (n + 1) / 2) as f32), "{:?}", &found[..9]);
        }
    }
    other.finalize()?;
    one.finalize()
}

/// While another stream captures a graph, sums go on and leave it whole; on that stream they are refused.
pub(crate) fn graph(group: &ProcessGroup, device: usize) -> Result<()> {
    let all = NcclGroup::new(group, device)?;
    sum(&all, 1)?;
    let (compute, mut buffer) = (Stream::new(all.device())?, DeviceBuffer::from_host(all.stream(), &[1u64])?);
    group.barrier()?;
    let capture = Capture::begin(&compute)?;
    let refused = all.on_stream(&compute)?.all_reduce(&mut buffer, ReduceOp::Sum).map(drop);
    for scale in 2..10 {
        sum(&all, scale)?;
    }
    capture.end()?;
    assert!(matches!(refused, Err(Error::Config { .. })), "on a stream that captures: {refused:?}");
    all.on_stream(&compute)?.all_reduce(&mut buffer, ReduceOp::Sum)?.wait()?;
    all.finalize()
}

/// The last rank is killed after a sum. The others name it.
pub(crate) fn killed(group: &ProcessGroup, device: usize) -> Result<()> {
    let all = NcclGroup::new(group, device)?;
    sum(&all, 1)?;
    group.barrier()?;
    let last = group.world_size() - 1;
    if group.rank() == last {
        let kill = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        panic!("it lives on: {kill:?}");
    }
    match sum(&all, 1) {
        Err(Error::PeerLost { ref peer, .. }) if peer.rank == last => {}
        other => panic!("rank {last} was killed, but this is {other:?}"),
    }
    assert!(all.stream().synchronize(LONG)?, "the device is still at work");
    Ok(())
}
