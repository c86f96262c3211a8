//! Point to point: a vector goes round the ring, each rank adds its own, while all work on something else together.
//!
//! `phalanx run -n 3 target/debug/examples/pipeline`

use phalanx::ReduceOp;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> phalanx::Result<()> {
    let group = phalanx::init()?;
    let (rank, world_size) = (group.rank(), group.world_size());
    if world_size == 1 {
        println!("a ring needs at least two ranks");
        return group.finalize();
    }
    let (next, previous) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);

    let background = group.all_reduce_async(vec![1.0f32; 1 << 16], ReduceOp::Avg)?;
    let mut token = vec![0u32; 4];
    if rank > 0 {
        group.recv(&mut token, previous, 1)?;
    }
    token.iter_mut().for_each(|t| *t += rank as u32 + 1);
    group.send(&token, next, 1)?;
    if rank == 0 {
        group.recv(&mut token, previous, 1)?;
        println!("after one round: {token:?}");
    }
    assert_eq!(background.wait()?, vec![1.0; 1 << 16]);
    group.finalize()
}
