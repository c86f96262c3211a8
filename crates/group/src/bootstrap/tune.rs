//! Measures what moving bytes costs on this machine, in about a second: real groups, whose ranks are threads of this
//! process that talk over the loopback interface.

use crate::bootstrap::prices::{Measured, Prices, cores};
use crate::{ProcessGroup, join};
use phalanx_algo::Link;
use phalanx_core::{DType, Error, LibraryCopy, ReduceOp, Result, Staging};
use phalanx_kernels::Kernel;
use phalanx_rendezvous::{Config, TcpStoreServer};
use phalanx_transport::{Secret, loopback};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for everything of one kind.
const BUDGET: Duration = Duration::from_millis(400);
/// Samples: the fewest that have a median worth the name, and enough.
const SAMPLES: (usize, usize) = (9, 2001);
/// The bytes that each of two ranks sends to the other: too many for caches between the cores, few enough to repeat.
const BLOCK_LEN: usize = 4 << 20;
/// Ranks that show what it costs to share cores. All are in this process, each with a listener, and with a link to each other it talks to:
/// more would need more descriptors than a process may usually have.
const CROWD_MAX: usize = 32;
/// The bytes that are combined at a time, as where messages are received.
const COMBINED_LEN: usize = 256 << 10;

/// Measures this machine. Other work on it makes prices wrong, so have it to yourself.
///
/// # Errors
/// What groups return that can't be made or fail.
pub fn tune() -> Result<Prices> {
    let combine_bytes_per_s = combining();
    let cores = cores();
    let alone = if cores > 1 { on_loopback(2, None, pair)? } else { [Link::LOOPBACK.latency_s, 0.0] };
    let [latency_s, exchange_s] = alone;
    let moving_s = exchange_s - latency_s;
    let bandwidth_bytes_per_s =
        if moving_s > 0.0 { BLOCK_LEN as f64 / moving_s } else { Link::LOOPBACK.bandwidth_bytes_per_s };
    let (ranks, shared) = crowd(cores);
    let ranks_per_core = ranks as f64 / shared as f64;
    let [crowded_s] = on_loopback(ranks, Some(shared), |group| Ok([small(group)?]))?;
    // What `Link::seconds` says of recursive doubling, solved for the turn.
    let hop_s = crowded_s / f64::from(ranks.ilog2()) - ranks_per_core * latency_s;
    let turn_s = (hop_s / (ranks_per_core - 1.0)).max(0.0);
    let loopback =
        Link { latency_s, bandwidth_bytes_per_s, combine_bytes_per_s, turn_s, ranks_per_core: 1.0 };
    let network = Link { combine_bytes_per_s, turn_s, ..Link::TCP };
    Ok(Prices { measured: Some(Measured::here()), loopback, network })
}

/// What two ranks that share memory and have a core each find out when they meet: they take the first of the shortest of each.
#[derive(Debug, Clone, Copy)]
pub struct StagingTimes {
    /// Time of an all_gather of 64 KiB of each rank, by where they stage.
    pub all_gather: [(Staging, Duration); 3],
    /// Time of a broadcast of 64 KiB through memory that changes hands, by which copies are the C library's.
    pub broadcast: [(LibraryCopy, Duration); 3],
    /// How well the kernel copies from one process to another. `None` where the system lets no process do that.
    pub kernel_copy: Option<KernelCopyTimes>,
}

/// How long a copy of 1 MiB takes.
#[derive(Debug, Clone, Copy)]
pub struct KernelCopyTimes {
    /// By a thread.
    pub thread: Duration,
    /// By the kernel.
    pub kernel: Duration,
    /// Whether ranks that find this let the kernel copy between them.
    pub is_worth_it: bool,
}

/// Measures what two ranks that share memory and have a core each find out when they meet. `None` where there are no such ranks.
///
/// # Errors
/// [`Io`](Error::Io) if the memory can't be had.
///
/// # Examples
/// ```
/// if let Some(times) = phalanx_group::tune_staging()? {
///     for (staging, time) in times.all_gather {
///         println!("{staging}: {time:?}");
///     }
/// }
/// # Ok::<(), phalanx_core::Error>(())
/// ```
pub fn tune_staging() -> Result<Option<StagingTimes>> {
    #[cfg(target_os = "linux")]
    if cores() > 1 {
        let (all_gather, broadcast) = phalanx_shm::measure_staging()?;
        let kernel_copy = phalanx_shm::measure_kernel_copy().ok().map(|times| KernelCopyTimes {
            thread: times.thread,
            kernel: times.kernel,
            is_worth_it: times.is_kernel_worth_it(),
        });
        return Ok(Some(StagingTimes { all_gather, broadcast, kernel_copy }));
    }
    Ok(None)
}

/// How many ranks share how many of `cores`: at least two each, and equally many on all where they can.
fn crowd(cores: usize) -> (usize, usize) {
    let shared = cores.min(CROWD_MAX / 2);
    ((2 * shared).next_power_of_two(), shared)
}

