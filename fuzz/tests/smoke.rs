//! The kept corpus of every target, and what becomes of it by a few thousand small changes: the same ones every time.

use phalanx_fuzz::{TARGETS, Target, corpus};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Changed inputs for each target: a few seconds in all.
const CHANGED: usize = 4000;
const LEN_MAX: usize = 4096;

/// Runs one input; on failure it is kept, so that it can be run again and join the corpus.
fn run((name, target): Target, input: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-failed"));
        std::fs::write(&file, input).unwrap();
        panic!("{name} fails on {what}; again: cargo run -p phalanx-fuzz --bin {name} {}", file.display());
    }
}

fn kept(name: &str) -> Vec<Vec<u8>> {
    corpus(name).into_iter().map(|(_, input)| input).collect()
}

#[test]
fn the_kept_corpus_is_survived() {
    for target in TARGETS {
        assert!(!corpus(target.0).is_empty(), "{} has no corpus", target.0);
        for (name, input) in corpus(target.0) {
            run(target, &input, &format!("{name} of the kept corpus"));
        }
    }
}

#[test]
fn small_changes_to_it_are_survived() {
    for target in TARGETS {
        let corpus = kept(target.0);
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        for number in 0..CHANGED {
            let mut input = corpus[rng.random_range(0..corpus.len())].clone();
            for _ in 0..rng.random_range(1..5) {
                change(&mut input, &corpus, &mut rng);
            }
            input.truncate(LEN_MAX);
            run(target, &input, &format!("changed input {number}"));
        }
    }
}

/// One small change of the kinds that fuzzers make.
fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut ChaCha8Rng) {
    let at = rng.random_range(0..=input.len());
    let end = (at + rng.random_range(1..9)).min(input.len());
    match rng.random_range(0..6) {
        0 if at < end => input[at] ^= 1 << rng.random_range(0..8),
        1 if at < end => input[at] = rng.random(),
        2 => input.insert(at, rng.random()),
        3 => drop(input.drain(at..end)),
        4 => {
            let part = input[at..end].to_vec();
            input.splice(at..at, part);
        }
        _ => {
            let other = &corpus[rng.random_range(0..corpus.len())];
            input.truncate(at);
            input.extend_from_slice(&other[rng.random_range(0..=other.len())..]);
        }
    }
}
