//! Pre-multiplied sums: every rank multiplies by its own factor, and what is refused changes nothing.

use super::algorithms::rounds;
use super::{WORLDS, assert_bits, inputs, lengths, roots, several_frames, uneven};
use crate::World;
use crate::oracle::{self, Sample};
use half::{bf16, f16};
use phalanx_core::ReduceOp;
use phalanx_group::{ProcessGroup, Work};

/// The factor of a rank. Products with [exact](crate::oracle::Random::exact) values are exact in every type, and so are their sums in `f32`.
fn factor(rank: usize) -> f64 {
    [0.5, -1.0, 2.0][rank % 3]
}

/// Every reduction, blocking and not, in place and not, for every type of floats.
pub fn every_rank_multiplies_by_its_own_factor(world: &World) {
    for world_size in WORLDS {
        world.run(world_size, |group| {
            for len in lengths(group.world_size()) {
                products::<f32>(&group, len, f64::from, |v| v as f32);
                products::<f64>(&group, len, |v| v, |v| v);
                products::<f16>(&group, len, f16::to_f64, f16::from_f64);
                products::<bf16>(&group, len, bf16::to_f64, bf16::from_f64);
            }
        });
    }
}

/// The same under each algorithm, and in the order of the ranks where that may be demanded.
pub fn products_are_the_same_under_every_algorithm(world: &World) {
    for algorithms in rounds() {
        for world_size in [2, 3, 5, 8] {
            world.clone().algorithms(algorithms.as_str()).run(world_size, |group| {
                products::<f32>(&group, 4_099, f64::from, |v| v as f32);
                products::<bf16>(&group, 1_031, bf16::to_f64, bf16::from_f64);
            });
        }
    }
    world.run(4, |group| {
        let group = group.reproducible();
        products::<f64>(&group, 131, |v| v, |v| v);
        products::<f16>(&group, 131, f16::to_f64, f16::from_f64);
    });
}

/// Messages of several frames, longer than what is multiplied at a time.
pub fn products_over_several_frames(world: &World) {
    world.run(3, |group| {
        products::<f32>(&group, several_frames::<f32>() / 4, f64::from, |v| v as f32);
        products::<f16>(&group, several_frames::<f16>() / 4, f16::to_f64, f16::from_f64);
    });
}

/// A product, or a sum of some, that is no number of the type: only the result is rounded.
pub fn products_of_half_types_are_rounded_once(world: &World) {
    for algorithms in [String::new()].into_iter().chain(rounds()) {
        for world_size in [2, 4, 7] {
            world.clone().algorithms(algorithms.as_str()).run(world_size, |group| {
                let (rank, world_size) = (group.rank(), group.world_size());
                // Twice and minus twice the largest number, which f16 has neither of.
                let huge = [2.0, -2.0].get(rank).copied().unwrap_or(0.0);
                let one = if rank == 0 { 1.0 } else { 0.0 };
                for group in [group.clone(), group.reproducible()] {
                    if algorithms_keep_order(&group) {
                        let mut sum = vec![f16::MAX; 700];
                        group.all_reduce(&mut sum, ReduceOp::PreMulSum(huge)).unwrap();
                        assert_bits(&sum, &[f16::ZERO; 700], "products that overflow");
                        // Each product is 1 + 1/256, of which bf16 has nothing but 1.
                        let mut sum = vec![bf16::ONE; 700];
                        group.all_reduce(&mut sum, ReduceOp::PreMulSum(1.0 + 1.0 / 256.0)).unwrap();
                        let expected = bf16::from_f32(world_size as f32 * (1.0 + 1.0 / 256.0));
                        assert_bits(&sum, &[expected; 700], "products that are between two numbers");
                        // Where a rank gives nothing, it gives zeros.
                        let mut sum = vec![bf16::from_f32(3.0); 9];
                        group.all_reduce(&mut sum, ReduceOp::PreMulSum(one)).unwrap();
                        assert_bits(&sum, &[bf16::from_f32(3.0); 9], "the product of one rank");
                    }
                }
            });
        }
    }
}

