//! The smallest job: everybody says hello, and all add up their ranks.
//!
//! `phalanx run -n 4 target/debug/examples/hello`

use phalanx::ReduceOp;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> phalanx::Result<()> {
    let group = phalanx::init()?;
    let mut sum = [group.rank()].map(|r| r as u64);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("hello from rank {} of {}; the ranks add up to {}", group.rank(), group.world_size(), sum[0]);
    group.finalize()
}
