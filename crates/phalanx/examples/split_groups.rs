//! Subgroups: even and odd ranks compute different things at the same time, then compare.
//!
//! `phalanx run -n 4 target/debug/examples/split_groups`

use phalanx::ReduceOp;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> phalanx::Result<()> {
    let world = phalanx::init()?;
    let parity = (world.rank() % 2) as u32;
    let half = world.split(Some(parity), world.rank() as i64)?.expect("every rank gave a color");

    let mut product = [world.rank() as i64 + 1];
    half.all_reduce(&mut product, ReduceOp::Prod)?;

    let mut products = vec![0; world.world_size()];
    world.all_gather(&product, &mut products)?;
    if world.rank() == 0 {
        println!("products by rank: {products:?}");
    }
    drop(half);
    world.finalize()
}
