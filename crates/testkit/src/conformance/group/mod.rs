//! The suite for every [`Backend`](phalanx_group::Backend), seen through the groups it makes.
//!
//! The first half is about results: each operation for every element type, operator, world of 1 to 8 ranks, and
//! lengths around all the corners there are, against the [oracle](crate::oracle). The second half is about what happens when
//! ranks misbehave: nothing may hang, all ranks hear the same cause, and no data is mixed.

pub mod algorithms;
pub mod any_source;
pub mod asynchrony;
pub mod batches;
pub mod beside;
pub mod circles;
pub mod coalesced;
pub mod endings;
mod failure;
pub mod generations;
pub mod halves;
pub mod losses;
pub mod messages;
pub mod mismatch;
pub mod misuse;
pub mod movements;
pub mod new_groups;
pub mod objects;
pub mod products;
pub mod reductions;
pub mod subgroups;

/// Makes one test of each function of the suite, run on the [`World`](crate::World) that the expression makes.
///
/// # Examples
/// ```
/// mod thread {
///     phalanx_testkit::group_conformance!(phalanx_testkit::World::thread());
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! group_conformance {
    ($world:expr) => {
        $crate::group_conformance!(@each $world,
            reductions::{reductions_of_every_kind, reductions_over_several_frames, what_is_no_number_has_one_form},
            halves::{half_types_are_rounded_once, half_types_are_rounded_once_over_several_frames},
            products::{
                every_rank_multiplies_by_its_own_factor, products_are_the_same_under_every_algorithm, products_over_several_frames,
                products_of_half_types_are_rounded_once,
            },
            coalesced::{
                each_buffer_ends_as_by_a_call_of_its_own, what_travels_together_has_the_bits_of_single_calls,
                buffers_that_do_not_go_together_hurt_nobody, buffers_in_flight_come_back,
                buffers_in_flight_are_told_of_a_loss, buffers_in_flight_have_a_limit,
            },
            movements::{movements_of_every_kind, movements_over_several_frames},
            algorithms::{every_algorithm_computes_the_same, every_algorithm_gives_all_ranks_the_same_bits},
            messages::{
                tags_may_be_received_in_any_order, many_small_messages_arrive,
                both_sides_may_begin_with_the_same_half, short_messages_need_no_receiver, large_messages_cross,
                waiting_in_vain_is_no_failure,
                threads_share_a_group,
            },
            any_source::{
                work_goes_to_whoever_is_done, no_rank_is_left_out_in_a_flood, every_message_is_received_once,
                receives_keep_their_order_with_those_from_any, nothing_from_any_is_no_failure, nobody_is_blamed_who_might_have_sent,
                who_receives_from_any_is_late_itself, a_receive_from_any_may_be_part_of_a_circle,
                another_message_from_any_is_a_mismatch, a_loss_ends_a_receive_from_any, who_has_left_is_not_waited_for,
                nobody_sends_to_a_rank_that_is_alone,
            },
            batches::{
                a_ring_needs_no_rank_that_receives_first, a_batch_goes_to_everybody, batches_meet_single_calls,
                short_sends_of_a_batch_need_no_receiver, a_batch_in_vain_names_its_message,
                another_message_in_a_batch_is_a_mismatch, a_rank_that_leaves_a_batch_alone_is_named,
                batches_that_wait_for_each_other_are_named, a_wrong_message_hurts_no_batch,
            },
            asynchrony::{
                asynchronous_operations_compute_the_same, asynchronous_blocks_are_the_same, operations_in_flight_may_be_waited_for_in_any_order,
                blocking_calls_take_their_turn, is_done_tells_when_there_is_nothing_to_wait_for,
                messages_flow_beside_collectives,
            },
            subgroups::{
                ranks_are_divided_by_color_and_ordered_by_key, groups_divide_again,
                groups_work_at_the_same_time_in_different_orders, threads_of_a_rank_take_turns, a_group_fails_alone,
            },
            new_groups::{
                a_group_is_made_by_its_members_alone, sets_that_overlap_are_not_mixed_up, members_that_do_not_come_are_named,
                lists_that_differ_make_no_group, no_group_is_made_with_who_is_gone,
            },
            objects::{objects_arrive_as_they_were, objects_are_messages, objects_that_cannot_be_sent_hurt_nobody},
            misuse::{a_wrong_call_hurts_nobody},
            mismatch::{
                another_operation_is_a_mismatch, another_element_type_is_a_mismatch,
                another_length_is_a_mismatch, other_counts_are_a_mismatch, other_buffers_are_a_mismatch, another_root_is_a_mismatch,
                another_operator_is_a_mismatch, another_order_is_a_mismatch, another_message_is_a_mismatch,
                counts_that_do_not_meet_are_noticed,
            },
            circles::{
                ranks_that_wait_for_each_other_are_named, a_collective_may_be_part_of_a_circle,
                a_message_in_vain_says_what_its_other_end_does, who_is_slow_is_in_no_circle,
            },
            beside::{
                an_agreement_waits_for_all, a_disagreement_is_a_mismatch,
                a_cause_from_outside_fails_the_group_everywhere,
            },
            losses::{
                a_rank_that_leaves_is_named, a_rank_that_leaves_one_group_is_named_there,
                what_a_rank_did_before_it_left_a_group_counts, a_rank_that_panics_is_named,
                last_messages_of_a_rank_that_left_arrive, operations_in_flight_are_told,
                a_failure_that_a_call_finds_is_told_at_its_place, a_failed_group_refuses_everything,
            },
            generations::{
                survivors_go_on_in_a_smaller_group, a_group_is_made_anew_without_a_loss,
                a_subgroup_cannot_be_made_anew,
            },
            endings::{
                a_monitored_barrier_names_who_is_missing, a_collective_names_who_is_missing,
                a_message_in_vain_names_its_other_end, a_limit_holds_while_data_move, a_handle_has_a_limit_of_its_own, handles_share_one_order,
                an_abort_ends_what_runs_everywhere, an_abort_ends_every_operation,
                finalize_waits_for_all, what_was_begun_is_performed,
            },
        );
    };
    (@each $world:expr, $($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => { $( $(
        #[test]
        fn $test() {
            $crate::conformance::group::$module::$test(&$world);
        }
    )* )* };
}

/// Every world size that is tried.
const WORLDS: std::ops::RangeInclusive<usize> = 1..=8;

/// Lengths at which something changes: nothing, less than a chunk a rank, as much, one more, and chunks of unlike lengths.
fn lengths(world_size: usize) -> [usize; 6] {
    [0, 1, world_size - 1, world_size, world_size + 1, 131]
}

/// A length in elements whose messages take several frames, the last of them not full.
fn several_frames<T>() -> usize {
    5 * phalanx_transport::FRAME_LEN / 2 / size_of::<T>() + 3
}

/// Calls a function that is generic over the element type with each of them in turn.
macro_rules! every_dtype {
    ($function:ident($($argument:expr),*)) => {
        every_dtype!(@ $function($($argument),*), f32 f64 half::f16 half::bf16 i8 i16 i32 i64 u8 u16 u32 u64)
    };
    (@ $function:ident $arguments:tt, $($t:ty)*) => {{ $( $function::<$t> $arguments; )* }};
}
use every_dtype;

/// The buffers of all ranks, the same wherever they are made; `draw` fills one.
fn inputs<T>(
    group: &phalanx_group::ProcessGroup,
    len: usize,
    draw: impl Fn(&mut crate::oracle::Random, usize) -> Vec<T>,
) -> Vec<Vec<T>> {
    let seed = |rank| (len * 64 + rank) as u64;
    (0..group.world_size()).map(|rank| draw(&mut crate::oracle::Random::new(seed(rank)), len)).collect()
}

/// Fails unless both have the same bits: of floats, `==` would not tell zeros apart, and no NaN equals itself.
#[track_caller]
fn assert_bits<T: phalanx_core::Element>(actual: &[T], expected: &[T], what: impl std::fmt::Display) {
    let same = bytemuck::cast_slice::<T, u8>(actual) == bytemuck::cast_slice::<T, u8>(expected);
    if !same {
        let first =
            actual.iter().zip(expected).position(|(a, b)| bytemuck::bytes_of(a) != bytemuck::bytes_of(b));
        let at = first.unwrap_or(actual.len().min(expected.len()));
        panic!(
            "{what}, {}: {} elements instead of {}; from element {at} on {:?} instead of {:?}",
            T::DTYPE,
            actual.len(),
            expected.len(),
            &actual[at..actual.len().min(at + 4)],
            &expected[at..expected.len().min(at + 4)],
        );
    }
}

/// The first and the last rank.
fn roots(world_size: usize) -> impl Iterator<Item = usize> {
    [0, world_size - 1].into_iter().take(world_size.min(2))
}

/// Blocks of unlike lengths, one for each rank: `len` is the longest, and every third is empty.
fn uneven(world_size: usize, len: usize) -> Vec<usize> {
    (0..world_size).map(|rank| if rank % 3 == 1 { 0 } else { len.saturating_sub(rank) }).collect()
}
