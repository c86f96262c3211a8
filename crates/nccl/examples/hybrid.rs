//! Memory of the host, memory of a device, and messages in one group.
//!
//! `phalanx run -n 2 target/debug/examples/hybrid`, on a machine with a GPU for each rank and NCCL; without NCCL set `PHALANX_ENABLE_GPU_FALLBACK=1`.

use phalanx_core::{ReduceOp, Result};
use phalanx_nccl::{DeviceBuffer, HybridGroup};

fn main() -> Result<()> {
    let group = phalanx_group::init()?;
    run(&HybridGroup::new(&group, group.local_rank())?)
}

/// A step of a training in little: gradients stay on the devices, statistics and the plan of the next step on the hosts.
pub(crate) fn run(all: &HybridGroup) -> Result<()> {
    let (rank, n) = (all.rank(), all.world_size());
    // On the devices, while the hosts go on.
    let mut grads = DeviceBuffer::from_host(all.stream(), &vec![rank as f32; 1000])?;
    let averaged = all.all_reduce(&mut grads, ReduceOp::Avg)?;

    // Meanwhile, of each host's own.
    let mut samples = [32u64 + rank as u64];
    all.all_reduce(&mut samples[..], ReduceOp::Sum)?.wait()?;
    assert_eq!(samples[0], (0..n as u64).map(|rank| 32 + rank).sum::<u64>());

    // From rank to rank, as the stages of a pipeline do; a tag is for the host's half.
    let mut plan = [0u32; 2];
    if rank > 0 {
        all.host().recv(&mut plan, rank - 1, 7)?;
    }
    plan[0] += 1;
    if rank + 1 < n {
        all.host().send(&plan, rank + 1, 7)?;
    }
    assert_eq!(plan, [rank as u32 + 1, 0]);

    averaged.wait()?;
    let mean = (n - 1) as f32 / 2.0;
    assert_eq!(grads.to_host(all.stream(), all.host().timeout())?, vec![mean; 1000]);
    // The last rank has seen all, and its device tells the others'.
    let mut word = DeviceBuffer::from_host(all.stream(), &[plan[0]])?;
    all.broadcast(&mut word, n - 1)?.wait()?;
    assert_eq!(word.to_host(all.stream(), all.host().timeout())?, [n as u32]);
    all.synchronize()?;
    all.clone().finalize()
}
