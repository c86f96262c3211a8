//! Values are loaded as they were saved, to the last bit.

use phalanx::ProcessGroup;
use phalanx_checkpoint::{Checkpoints, State};
use phalanx_testkit::World;
use std::path::Path;

/// Runs `act` on each of `ranks` ranks, with the checkpoints in `folder`.
fn on(ranks: usize, folder: &Path, act: impl Fn(&ProcessGroup, &mut Checkpoints) + Send + Sync + 'static) {
    let folder = folder.to_owned();
    World::thread().run(ranks, move |group| act(&group, &mut Checkpoints::open(&folder, &group).unwrap()));
}

#[test]
fn numbers_that_json_does_not_have_come_back_bit_for_bit() {
    let bits = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, -0.0, 0.1, 5e-324].map(f64::to_bits);
    let bits = [&bits[..], &[0x7ff0_0000_dead_beef]].concat();
    let expected = bits.clone();
    let folder = tempfile::tempdir().unwrap();
    on(2, folder.path(), move |group, checkpoints| {
        let numbers: Vec<f64> = bits.iter().map(|&bits| f64::from_bits(bits)).collect();
        let mut state = State::new();
        state.value("numbers", &numbers).unwrap();
        state.value("best", &f64::INFINITY).unwrap();
        state.rank_value("worst", &Some(f32::NEG_INFINITY)).unwrap();
        state.of_rank(group.rank(), |own| own.value("scale", &(group.rank(), f32::INFINITY))).unwrap();
        checkpoints.save(1, state).unwrap();
    });
    on(3, folder.path(), move |_, checkpoints| {
        let found = checkpoints.latest_good().unwrap().unwrap();
        let numbers: Vec<f64> = found.value("numbers").unwrap();
        assert_eq!(numbers.into_iter().map(f64::to_bits).collect::<Vec<_>>(), expected);
        assert_eq!(found.value::<f64>("best").unwrap(), f64::INFINITY);
        for rank in 0..2 {
            let worst = found.rank_value::<Option<f32>>("worst", rank).unwrap();
            assert_eq!(worst, Some(Some(f32::NEG_INFINITY)));
            let scale = found.of_rank(rank).value::<(usize, f32)>("scale").unwrap();
            assert_eq!(scale, (rank, f32::INFINITY));
        }
    });
}
