//! Programs that end without `finalize()`: no rank may take another's end for a loss. Each is a real job of real programs,
//! whose `main` returns at once.
//!
//! `cargo xtask endings` runs many jobs of each kind and prints how many failed; the test runs a few.

#![cfg(target_os = "linux")]

#[path = "support/endings.rs"]
mod endings;

const WAYS: [&str; 12] = [
    "blocking",
    "all_reduce_async",
    "large",
    "reduce_scatter_async",
    "all_gather_async",
    "send_async",
    "split_async",
    "barrier_last",
    "not_awaited",
    "work_outlives_group",
    "another_thread",
    "coalesced",
];

#[test]
fn programs_without_finalize_end_well() {
    endings::check("without_finalize", &WAYS, &[3, 4], 1);
}

/// What `cargo xtask endings` runs.
#[test]
#[ignore = "takes long: cargo xtask endings"]
fn soak() {
    endings::check("without_finalize", &WAYS, &[2, 3, 4, 8], endings::jobs_of_the_soak());
}
