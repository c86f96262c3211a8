//! Many buffers in one call: each ends as by a call of its own.

use super::{assert_bits, inputs};
use crate::World;
use crate::oracle::{self, Random, Sample};
use half::bf16;
use phalanx_core::{Error, Loss, OpKind, ReduceOp};
use phalanx_group::{ProcessGroup, Work};
use std::sync::Barrier;
use std::time::Duration;

/// Elements of each buffer: nothing, few, more than travel together, and so many small ones that they make several packs.
fn lens() -> Vec<usize> {
    let few = [3, 0, 1, 131, 40_000, 7, 9_000, 2];
    few.into_iter().chain((0..80).map(|i| 2_000 + i)).collect()
}

/// Every operation, blocking and not, for types of every size, in worlds of one rank and more.
pub fn each_buffer_ends_as_by_a_call_of_its_own(world: &World) {
    for world_size in [1, 2, 3, 5] {
        world.run(world_size, |group| {
            for lens in [lens(), vec![5], vec![40_000], vec![0; 3], Vec::new()] {
                all_three::<f32>(&group, &lens, ReduceOp::Sum);
            }
            all_three::<bf16>(&group, &lens(), ReduceOp::Avg);
            all_three::<u8>(&group, &lens(), ReduceOp::BitXor);
            all_three::<f64>(&group, &[3, 5_000], ReduceOp::Max);
            all_three::<i16>(&group, &lens()[..6], ReduceOp::Prod);
        });
    }
}

fn all_three<T: Sample>(group: &ProcessGroup, lens: &[usize], op: ReduceOp) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let what = |name: &str, i: usize| {
        format!("{name}: buffer {i} of {lens:?}, {op}, on rank {rank} of {world_size}")
    };
    let values: Vec<Vec<Vec<T>>> = lens
        .iter()
        .map(|&len| inputs(group, len * world_size, |random, len| random.exact::<T>(len, op)))
        .collect();
    let mut sums: Vec<Vec<T>> = values.iter().map(|all| all[rank].clone()).collect();
    let mut borrowed: Vec<&mut [T]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
    group.all_reduce_coalesced(&mut borrowed, op).unwrap();
    for (i, (sum, all)) in sums.iter().zip(&values).enumerate() {
        assert_bits(sum, &oracle::reduce(all, op), what("all_reduce_coalesced", i));
    }
    // Those that do not block are all under way at once. What they are to give is what these give.
    let whole = || values.iter().map(|all| all[rank].clone()).collect::<Vec<_>>();
    let mine: Vec<&[T]> = values.iter().zip(lens).map(|(all, &len)| &all[rank][..len]).collect();
    let summed = group.all_reduce_coalesced_async(whole(), op).unwrap();
    let scattered = group.reduce_scatter_coalesced_async(whole(), op).unwrap();
    let together = group.all_gather_coalesced_async(&mine).unwrap();

    let whole: Vec<&[T]> = values.iter().map(|all| &all[rank][..]).collect();
    let mut blocks: Vec<Vec<T>> = lens.iter().map(|&len| vec![T::zeroed(); len]).collect();
    let mut borrowed: Vec<&mut [T]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
    group.reduce_scatter_coalesced(&whole, &mut borrowed, op).unwrap();
    for (i, (block, all)) in blocks.iter().zip(&values).enumerate() {
        let expected = &oracle::reduce(all, op)[rank * lens[i]..(rank + 1) * lens[i]];
        assert_bits(block, expected, what("reduce_scatter_coalesced", i));
    }

    let mut gathered: Vec<Vec<T>> = lens.iter().map(|&len| vec![T::zeroed(); len * world_size]).collect();
    let mut borrowed: Vec<&mut [T]> = gathered.iter_mut().map(Vec::as_mut_slice).collect();
    group.all_gather_coalesced(&mine, &mut borrowed).unwrap();
    for (i, (found, all)) in gathered.iter().zip(&values).enumerate() {
        let of_all: Vec<Vec<T>> = all.iter().map(|values| values[..lens[i]].to_vec()).collect();
        assert_bits(found, &oracle::gather(&of_all), what("all_gather_coalesced", i));
    }

    let same = |name: &str, found: Vec<Vec<T>>, expected: &[Vec<T>]| {
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_bits(found, expected, what(name, i));
        }
    };
    same("all_gather_coalesced_async", together.wait().unwrap(), &gathered);
    same("all_reduce_coalesced_async", summed.wait().unwrap(), &sums);
    same("reduce_scatter_coalesced_async", scattered.wait().unwrap(), &blocks);
}

/// On a reproducible handle the bits are those of single calls, though sums depend on their order; and factors are each rank's own.
pub fn what_travels_together_has_the_bits_of_single_calls(world: &World) {
    for world_size in [3, 4, 8] {
        world.run(world_size, move |group| {
            let group = group.reproducible();
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum(1.0 / (3 + group.rank()) as f64)] {
                let draw = |&len: &usize| inputs(&group, len, Random::rough::<f32>).swap_remove(group.rank());
                let (mut together, mut single): (Vec<_>, Vec<_>) =
                    lens().iter().map(|len| (draw(len), draw(len))).unzip();
                let mut borrowed: Vec<&mut [f32]> = together.iter_mut().map(Vec::as_mut_slice).collect();
                group.all_reduce_coalesced(&mut borrowed, op).unwrap();
                let begun = group.all_reduce_coalesced_async(single.clone(), op).unwrap();
                single.iter_mut().for_each(|buffer| group.all_reduce(buffer, op).unwrap());
                let begun = begun.wait().unwrap();
                for (i, (together, single)) in together.iter().zip(&single).enumerate() {
                    let what = |how: &str| format!("buffer {i}, {op}, {how}, on {world_size} ranks");
                    assert_bits(together, single, what("blocking"));
                    assert_bits(&begun[i], single, what("asynchronous"));
                }
            }
        });
    }
}

