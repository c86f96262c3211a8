//! The suite for every adapter of a library of tensors: data-parallel training of a small network against sums done by hand.
//!
//! An adapter shows itself as a [`Library`]: it builds the network that a [`Toy`] describes, and makes steps with it. What comes of them is
//! compared with the same arithmetic in f64, on the batches of all ranks together, and ranks are compared with each other bit by bit.

pub mod averaging;
pub mod batches;
mod by_hand;
pub mod equality;
mod library;
pub mod refusals;
pub mod saving;
pub mod sharding;
mod toy;
pub mod whole;

pub use by_hand::gradients;
pub use library::{Averaging, Library, Saving, Sharding};
pub use toy::{Batch, Named, Toy};

use crate::World;
use std::collections::BTreeMap;

/// Makes tests of an adapter, each function of the suite over threads, shared memory and TCP, in worlds of 1 to 4 ranks: of a [`Library`], and of what else the
/// adapter has, as [`Sharding`], [`Averaging`] and [`Saving`] show it.
///
/// # Examples
/// `phalanx-train`'s own arrays join in `crates/testkit/tests/train.rs`, burn's tensors in `crates/burn/tests/all/conformance.rs`. The tests are one line:
/// ```ignore
/// phalanx_testkit::train_conformance!(MyLibrary, sharding: MyZero, averaging: MyLocalSgd, saving: MyLibrary);
/// ```
#[macro_export]
macro_rules! train_conformance {
    ($library:ident $(, $part:ident: $of_part:ident)* $(,)?) => {
        mod over_threads {
            $crate::train_conformance!(@over $crate::World::thread(), library: $library $(, $part: $of_part)*);
        }

        #[cfg(target_os = "linux")]
        mod over_shared_memory {
            $crate::train_conformance!(@over $crate::World::shm(), library: $library $(, $part: $of_part)*);
        }

        mod over_tcp {
            $crate::train_conformance!(@over $crate::World::tcp(), library: $library $(, $part: $of_part)*);
        }
    };
    (@over $world:expr, $($part:ident: $of_part:ident),*) => { $(
        mod $part {
            $crate::train_conformance!(@part $part, super::super::$of_part, $world);
        }
    )* };
    (@part library, $library:ty, $world:expr) => {
        $crate::train_conformance!(@each $library, $world,
            whole::{
                gradients_are_those_of_all_batches_together, fifty_steps_are_those_of_one_process,
                a_tied_weight_has_the_gradients_of_both_uses,
            },
            equality::{
                ranks_begin_with_the_weights_of_rank_0, buckets_of_any_size_give_the_same_bits,
            },
            batches::{
                uneven_batches_count_by_their_samples, a_rank_without_samples_takes_part,
                a_weight_that_some_ranks_use_counts_as_zeros_elsewhere, a_weight_that_no_rank_uses_has_no_gradient,
                kept_gradients_are_added_up, a_rank_without_more_batches_takes_part,
            },
            refusals::{shares_that_make_no_batch_are_refused, another_network_is_refused_by_name},
        );
    };
    (@part sharding, $library:ty, $world:expr) => {
        $crate::train_conformance!(@each $library, $world, sharding::{
            weights_are_those_of_one_process, batches_count_by_their_samples, ranks_begin_with_the_weights_of_rank_0,
        });
    };
    (@part averaging, $library:ty, $world:expr) => {
        $crate::train_conformance!(@each $library, $world, averaging::{
            weights_are_means_of_what_ranks_have_trained, ranks_begin_with_the_weights_of_rank_0,
        });
    };
    (@part saving, $library:ty, $world:expr) => {
        $crate::train_conformance!(@each $library, $world, saving::{
            any_number_of_ranks_goes_on_where_others_have_stopped,
        });
    };
    (@each $library:ty, $world:expr, $($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => { $( $(
        #[test]
        fn $test() {
            $crate::conformance::train::$module::$test::<$library>(&$world);
        }
    )* )* };
}

/// Every world size that is tried.
const WORLDS: std::ops::RangeInclusive<usize> = 1..=4;

/// More than any network here has.
const ONE_BUCKET: usize = 4 << 20;

/// Runs `rank` in every world, and makes sure that all ranks of one return the same.
fn everywhere<R: PartialEq + std::fmt::Debug + Send + 'static>(
    world: &World,
    rank: impl Fn(phalanx_group::ProcessGroup) -> R + Clone + Send + Sync + 'static,
) {
    for world_size in WORLDS {
        let outcomes = world.run(world_size, rank.clone());
        for (rank, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome, &outcomes[0], "rank {rank} of {world_size} has not what rank 0 has");
        }
    }
}

/// The bits of what has names, for ranks to be compared.
fn bits(named: &Named) -> BTreeMap<String, Vec<u32>> {
    named.iter().map(|(name, values)| (name.clone(), values.iter().map(|x| x.to_bits()).collect())).collect()
}

/// Fails unless both have the same names, and numbers that differ by rounding in f32 alone.
#[track_caller]
fn assert_close(found: &Named, expected: &BTreeMap<String, Vec<f64>>, what: &str) {
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(names(found.keys().collect()), names(expected.keys().collect()), "{what}: other names");
    for (name, values) in found {
        assert_eq!(values.len(), expected[name].len(), "{what}: elements of `{name}`");
        for (i, (&found, &expected)) in values.iter().zip(&expected[name]).enumerate() {
            let off = (f64::from(found) - expected).abs();
            assert!(off < 1e-5, "{what}: `{name}` has {found} at {i}, expected {expected}");
        }
    }
}
