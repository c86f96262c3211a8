//! What every [`Transport`](phalanx_transport::Transport) must do, seen from both ends of its links.
//!
//! A wake-up that is missed shows as a hang, which the [`Links`](crate::Links)' watchdog ends: the sleeps of this suite have no limit that a
//! test would reach, except where that limit is what is tested.

pub mod bytes;
mod driver;
pub mod ends;
pub mod pressure;
pub mod waits;

/// Makes one test of each function of the suite, run on the [`Links`](crate::Links) that the expression makes.
///
/// # Examples
/// ```
/// mod thread {
///     phalanx_testkit::transport_conformance!(phalanx_testkit::Links::thread());
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! transport_conformance {
    ($links:expr) => {
        $crate::transport_conformance!(@each $links,
            bytes::{
                every_rank_knows_its_place, bytes_arrive_in_order_whatever_the_lengths, empty_transfers_move_nothing,
                large_transfers_arrive_whole, every_pair_has_a_link_of_its_own,
            },
            pressure::{
                a_sender_is_held_back_until_its_peer_reads, a_full_link_holds_up_no_other, an_idle_link_takes_a_head_at_once,
                what_is_sent_at_once_is_sent_whole_or_not_at_all,
            },
            waits::{
                a_wait_ends_at_its_deadline, a_waker_ends_a_wait, bytes_end_a_wait, no_wake_up_is_missed,
                one_wait_covers_many_links, one_wait_covers_both_directions, two_threads_may_wait_at_once,
            },
            ends::{
                what_was_sent_before_the_end_arrives, what_was_sent_is_read_also_after_a_send_failed,
                a_peer_that_dies_ends_a_wait, a_peer_that_dies_frees_whoever_sends_to_it, other_links_live_on,
                ends_that_were_never_used_close,
            },
        );
    };
    (@each $links:expr, $($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => { $( $(
        #[test]
        fn $test() {
            $crate::conformance::transport::$module::$test(&$links);
        }
    )* )* };
}