/// Buffers that do not go together are refused before anything is sent, by number.
pub fn buffers_that_do_not_go_together_hurt_nobody(world: &World) {
    world.run(2, |group| {
        if group.rank() == 0 {
            let (three, mut two) = ([1u8; 3], [0u8; 2]);
            let refused = |outcome: Result<(), Error>, op: OpKind, why: &str| {
                let error = outcome.unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, Error::Misuse { .. }) && text.contains(why), "{text}");
                assert!(text.starts_with(op.name()) && text.contains("coalesced.rs:"), "{text}");
            };
            let gathered = group.all_gather_coalesced(&[&three[..1], &three], &mut [&mut two, &mut [0; 5]]);
            refused(gathered, OpKind::AllGather, "output 1 has 5 elements, expected 3 × 2 ranks");
            let gathered = group.all_gather_coalesced(&[&three], &mut []);
            refused(gathered, OpKind::AllGather, "1 inputs and 0 outputs");
            let reduced = group.reduce_scatter_coalesced(&[&three], &mut [&mut two], ReduceOp::Sum);
            refused(reduced, OpKind::ReduceScatter, "input 0 has 3 elements, expected 2 × 2 ranks");
            let reduced = group.all_reduce_coalesced(&mut [&mut [1f32], &mut [2f32]], ReduceOp::BitOr);
            refused(reduced, OpKind::AllReduce, "bit_or is for integers, not for f32");
            let begun = group.reduce_scatter_coalesced_async(vec![vec![1u8; 2], vec![1; 3]], ReduceOp::Sum);
            let why = "input 1 has 3 elements, expected a multiple of 2 (the ranks)";
            refused(begun.map(drop), OpKind::ReduceScatter, why);
            let begun = group.all_reduce_coalesced_async(vec![vec![1f32], vec![2.0]], ReduceOp::BitOr);
            refused(begun.map(drop), OpKind::AllReduce, "bit_or is for integers, not for f32");
        }
        let (mut one, mut other) = ([1u8], [2u8]);
        group.all_reduce_coalesced(&mut [&mut one, &mut other], ReduceOp::Sum).unwrap();
        assert_eq!((one, other), ([2], [4]));
    });
}

/// Buffers that ranks of a host share are given back as they came, with the results.
pub fn buffers_in_flight_come_back(world: &World) {
    world.run(2, |group| {
        let lens = [3, 20_000, 0];
        let buffers = lens.map(|len| {
            let mut buffer = group.alloc::<f32>(len).unwrap();
            buffer.iter_mut().for_each(|value| *value = group.rank() as f32 + 1.0);
            buffer
        });
        let work = group.all_reduce_coalesced_async(buffers.into(), ReduceOp::Sum).unwrap();
        let sums = work.wait().unwrap();
        assert_eq!(sums.iter().map(|sum| sum.len()).collect::<Vec<_>>(), lens);
        assert!(sums.iter().all(|sum| sum.iter().all(|&value| value == 3.0)));
    });
}

/// A call that is performed in several operations ends when the group does, and names the line that made it.
pub fn buffers_in_flight_are_told_of_a_loss(world: &World) {
    world.run(3, |group| {
        if group.rank() == 2 {
            return;
        }
        // So many that the first have failed before the last are begun.
        let (buffers, line) = (vec![vec![1f32; 40_000]; 64], line!() + 1);
        let work = group.all_reduce_coalesced_async(buffers, ReduceOp::Sum);
        let error = work.and_then(Work::wait).unwrap_err();
        let is_told = matches!(&error, Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == 2);
        assert!(is_told && error.to_string().contains(&format!("coalesced.rs:{line}")), "{error}");
        let error = group.all_gather_coalesced_async(&[&[1u8][..]]).and_then(Work::wait).unwrap_err();
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    });
}

/// The limit is that of each operation of a call, as of the blocking one.
pub fn buffers_in_flight_have_a_limit(world: &World) {
    let (world, all_have_failed) = (world.clone().timeout(Duration::from_secs(1)), Barrier::new(2));
    world.run(2, move |group| {
        if group.rank() == 1 {
            let (buffers, line) = (vec![vec![1f32; 2], vec![1.0; 40_000]], line!() + 1);
            let work = group.all_reduce_coalesced_async(buffers, ReduceOp::Sum).unwrap();
            let error = work.wait().unwrap_err();
            let Error::Timeout { missing, .. } = &error else { panic!("not a timeout: {error}") };
            assert!(missing.iter().all(|peer| peer.rank == 0), "{error}");
            assert!(error.to_string().contains(&format!("coalesced.rs:{line}")), "{error}");
        }
        all_have_failed.wait();
    });
}