/// A reproducible handle refuses where another order is forced.
fn algorithms_keep_order(group: &ProcessGroup) -> bool {
    group.all_reduce(&mut [0u8; 1], ReduceOp::Sum).is_ok()
}

fn products<T: Sample>(group: &ProcessGroup, len: usize, to: fn(T) -> f64, from: fn(f64) -> T) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let op = ReduceOp::PreMulSum(factor(rank));
    let what = |name: &str| format!("{name}({len}, {op}) on rank {rank} of {world_size}");
    let values = inputs(group, len, |random, len| random.exact::<T>(len, ReduceOp::Sum));
    let multiplied = |rank: usize, values: &[T]| -> Vec<T> {
        values.iter().map(|&value| from(to(value) * factor(rank))).collect()
    };
    let all: Vec<Vec<T>> = values.iter().enumerate().map(|(rank, values)| multiplied(rank, values)).collect();
    let expected = oracle::reduce(&all, ReduceOp::Sum);
    let mine = || values[rank].clone();

    let mut buffer = mine();
    group.all_reduce(&mut buffer, op).unwrap();
    assert_bits(&buffer, &expected, what("all_reduce"));
    let mut registered = group.alloc::<T>(len).unwrap();
    registered.copy_from_slice(&mine());
    group.all_reduce(&mut registered, op).unwrap();
    assert_bits(&registered, &expected, what("all_reduce of a registered buffer"));
    registered.copy_from_slice(&mine());
    let begun = group.all_reduce_async(registered, op).unwrap();
    assert_bits(&begun.wait().unwrap(), &expected, what("all_reduce_async of a registered buffer"));
    let found = group.all_reduce_async(mine(), op).and_then(Work::wait).unwrap();
    assert_bits(&found, &expected, what("all_reduce_async"));

    let before = oracle::reduce(&all[..=rank], ReduceOp::Sum);
    let mut buffer = mine();
    group.scan(&mut buffer, op).unwrap();
    assert_bits(&buffer, &before, what("scan"));
    let found = group.scan_async(mine(), op).and_then(Work::wait).unwrap();
    assert_bits(&found, &before, what("scan_async"));

    for root in roots(world_size) {
        let mut buffer = mine();
        group.reduce(&mut buffer, op, root).unwrap();
        let begun = group.reduce_async(mine(), op, root).and_then(Work::wait).unwrap();
        for (found, name) in [(buffer, "reduce"), (begun, "reduce_async")] {
            if rank == root {
                assert_bits(&found, &expected, what(name));
            }
        }
    }

    for counts in [vec![len / world_size; world_size], uneven(world_size, len / world_size)] {
        let whole: usize = counts.iter().sum();
        let expected = oracle::blocks(&expected[..whole], &counts)[rank].clone();
        let input = &values[rank][..whole];
        let mut block = vec![T::zeroed(); counts[rank]];
        group.reduce_scatter_v(input, &mut block, &counts, op).unwrap();
        assert_bits(&block, &expected, what("reduce_scatter_v"));
        let found = group.reduce_scatter_v_async(input.to_vec(), &counts, op).and_then(Work::wait).unwrap();
        assert_bits(&found, &expected, what("reduce_scatter_v_async"));
        if counts.iter().all(|&count| count == counts[0]) {
            block.fill(T::zeroed());
            group.reduce_scatter(input, &mut block, op).unwrap();
            assert_bits(&block, &expected, what("reduce_scatter"));
            let mut buffer = input.to_vec();
            group.reduce_scatter_in_place(&mut buffer, op).unwrap();
            let own = rank * counts[rank]..(rank + 1) * counts[rank];
            assert_bits(&buffer[own], &expected, what("reduce_scatter_in_place"));
            let found = group.reduce_scatter_async(input.to_vec(), op).and_then(Work::wait).unwrap();
            assert_bits(&found, &expected, what("reduce_scatter_async"));
        }
        // What is no output stays as it is.
        assert_bits(&values[rank], &mine(), what("the input"));
    }
}
