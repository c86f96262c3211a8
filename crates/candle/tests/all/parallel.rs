//! Gradients of several ranks are those of one process with the whole batch.

use crate::common::{on_ranks, worlds};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Module, VarBuilder, VarMap};
use phalanx::{ProcessGroup, chunk};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Error, Overlap, Share, sync_gradients};

/// A two-layer network with fixed weights.
struct Net {
    varmap: VarMap,
    layers: [candle_nn::Linear; 2],
}

impl Net {
    fn new(dtype: DType) -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
        let layers = [(5, 7, "first"), (7, 3, "second")]
            .map(|(from, to, name)| candle_nn::linear(from, to, vb.pp(name)).unwrap());
        for (name, var) in varmap.data().lock().unwrap().iter() {
            let salt = name.len() as f64;
            var.set(&wave(var.dims(), salt).to_dtype(dtype).unwrap()).unwrap();
        }
        Self { varmap, layers }
    }

    /// Mean squared error over rows `rows` of a fixed data set.
    fn loss(&self, rows: std::ops::Range<usize>) -> Result<Tensor> {
        let dtype = self.layers[0].weight().dtype();
        let x = wave(&[SAMPLES, 5], 1.0).narrow(0, rows.start, rows.len())?.to_dtype(dtype)?;
        let y = wave(&[SAMPLES, 3], 2.0).narrow(0, rows.start, rows.len())?.to_dtype(dtype)?;
        let hidden = self.layers[0].forward(&x)?.tanh()?;
        candle_nn::loss::mse(&self.layers[1].forward(&hidden)?, &y)
    }

    /// All gradients, in name order.
    fn gradients(&self, grads: &GradStore) -> Vec<Option<Vec<f64>>> {
        let data = self.varmap.data().lock().unwrap();
        let mut named: Vec<_> = data.iter().collect();
        named.sort_by_key(|(name, _)| name.as_str());
        named.into_iter().map(|(_, var)| gradient(grads, var)).collect()
    }

    fn ddp(&self, group: &ProcessGroup, cap: usize) -> DistributedDataParallel {
        let config = DdpConfig::default().bucket_cap_bytes(cap);
        DistributedDataParallel::new(&self.varmap, group, config).unwrap()
    }
}

const SAMPLES: usize = 12;

/// Values without structure, but always the same.
fn wave(shape: &[usize], salt: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (salt + i as f64 * 1.7).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn gradient(grads: &GradStore, var: &Tensor) -> Option<Vec<f64>> {
    grads.get(var).map(|g| g.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap())
}

#[track_caller]
fn assert_close(found: &[Option<Vec<f64>>], expected: &[Option<Vec<f64>>], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let (found, expected) = (found.as_ref().unwrap(), expected.as_ref().unwrap());
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() <= tolerance, "{f} is not {e}");
        }
    }
}

/// What one process finds for the whole batch.
fn whole(dtype: DType) -> Vec<Option<Vec<f64>>> {
    let net = Net::new(dtype);
    net.gradients(&net.loss(0..SAMPLES).unwrap().backward().unwrap())
}

#[test]
fn gradients_are_those_of_the_whole_batch() {
    for (dtype, tolerance) in [(DType::F64, 1e-15), (DType::F32, 1e-6)] {
        let expected = whole(dtype);
        for world_size in 1..=4 {
            for cap in [0, 100, 25 << 20] {
                let found = on_ranks(world_size, |group| {
                    let net = Net::new(dtype);
                    let loss = net.loss(chunk(group.rank(), world_size, SAMPLES)).unwrap();
                    net.gradients(&net.ddp(&group, cap).backward(&loss).unwrap())
                });
                assert_close(&found[0], &expected, tolerance);
                assert!(found.iter().all(|rank| *rank == found[0]), "same bits on every rank");
            }
        }
    }
}

#[test]
fn gradients_do_not_depend_on_the_buckets() {
    let with_cap = |cap| {
        on_ranks(3, |group| {
            let net = Net::new(DType::F32);
            let loss = net.loss(chunk(group.rank(), 3, SAMPLES)).unwrap();
            net.gradients(&net.ddp(&group, cap).backward(&loss).unwrap())
        })
    };
    let one_each = with_cap(0);
    let together = with_cap(25 << 20);
    assert_close(&together[0], &one_each[0], 1e-7);
}

