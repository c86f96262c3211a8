//! Many small operations in a random order, between which ranks dawdle at random; every element of every result is checked.
//!
//! `phalanx run -n 4 target/release/examples/stress 1000000 7`: operations, and the seed of their order.

use phalanx::{ProcessGroup, ReduceOp, Result};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Elements of most operations: 4 KiB.
const SMALL: u64 = 1024;
/// Of one in [`SELDOM`]: 1 MiB, which takes other ways than the small ones.
const LARGE: u64 = 256 << 10;
const SELDOM: u64 = 4096;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> Result<ExitCode> {
    let argument = |index, otherwise| {
        std::env::args().nth(index).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (operations, seed): (u64, u64) = (argument(1, 20_000), argument(2, 1));
    let group = phalanx::init()?;
    let mut order = Random(seed);
    let mut delays = Random(!seed ^ (group.rank() as u64) << 32);
    let began = Instant::now();
    let mut wrong = [0];
    for _ in 0..operations {
        dawdle(&mut delays);
        wrong[0] += perform(&group, &mut order)?;
    }
    group.all_reduce(&mut wrong, ReduceOp::Sum)?;
    if group.rank() == 0 {
        let (backend, ranks) = (group.backend_name(), group.world_size());
        let rate = operations as f64 / began.elapsed().as_secs_f64();
        println!(
            "{ranks} ranks over {backend}: {operations} operations, {rate:.0} a second, {} wrong",
            wrong[0]
        );
    }
    group.finalize()?;
    Ok(if wrong == [0] { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Performs the next operation; returns how many elements of its result are not as they must be.
fn perform(group: &ProcessGroup, order: &mut Random) -> Result<u64> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let limit = if order.below(SELDOM) == 0 { LARGE } else { SMALL >> order.below(11) };
    let len = order.below(limit + 1) as usize;
    let block = len / ranks;
    let root = order.below(ranks as u64) as usize;
    let data = Data(order.next());
    let combined = |i| (0..ranks).map(|r| data.of(r, i)).sum();
    Ok(match order.below(6) {
        0 => {
            let mut buffer = data.row(rank, len);
            group.all_reduce(&mut buffer, ReduceOp::Sum)?;
            differences(&buffer, combined)
        }
        1 => {
            let mut buffer = data.row(rank, len);
            group.broadcast(&mut buffer, root)?;
            differences(&buffer, |i| data.of(root, i))
        }
        2 => {
            let mut all = vec![0; block * ranks];
            group.all_gather(&data.row(rank, block), &mut all)?;
            differences(&all, |i| data.of(i / block, i % block))
        }
        3 => {
            let mut own = vec![0; block];
            group.reduce_scatter(&data.row(rank, block * ranks), &mut own, ReduceOp::Sum)?;
            differences(&own, |i| combined(rank * block + i))
        }
        4 => {
            let mut received = vec![0; block * ranks];
            group.all_to_all(&data.row(rank, block * ranks), &mut received)?;
            differences(&received, |i| data.of(i / block, rank * block + i % block))
        }
        _ => {
            group.barrier()?;
            0
        }
    })
}

fn differences(found: &[u32], expected: impl Fn(usize) -> u32) -> u64 {
    found.iter().enumerate().filter(|&(i, &x)| x != expected(i)).count() as u64
}

/// What the ranks contribute to one operation: every rank can tell what each of them has.
struct Data(u64);

impl Data {
    /// Element `i` of a rank: below 2²⁴, so that sums fit.
    fn of(&self, rank: usize, i: usize) -> u32 {
        let start = (self.0 ^ (rank as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (start.wrapping_add((i as u64).wrapping_mul(0xd1b5_4a32_d192_ed03)) >> 40) as u32
    }

    fn row(&self, rank: usize, len: usize) -> Vec<u32> {
        (0..len).map(|i| self.of(rank, i)).collect()
    }
}

/// Hardly ever anything; else the rank works for a while, gives its core away, or sleeps.
fn dawdle(delays: &mut Random) {
    match delays.below(2000) {
        0 => std::thread::sleep(Duration::from_micros(delays.below(1000))),
        1..40 => {
            let (began, time) = (Instant::now(), Duration::from_micros(delays.below(20)));
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        40..80 => std::thread::yield_now(),
        _ => {}
    }
}

/// SplitMix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
