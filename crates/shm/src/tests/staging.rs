//! Two ranks, wherever they stage.

use super::{LENGTHS, Reach, bytes_mut, every_operation, on_team};
use crate::region::Staging;
use phalanx_core::LibraryCopy;
use std::sync::Barrier;
use std::time::Duration;

/// Also where the memory in which two ranks stage changes hands, and where it does not; in whatever order operations come that use it and
/// that don't.
#[test]
fn every_operation_wherever_two_ranks_stage() {
    let ways = [
        (Staging::Own, LibraryCopy::Never),
        (Staging::Own, LibraryCopy::Always),
        (Staging::Swapped, LibraryCopy::Always),
        (Staging::Claimed, LibraryCopy::Never),
        (Staging::Claimed, LibraryCopy::Write),
        (Staging::Claimed, LibraryCopy::Always),
    ];
    for (staging, library_copy) in ways {
        let all_are_there = Barrier::new(2);
        on_team(2, false, Reach::Staging, |rank| {
            all_are_there.wait();
            rank.team.region.stage(rank.rank, staging);
            rank.team.region.copy_by_library(library_copy);
            all_are_there.wait();
            every_operation(rank);
            for n in 0..600 {
                let len = LENGTHS[n * 7 % 13];
                if n % 41 == rank.rank * 20 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                match n * 5 % 17 % 6 {
                    0 => rank.broadcast(len, n, n / 7 % 2),
                    1 => rank.all_gather(len, n),
                    2 => rank.all_reduce_in(bytes_mut(&mut vec![0; len]), n, None),
                    3 => rank.all_to_all(len, n),
                    4 => rank.reduce_scatter(len, n),
                    _ => rank.all_reduce_in(bytes_mut(&mut vec![0; len]), n, Some(n % 2)),
                }
            }
        });
    }
}

/// Also more ranks than two, with a core each or not, whichever copies are the C library's.
#[test]
fn every_operation_of_three_ranks_by_whichever_copies() {
    for choice in LibraryCopy::ALL {
        for staging in [Staging::Own, Staging::Crowded] {
            let all_are_there = Barrier::new(3);
            on_team(3, staging == Staging::Crowded, Reach::Staging, |rank| {
                all_are_there.wait();
                rank.team.region.stage(rank.rank, staging);
                rank.team.region.copy_by_library(choice);
                all_are_there.wait();
                every_operation(rank);
            });
        }
    }
}
