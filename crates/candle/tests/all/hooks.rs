//! Gradients that are added up by a communication hook.

use crate::common::{Net, SAMPLES, net, weights, worlds};
use candle_nn::{Optimizer, SGD};
use phalanx::{ProcessGroup, chunk};
use phalanx_candle::checkpoint::{Checkpoints, State, load_vars, save_vars};
use phalanx_candle::compress::{Cast, CommHook, Int8, PowerSgd, TopK, Traffic};
use phalanx_candle::{DistributedDataParallel, Overlap};

/// The loss on all samples after some steps, the weights, and how many times less was sent.
fn trained(
    group: &ProcessGroup,
    mode: Overlap,
    hook: Option<Box<dyn CommHook>>,
) -> (f32, Vec<Option<Vec<u32>>>, f64) {
    let (varmap, ddp) = net(group, mode, 100);
    let ddp = match hook {
        Some(hook) => ddp.with_hook(hook),
        None => ddp,
    };
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
    for _ in 0..60 {
        let loss = ddp.forward(|net| net.loss(chunk(group.rank(), group.world_size(), SAMPLES))).unwrap();
        optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
    }
    let loss = ddp.forward(|net| net.loss(0..SAMPLES)).unwrap().to_scalar().unwrap();
    (loss, weights(&varmap), ddp.traffic().map_or(1.0, Traffic::ratio))
}

#[test]
fn hooks_train_as_well_in_fewer_bytes() {
    type Make = fn() -> Box<dyn CommHook>;
    let hooks: [(f64, Make); 5] = [
        (1.9, || Box::new(Cast::f16())),
        (1.9, || Box::new(Cast::bf16())),
        (0.1, || Box::new(Int8::new())), // each rank sends whole blocks of 256: these buckets have 35 gradients at most
        (1.2, || Box::new(TopK::new(0.2).unwrap())),
        (1.1, || Box::new(PowerSgd::new(1).unwrap())),
    ];
    for world in worlds() {
        let plain = world.run(3, |group| trained(&group, Overlap::Off, None));
        for mode in crate::common::MODES {
            for (at, (ratio, hook)) in hooks.into_iter().enumerate() {
                let found = world.run(3, move |group| trained(&group, mode, Some(hook())));
                let (loss, weights, saved) = &found[0];
                assert!(found.iter().all(|(_, others, _)| others == weights), "hook {at}: not the same bits");
                assert!(
                    (loss / plain[0].0 - 1.0).abs() < 0.05,
                    "hook {at}: {loss} instead of {}",
                    plain[0].0
                );
                assert!(saved >= &ratio, "hook {at} saves {saved}");
            }
        }
    }
}

#[test]
fn a_training_goes_on_from_a_checkpoint_with_what_its_hook_has_left_out() {
    type Make = fn() -> Box<dyn CommHook>;
    let hooks: [Make; 3] = [
        || Box::new(Int8::new()),
        || Box::new(TopK::new(0.1).unwrap()),
        || Box::new(PowerSgd::new(1).unwrap()),
    ];
    for world in worlds() {
        for hook in hooks {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            world.run(2, move |group| {
                let begin = || {
                    let (varmap, ddp) = net(&group, Overlap::Off, 100);
                    let optimizer = SGD::new(varmap.all_vars(), 0.1).unwrap();
                    (varmap, ddp.with_hook(hook()), optimizer)
                };
                let train = |(_, ddp, optimizer): &mut (_, DistributedDataParallel<Net>, SGD)| {
                    for _ in 0..5 {
                        let rows = chunk(group.rank(), group.world_size(), SAMPLES);
                        let loss = ddp.forward(|net| net.loss(rows)).unwrap();
                        optimizer.step(&ddp.backward(&loss).unwrap()).unwrap();
                    }
                };
                let mut first = begin();
                train(&mut first);
                let mut state = State::new();
                save_vars(&first.0, "model", &mut state).unwrap();
                state.add("ddp", &first.1).unwrap();
                let mut checkpoints = Checkpoints::open(&path, &group).unwrap();
                checkpoints.save(5, state).unwrap();
                train(&mut first);

                let found = checkpoints.latest_good().unwrap().unwrap();
                let [mut second, mut forgetful] = [begin(), begin()];
                for (varmap, ..) in [&second, &forgetful] {
                    load_vars(varmap, "model", &found).unwrap();
                }
                found.restore("ddp", &mut second.1).unwrap();
                train(&mut second);
                train(&mut forgetful);
                assert_eq!(weights(&second.0), weights(&first.0));
                assert_ne!(weights(&forgetful.0), weights(&first.0));
            });
        }
    }
}
