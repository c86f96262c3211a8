//! Trainings that end without `finalize()`, the programs of the docs among them: no rank may take another's end for a loss.

#[path = "../../../phalanx/tests/support/endings.rs"]
mod support;

const WAYS: [&str; 8] = [
    "ddp",
    "ddp_overlapped",
    "ddp_of_a_model",
    "sharded",
    "sharded_overlapped",
    "diloco",
    "diloco_unfinished",
    "reducer_overlapped",
];

#[test]
fn trainings_without_finalize_end_well() {
    support::check("train_without_finalize", &WAYS, &[3], 1);
}

/// What `cargo xtask endings` runs.
#[test]
#[ignore = "takes long: cargo xtask endings"]
fn soak() {
    support::check("train_without_finalize", &WAYS, &[2, 3, 4, 8], support::jobs_of_the_soak());
}
