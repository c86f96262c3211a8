//! All ranks have the same bits where one rank's thread is in another state than the others'.

#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]

mod common;

use common::states::{FAST_MATH, State, TRAPPING, UPWARD, in_state, set, state};
use half::{bf16, f16};
use phalanx_core::ReduceOp;
use phalanx_testkit::World;
use phalanx_testkit::oracle::{self, Random, Sample};

const RANKS: usize = 3;
const ODD: usize = 1;
const LEN: usize = 1031;
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// What rank `rank` gives: subnormals whose sums, averages and products over three ranks are exact, so that each way gives
/// the oracle's bits. In a product the first rank's are subnormal, and the others' are factors.
fn contribution<T: Sample>(rank: usize, op: ReduceOp) -> Vec<T> {
    let mut random = Random::new(rank as u64);
    if op == ReduceOp::Prod && rank > 0 {
        return random.exact(LEN, op);
    }
    let mut subnormal = || {
        // The first bits of a type are its smallest numbers, and the highest one is the sign.
        let mut bits = 12 * random.below(4) as u64;
        bits |= (random.bits() & 1) << (8 * size_of::<T>() - 1);
        let mut value = T::zeroed();
        bytemuck::bytes_of_mut(&mut value).copy_from_slice(&bits.to_le_bytes()[..size_of::<T>()]);
        value
    };
    (0..LEN).map(|_| subnormal()).collect()
}

/// All reductions of a group, blocking and not. Afterwards the thread is in the state in which it came.
fn reductions<T: Sample>(group: &phalanx_group::ProcessGroup, own: State) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for op in OPS {
        let mine = contribution::<T>(group.rank(), op);
        let mut keep = |what: &str, result: &[T]| {
            assert_eq!(state(), own, "{what} {op} of {}: the thread's state has changed", T::DTYPE);
            found.push(bytemuck::cast_slice(result).to_vec());
        };

        let mut buffer = mine.clone();
        group.all_reduce(&mut buffer, op).unwrap();
        keep("all_reduce", &buffer);

        let mut few = mine[..1].to_vec();
        group.all_reduce(&mut few, op).unwrap();
        keep("all_reduce of one", &few);

        let later = group.all_reduce_async(mine.clone(), op).unwrap();
        keep("all_reduce_async", &later.wait().unwrap());

        let mut buffer = mine.clone();
        group.reduce(&mut buffer, op, ODD).unwrap();
        group.broadcast(&mut buffer, ODD).unwrap();
        keep("reduce", &buffer);

        let (mut all, each) = (vec![T::zeroed(); LEN - LEN % RANKS], LEN / RANKS);
        let mut block = vec![T::zeroed(); each];
        group.reduce_scatter(&mine[..each * RANKS], &mut block, op).unwrap();
        group.all_gather(&block, &mut all).unwrap();
        keep("reduce_scatter", &all);
    }
    found
}

fn every_type(group: &phalanx_group::ProcessGroup, own: State) -> Vec<Vec<u8>> {
    let mut found = reductions::<f32>(group, own);
    found.extend(reductions::<f64>(group, own));
    found.extend(reductions::<f16>(group, own));
    found.extend(reductions::<bf16>(group, own));
    found
}

/// What the oracle says of the same.
fn expected() -> Vec<Vec<u8>> {
    fn of<T: Sample>(into: &mut Vec<Vec<u8>>) {
        for op in OPS {
            let inputs: Vec<_> = (0..RANKS).map(|rank| contribution::<T>(rank, op)).collect();
            let all = oracle::reduce(&inputs, op);
            for len in [LEN, 1, LEN, LEN, LEN - LEN % RANKS] {
                into.push(bytemuck::cast_slice(&all[..len]).to_vec());
            }
        }
    }
    let mut all = Vec::new();
    of::<f32>(&mut all);
    of::<f64>(&mut all);
    of::<f16>(&mut all);
    of::<bf16>(&mut all);
    all
}

/// Fails unless every rank has what the oracle has.
fn assert_oracle(ranks: &[Vec<Vec<u8>>], world: &World, odd: State) {
    let expected = expected();
    for (rank, found) in ranks.iter().enumerate() {
        let wrong = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert!(
            wrong == 0 && found.len() == expected.len(),
            "state {odd:#x}: rank {rank} has other bits in {wrong} of {} results; {world:?}",
            expected.len()
        );
    }
}

fn worlds() -> Vec<World> {
    let mut worlds = vec![World::thread(), World::tcp()];
    if cfg!(target_os = "linux") {
        worlds.extend([World::shm(), World::hosts(2)]);
    }
    worlds
}

#[test]
fn one_rank_in_another_state_has_the_bits_of_all() {
    for world in worlds() {
        for odd in [FAST_MATH, UPWARD, TRAPPING] {
            let found = world.run(RANKS, move |group| {
                if group.rank() != ODD {
                    return every_type(&group, common::states::DEFAULT);
                }
                let (found, left) = in_state(odd, || every_type(&group, odd));
                assert_eq!(left, odd);
                found
            });
            assert_oracle(&found, &world, odd);
        }
    }
}

/// A new thread has its maker's state: here the ranks' own, and those that work for them.
#[test]
fn threads_that_inherit_another_state_have_the_bits_of_all() {
    for world in worlds() {
        let (found, _) = in_state(FAST_MATH, || {
            world.run(RANKS, |group| {
                assert_eq!(state(), FAST_MATH, "inherited");
                // One of them is as Rust wants it, but its helpers are not.
                if group.rank() != ODD {
                    return every_type(&group, FAST_MATH);
                }
                // SAFETY: it is the state that Rust takes for granted.
                unsafe { set(common::states::DEFAULT) };
                every_type(&group, common::states::DEFAULT)
            })
        });
        assert_oracle(&found, &world, FAST_MATH);
    }
}