#[test]
fn uneven_shares_are_weighed() {
    let expected = whole(DType::F64);
    for ends in [[0, 1, 12], [0, 7, 12], [5, 11, 12], [4, 8, 12]] {
        let found = on_ranks(3, |group| {
            let net = Net::new(DType::F64);
            let ddp = net.ddp(&group, 1000);
            let start = if group.rank() == 0 { 0 } else { ends[group.rank() - 1] };
            let rows = start..ends[group.rank()];
            let share = Share::new(rows.len(), SAMPLES);
            let grads = if rows.is_empty() {
                let mut none = GradStore::default();
                ddp.sync_gradients(&mut none, share).unwrap();
                none
            } else {
                ddp.backward_share(&net.loss(rows).unwrap(), share).unwrap()
            };
            net.gradients(&grads)
        });
        assert_close(&found[0], &expected, 1e-15);
        assert!(found.iter().all(|rank| *rank == found[0]));
    }
}

/// Else they train with a gradient that is three times too large.
#[test]
fn shares_that_each_rank_takes_for_the_whole_are_refused() {
    for world in worlds() {
        world.run(3, |group| {
            for overlap in [Overlap::Off, Overlap::On] {
                let config = DdpConfig::default().overlap(overlap);
                let ddp = DistributedDataParallel::build(&VarMap::new(), DType::F32, &group, config, |vb| {
                    candle_nn::linear(2, 1, vb)
                });
                let ddp = ddp.unwrap();
                let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
                let loss = || ddp.forward(|model| model.forward(&x)?.mean_all()).unwrap();
                let error = ddp.backward_share(&loss(), Share::new(4, 4)).unwrap_err();
                assert!(matches!(error, Error::ShareMismatch { .. }), "{error}");
                let says = "together they have 12 samples of a global batch of 4 (ranks 0 to 2: 4 of 4 samples each); pass Share::new";
                assert!(error.to_string().contains(says), "{error}");
                ddp.backward_share(&loss(), Share::new(4, 12)).unwrap();
            }
        });
    }
}

#[test]
fn a_rank_without_samples_may_have_any_gradients() {
    let found = on_ranks(2, |group| {
        let net = Net::new(DType::F64);
        let ddp = net.ddp(&group, 1000);
        let (loss, share) = match group.rank() {
            0 => (net.loss(0..SAMPLES).unwrap(), SAMPLES),
            _ => ((net.loss(0..1).unwrap() * f64::NAN).unwrap(), 0),
        };
        net.gradients(&ddp.backward_share(&loss, Share::new(share, SAMPLES)).unwrap())
    });
    assert_close(&found[1], &whole(DType::F64), 1e-15);
}

#[test]
fn losses_can_be_accumulated() {
    let found = on_ranks(2, |group| {
        let net = Net::new(DType::F64);
        let ddp = net.ddp(&group, 1000);
        let mine = chunk(group.rank(), 2, SAMPLES);
        let mut grads = GradStore::default();
        for rows in [mine.start..mine.start + 3, mine.start + 3..mine.end] {
            let loss = (net.loss(rows).unwrap() * 0.5).unwrap();
            grads.extend(loss.backward().unwrap()).unwrap();
        }
        ddp.sync_gradients(&mut grads, Share::EQUAL).unwrap();
        net.gradients(&grads)
    });
    assert_close(&found[0], &whole(DType::F64), 1e-15);
}

#[test]
fn the_function_does_what_the_wrapper_does() {
    let found = on_ranks(2, |group| {
        let net = Net::new(DType::F64);
        let mut grads = net.loss(chunk(group.rank(), 2, SAMPLES)).unwrap().backward().unwrap();
        sync_gradients(&net.varmap, &mut grads, &group).unwrap();
        net.gradients(&grads)
    });
    assert_close(&found[0], &whole(DType::F64), 1e-15);
}

/// Variables of mixed types: `a` and `b` used by one rank each, `both` by both, `none` by none.
fn partly_used() -> (VarMap, [Var; 4]) {
    let varmap = VarMap::new();
    let vars = [("a", DType::F32), ("b", DType::BF16), ("both", DType::F32), ("none", DType::F32)].map(
        |(name, dtype)| {
            let var = Var::ones(3, dtype, &Device::Cpu).unwrap();
            varmap.data().lock().unwrap().insert(name.to_owned(), var.clone());
            var
        },
    );
    let counter = Var::ones(1, DType::I64, &Device::Cpu).unwrap();
    varmap.data().lock().unwrap().insert("counter".to_owned(), counter);
    (varmap, vars)
}