/// Keeps this thread, and those that it will start, to so many of the cores that it may use.
#[cfg(target_os = "linux")]
fn keep_to(cores: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut few = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).take(cores).for_each(|core| few.set(core));
    // Where that is refused, ranks meet less often, and the price comes out too low.
    let _ = sched_setaffinity(None, &few);
}

#[cfg(not(target_os = "linux"))]
fn keep_to(_cores: usize) {}

/// Two ranks, each with its core: seconds of a small exchange and of a large one.
fn pair(group: &ProcessGroup) -> Result<[f64; 2]> {
    let small = small(group)?;
    let own = vec![1u8; BLOCK_LEN];
    let mut all = vec![0; 2 * BLOCK_LEN];
    Ok([small, median(group, || group.all_gather(&own, &mut all))?])
}

fn small(group: &ProcessGroup) -> Result<f64> {
    let mut few = [1f32; 16];
    median(group, || group.all_reduce(&mut few, ReduceOp::Max))
}

/// The median of one operation, repeated back to back for the budget; as often on all ranks.
fn median(group: &ProcessGroup, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut sample = || {
        let begun = Instant::now();
        operation()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let warm = (0..SAMPLES.0).map(|_| sample()).collect::<Result<Vec<_>>>()?;
    let mut one = [middle(warm)];
    group.all_reduce(&mut one, ReduceOp::Max)?;
    let fit = (BUDGET.as_secs_f64() / one[0]) as usize;
    Ok(middle((0..fit.clamp(SAMPLES.0, SAMPLES.1)).map(|_| sample()).collect::<Result<Vec<_>>>()?))
}

fn middle(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Bytes a second through the kernel for the commonest reduction.
fn combining() -> f64 {
    let kernel = Kernel::new(ReduceOp::Sum, DType::F32).expect("floats have a sum");
    let (mut into, from) = (vec![0; COMBINED_LEN], vec![0; COMBINED_LEN]);
    let samples = (0..201).map(|_| {
        let begun = Instant::now();
        kernel.combine(&mut into, &from);
        begun.elapsed().as_secs_f64()
    });
    COMBINED_LEN as f64 / middle(samples.collect()).max(1e-9)
}

/// Runs `rank` on `world_size` threads, ranks of a job of their own, on so many cores; returns what rank 0 does.
fn on_loopback<const N: usize>(
    world_size: usize,
    cores: Option<usize>,
    rank: impl Fn(&ProcessGroup) -> Result<[f64; N]> + Sync,
) -> Result<[f64; N]> {
    let secret = Secret::generate()?;
    let server = TcpStoreServer::start(SocketAddr::from((loopback(), 0)), &secret)?;
    let measured = std::thread::scope(|scope| {
        let start = |number: usize| {
            let config = config(number, world_size, server.addr(), &secret)?;
            let rank = &rank;
            Ok(scope.spawn(move || {
                cores.into_iter().for_each(keep_to);
                let group = join(&config)?;
                let measured = rank(&group)?;
                group.finalize()?;
                Ok(measured)
            }))
        };
        let ranks = (0..world_size).map(start).collect::<Result<Vec<_>>>()?;
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err(panicked())));
        ends.collect::<Result<Vec<_>>>()
    })?;
    Ok(measured[0])
}

fn panicked() -> Error {
    Error::Internal { what: "a rank panicked while this machine was measured".into() }
}

fn config(rank: usize, world_size: usize, store: SocketAddr, secret: &Secret) -> Result<Config> {
    Config::from_lookup(|name| {
        Some(match name {
            "PHALANX_RANK" | "PHALANX_LOCAL_RANK" => rank.to_string(),
            "PHALANX_WORLD_SIZE" | "PHALANX_LOCAL_WORLD_SIZE" => world_size.to_string(),
            "PHALANX_STORE" => format!("tcp://{store}"),
            "PHALANX_SECRET" => secret.to_hex(),
            "PHALANX_BACKEND" => "tcp".into(),
            "PHALANX_ALGO" => "all_reduce=recursive_doubling".into(),
            _ => return None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_machines_are_measured_with_few_ranks() {
        assert_eq!([1, 2, 3, 8].map(crowd), [(2, 1), (4, 2), (8, 3), (16, 8)]);
        assert_eq!([16, 17, 64, 500].map(crowd), [(CROWD_MAX, 16); 4]);
    }

    #[test]
    fn a_machine_has_prices() {
        let prices = tune().unwrap();
        let Link { latency_s, bandwidth_bytes_per_s, combine_bytes_per_s, .. } = prices.loopback;
        assert!(latency_s > 0.0 && bandwidth_bytes_per_s > 0.0 && combine_bytes_per_s > 0.0, "{prices:?}");
        assert_eq!(prices.measured, Some(Measured::here()));
    }
}
