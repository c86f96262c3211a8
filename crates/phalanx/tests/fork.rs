//! A process that forks after `init`: the child can drop what it has a copy of, and is told that it is no rank; the parent's
//! group goes on.

#![cfg(target_os = "linux")]

mod support;

use fork::Fork;
use phalanx::launch::Outcome;
use phalanx::{Error, ProcessGroup, ReduceOp, Result, Work};
use std::time::Duration;
use support::{job, role, say};

/// What the job does until it forks, and what the child inherits of it.
struct Inherited {
    group: ProcessGroup,
    half: ProcessGroup,
    memory: phalanx::RegisteredBuffer<f32>,
    /// Of an operation that is under way when the process forks.
    work: Work<Vec<u8>>,
}

fn sum(group: &ProcessGroup) -> Result<()> {
    let sums = group.all_reduce_async(vec![1u32; 50_000], ReduceOp::Sum)?.wait()?;
    assert_eq!(sums, vec![group.world_size() as u32; 50_000]);
    let mut sums = [1u32];
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    assert_eq!(sums, [group.world_size() as u32]);
    Ok(())
}

#[test]
#[ignore = "this is what the processes of the jobs run"]
fn rank() {
    if role().as_deref() != Some("parent") {
        return;
    }
    let group = phalanx::init().unwrap();
    let half = group.split(Some(group.rank() as u32 / 2), 0).unwrap().unwrap();
    sum(&group).unwrap();
    sum(&half).unwrap();
    let mut memory = group.alloc::<f32>(1000).unwrap();
    let (rank, world_size) = (group.rank(), group.world_size());
    let work = group.recv_async(vec![0u8; 8], (rank + 1) % world_size, 3).unwrap();
    match fork::fork().unwrap() {
        Fork::Child => child(Inherited { group, half, memory, work }),
        Fork::Parent(pid) => {
            let status = fork::waitpid(pid).unwrap();
            say("child", format!("ended with {status}"));
            group.send(&[7u8; 8], (rank + world_size - 1) % world_size, 3).unwrap();
            assert_eq!(work.wait().unwrap(), [7; 8]);
            memory.fill(2.0);
            group.all_reduce(&mut memory, ReduceOp::Sum).unwrap();
            assert!(memory.iter().all(|&m| m == 2.0 * world_size as f32));
            sum(&half).unwrap();
            sum(&group).unwrap();
            group.finalize().unwrap();
        }
    }
}

/// Tries everything, drops everything, and ends.
fn child(inherited: Inherited) -> ! {
    let Inherited { group, half, memory, work } = inherited;
    // It would wait for what nobody does here.
    assert!(work.wait_timeout(Duration::from_secs(60)));
    let tries = [
        group.barrier(),
        group.all_reduce(&mut [1u8], ReduceOp::Sum),
        group.all_reduce_async(vec![1u8], ReduceOp::Sum).map(drop),
        group.send(&[1u8], (group.rank() + 1) % group.world_size(), 0),
        group.split(Some(0), 0).map(drop),
        group.shrink().map(drop),
        half.barrier(),
        work.wait().map(drop),
        group.clone().finalize(),
    ];
    group.abort("nobody is to hear this");
    let refused = |tried: &Result<()>| matches!(tried, Err(error @ Error::Misuse { .. }) if error.to_string().contains("was forked from rank"));
    let is_well = tries.iter().all(refused);
    if !is_well {
        say("tries", format!("{tries:?}"));
    }
    drop((memory, half, group));
    std::process::exit(i32::from(!is_well))
}

#[test]
fn a_child_that_drops_its_copy_leaves_the_group_as_it_is() {
    for backend in ["shm", "tcp"] {
        for ranks in [2, 3] {
            let folder = tempfile::tempdir().unwrap();
            let (launch, output) = job("parent", ranks, folder.path());
            let outcome = launch.env("PHALANX_BACKEND", backend).run().unwrap();
            assert!(matches!(outcome, Outcome::Success), "{backend}: {outcome}\n{}", output.text());
            for rank in 0..ranks {
                assert_eq!(output.said(rank, "child"), ["ended with 0"], "{}", output.text());
            }
        }
    }
}