#[test]
fn unused_variables_count_as_zeros_where_another_rank_has_them() {
    on_ranks(2, |group| {
        let (varmap, [a, b, both, none]) = partly_used();
        let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();
        let own = if group.rank() == 0 { &a } else { &b };
        let loss = (own.to_dtype(DType::F32).unwrap() * 4.0).unwrap().add(&both).unwrap().sum_all().unwrap();
        let grads = ddp.backward(&loss).unwrap();
        assert_eq!(gradient(&grads, &a), Some(vec![2.0; 3]));
        assert_eq!(gradient(&grads, &b), Some(vec![2.0; 3]));
        assert_eq!(gradient(&grads, &both), Some(vec![1.0; 3]));
        assert_eq!(gradient(&grads, &none), None);
        assert_eq!(grads.get(&b).unwrap().dtype(), DType::BF16);
    });
}

#[test]
fn impossible_gradients_and_shares_are_refused_before_anything_is_sent() {
    on_ranks(2, |group| {
        let (varmap, [a, ..]) = partly_used();
        let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();

        let mut wrong = GradStore::default();
        wrong.insert(&a, Tensor::ones(4, DType::F32, &Device::Cpu).unwrap());
        let error = ddp.sync_gradients(&mut wrong, Share::EQUAL).unwrap_err();
        assert!(matches!(error, Error::Group(phalanx::Error::Misuse { .. })), "{error:?}");
        assert!(error.to_string().contains("gradient of `a` is F32 [4]"), "{error}");

        let loss = a.sum_all().unwrap();
        let error = ddp.backward_share(&loss, Share::new(3, 2)).unwrap_err();
        assert!(matches!(error, Error::Group(phalanx::Error::Misuse { .. })), "{error:?}");

        assert_eq!(gradient(&ddp.backward(&loss).unwrap(), &a), Some(vec![1.0; 3]), "the group works on");
    });
}

#[test]
fn a_model_without_variables_is_fine() {
    on_ranks(2, |group| {
        let ddp = DistributedDataParallel::new(&VarMap::new(), &group, Default::default()).unwrap();
        let mut grads = GradStore::default();
        ddp.sync_gradients(&mut grads, Share::EQUAL).unwrap();
        assert_eq!(grads.get_ids().count(), 0);
    });
}

#[test]
fn ranks_that_do_different_things_are_told_where_in_the_program() {
    on_ranks(2, |group| {
        let (varmap, [a, ..]) = partly_used();
        let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();
        let error = if group.rank() == 0 {
            ddp.backward(&a.sum_all().unwrap()).unwrap_err()
        } else {
            group.barrier().unwrap_err().into()
        };
        let Error::Group(phalanx::Error::Mismatch { left, right, .. }) = &error else { panic!("{error:?}") };
        for (_, signature) in [&**left, &**right] {
            assert!(signature.site.file.ends_with("tests/all/parallel.rs"), "{error}");
        }
    });
}

/// Where each rank called what they disagree about.
fn sites(error: &Error) -> [(usize, String, u32); 2] {
    let Error::Group(phalanx::Error::Mismatch { left, right, .. }) = error else { panic!("{error:?}") };
    [left, right].map(|side| (side.0.rank, side.1.site.file.to_string(), side.1.site.line))
}

#[test]
fn calls_that_candle_makes_are_told_where_the_program_made_them() {
    on_ranks(2, |group| {
        // A gradient that is sent alone: after the counts of who has which.
        let net = Net::new(DType::F32);
        let ddp = net.ddp(&group, 0);
        ddp.backward(&net.loss(0..4).unwrap()).unwrap();
        let (error, line) = if group.rank() == 0 {
            (ddp.backward(&net.loss(0..4).unwrap()).unwrap_err(), line!())
        } else {
            let share = phalanx_train::StepShares::of(Share::EQUAL).unwrap().words();
            group.all_reduce(&mut [&[1; 4], &share[..]].concat(), phalanx::ReduceOp::Sum).unwrap();
            (group.barrier().unwrap_err().into(), line!())
        };
        let rank = group.rank();
        assert!(sites(&error)[rank].1.ends_with("tests/all/parallel.rs"), "{error}");
        assert_eq!((sites(&error)[rank].0, sites(&error)[rank].2), (rank, line), "{error}");
    });
    on_ranks(2, |group| {
        let tensor = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        let (error, line) = match group.rank() {
            0 => (phalanx_candle::all_reduce(&group, &tensor, phalanx::ReduceOp::Sum).unwrap_err(), line!()),
            _ => (phalanx_candle::broadcast(&group, &tensor, 0).unwrap_err(), line!()),
        };
        let rank = group.rank();
        assert!(sites(&error)[rank].1.ends_with("tests/all/parallel.rs"), "{error}");
        assert_eq!(sites(&error)[rank].2, line, "{error}");
    });
}
