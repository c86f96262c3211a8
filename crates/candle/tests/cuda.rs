//! Tensors on GPUs. `scripts/cuda-on-double` runs these on the double of NCCL and of CUDA, whose streams are slow and truly asynchronous there: what is not ordered
//! by events comes to other numbers. They say nothing of a GPU.

use candle_core::{DType, Device, Tensor, WithDType};
use phalanx::{ReduceOp, threads};
use phalanx_candle::{
    Error, HybridGroup, all_gather, all_gather_coalesced, all_reduce, all_reduce_coalesced, all_to_all,
    broadcast, gather, recv, reduce, reduce_scatter, reduce_scatter_coalesced, scan, scatter, send,
    sync_model, verify_parameters,
};
use phalanx_nccl::{Cuda, Device as Gpu, Fallback};
use std::sync::{Mutex, PoisonError};

/// One test at a time has the GPUs: a rank that ends waits for all that its GPU does, so ranks of two tests could wait for each other for ever.
static GPUS: Mutex<()> = Mutex::new(());

/// The GPU of a rank. Where there are fewer GPUs than ranks, ranks share them.
fn gpu_of(rank: usize) -> usize {
    rank % Gpu::count(Cuda::load().unwrap()).unwrap()
}

/// The ways that so many ranks have here, the best first.
fn ways(ranks: usize) -> &'static [Fallback] {
    let is_shared = gpu_of(ranks - 1) != ranks - 1;
    if is_shared { &[Fallback::Always] } else { &[Fallback::Never, Fallback::Always] }
}

/// Runs `rank` once on each of as many GPUs. Ranks that share one go over the host: NCCL refuses them in one process.
fn on_gpus<R: Send>(ranks: usize, rank: impl Fn(&HybridGroup, &Device) -> R + Sync) -> Vec<R> {
    by_way(ways(ranks)[0], ranks, rank)
}

/// As [`on_gpus`], by a way for device memory.
fn by_way<R: Send>(way: Fallback, ranks: usize, rank: impl Fn(&HybridGroup, &Device) -> R + Sync) -> Vec<R> {
    let _gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|s| {
        let rank = &rank;
        let start = |group: phalanx::ProcessGroup| {
            s.spawn(move || {
                let hybrid = HybridGroup::with_fallback(&group, gpu_of(group.rank()), way).unwrap();
                let outcome = rank(&hybrid, &Device::new_cuda(gpu_of(group.rank())).unwrap());
                hybrid.synchronize().unwrap();
                hybrid.finalize().unwrap();
                outcome
            })
        };
        let started: Vec<_> = threads(ranks).into_iter().map(start).collect();
        started
            .into_iter()
            .map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// `rows` x 2 small numbers that differ between ranks.
fn numbers<T: WithDType>(rank: usize, rows: usize, gpu: &Device) -> Tensor {
    let values: Vec<T> = (0..2 * rows).map(|i| T::from_f64((i + 10 * rank) as f64)).collect();
    Tensor::from_vec(values, (rows, 2), gpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let here = tensor.to_device(&Device::Cpu).unwrap();
    here.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

fn moves<T: WithDType>(all: &HybridGroup, gpu: &Device) {
    let mine = |rows| numbers::<T>(all.rank(), rows, gpu);
    let tensor = mine(2);
    broadcast(all, &tensor, 1).unwrap();
    assert_eq!(values(&tensor), [10.0, 11.0, 12.0, 13.0], "{}", T::DTYPE.as_str());

    let gathered = all_gather(all, &mine(1)).unwrap();
    assert_eq!((gathered.dims(), gathered.dtype()), (&[3, 2][..], T::DTYPE));
    assert_eq!(values(&gathered), [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let rows = [mine(1), mine(2)];
    let many = all_gather_coalesced(all, &[&rows[0], &rows[1]]).unwrap();
    for (many, row) in many.iter().zip(&rows) {
        assert_eq!(values(many), values(&all_gather(all, row).unwrap()), "{}", T::DTYPE.as_str());
    }

    let rank = all.rank();
    let collected = gather(all, &mine(1), 1).unwrap();
    assert_eq!(collected.as_ref().map(values), (rank == 1).then(|| values(&gathered)));
    let (whole, part) = (mine(3), mine(1));
    scatter(all, (rank == 2).then_some(&whole), &part, 2).unwrap();
    let first = 20.0 + 2.0 * rank as f64;
    assert_eq!(values(&part), [first, first + 1.0], "{}", T::DTYPE.as_str());
    let exchanged = all_to_all(all, &mine(3)).unwrap();
    let theirs = |from: usize| [0, 1].map(|i| (10 * from + 2 * rank + i) as f64);
    assert_eq!(values(&exchanged), [theirs(0), theirs(1), theirs(2)].concat(), "{}", T::DTYPE.as_str());
    // One after the other round the ring, beginning with rank 0.
    let token = mine(1);
    if rank > 0 {
        recv(all, &token, rank - 1).unwrap();
    }
    send(all, &token, (rank + 1) % 3).unwrap();
    if rank == 0 {
        recv(all, &token, 2).unwrap();
    }
    assert_eq!(values(&token), [0.0, 1.0], "{}", T::DTYPE.as_str());
}

fn reduces<T: WithDType>(all: &HybridGroup, gpu: &Device) {
    let mine = |rows| numbers::<T>(all.rank(), rows, gpu);
    let tensor = mine(2);
    all_reduce(all, &tensor, ReduceOp::Sum).unwrap();
    assert_eq!(values(&tensor), [30.0, 33.0, 36.0, 39.0], "{}", T::DTYPE.as_str());

    let tensor = mine(2);
    reduce(all, &tensor, ReduceOp::Max, 2).unwrap();
    if all.rank() == 2 {
        assert_eq!(values(&tensor), [20.0, 21.0, 22.0, 23.0], "{}", T::DTYPE.as_str());
    }

    let part = reduce_scatter(all, &mine(3), ReduceOp::Sum).unwrap();
    assert_eq!((part.dims(), part.dtype()), (&[1, 2][..], T::DTYPE));
    let first = 30.0 + 6.0 * all.rank() as f64;
    assert_eq!(values(&part), [first, first + 3.0], "{}", T::DTYPE.as_str());

    let tensors = [mine(1), mine(2)];
    all_reduce_coalesced(all, &[&tensors[0], &tensors[1]], ReduceOp::Sum).unwrap();
    assert_eq!(values(&tensors[0]), [30.0, 33.0], "{}", T::DTYPE.as_str());
    assert_eq!(values(&tensors[1]), [30.0, 33.0, 36.0, 39.0], "{}", T::DTYPE.as_str());
    let parts = reduce_scatter_coalesced(all, &[&mine(3), &mine(3)], ReduceOp::Sum).unwrap();
    assert!(parts.iter().all(|each| values(each) == values(&part)), "{}", T::DTYPE.as_str());
    let tensor = mine(1);
    match scan(all, &tensor, ReduceOp::Sum) {
        Ok(()) if all.nccl().is_none() => {
            assert_eq!(values(&tensor), [[0.0, 1.0], [10.0, 12.0], [30.0, 33.0]][all.rank()]);
        }
        refused => {
            assert!(matches!(refused, Err(Error::Group(phalanx::Error::Unsupported { .. }))), "{refused:?}");
        }
    }
    // Every rank's factor is its own.
    let tensor = mine(1);
    let product = all_reduce(all, &tensor, ReduceOp::PreMulSum([2.0, 0.5, 1.0][all.rank()]));
    if T::DTYPE.is_float() {
        product.unwrap();
        assert_eq!(values(&tensor), [25.0, 28.5], "{}", T::DTYPE.as_str());
    } else {
        assert!(matches!(product, Err(Error::Group(phalanx::Error::Misuse { .. }))), "{product:?}");
    }
}

#[test]
fn every_type_is_carried_by_every_collective() {
    for &way in ways(3) {
        by_way(way, 3, |all, gpu| {
            macro_rules! each {
                ($($t:ty),*) => { $( moves::<$t>(all, gpu); reduces::<$t>(all, gpu); )* };
            }
            each!(f32, f64, half::f16, half::bf16, u8, u32, i32, i64);
            moves::<i16>(all, gpu);
            match way {
                Fallback::Always => reduces::<i16>(all, gpu), // on the host, which has them
                _ => {
                    let refused = all_reduce(all, &numbers::<i16>(0, 2, gpu), ReduceOp::Sum);
                    assert!(matches!(refused, Err(Error::Group(phalanx::Error::Unsupported { .. }))));
                }
            }
        });
    }
}

#[test]
fn operations_are_in_candles_order() {
    on_gpus(2, |all, gpu| {
        let mine = (1.0 + all.rank() as f64) * 0.5;
        for round in 0..20 {
            // Kernels before and behind, and nobody waits in between.
            let x = Tensor::full(mine as f32, (100, 30), gpu).unwrap();
            let x = ((x * 2.0).unwrap() + f64::from(round)).unwrap(); // 1 + round and 2 + round
            all_reduce(all, &x, ReduceOp::Sum).unwrap();
            let y = (&x * 3.0).unwrap();
            all_reduce(all, &x, ReduceOp::Sum).unwrap();
            broadcast(all, &y, 1).unwrap();
            let z = (&x + &y).unwrap();
            drop((x, y));
            let sum = 3.0 + 2.0 * f64::from(round);
            assert!(values(&z).iter().all(|&z| z == 2.0 * sum + 3.0 * sum), "round {round}");
        }
    });
}

#[test]
fn a_view_changes_its_own_part_only() {
    on_gpus(2, |all, gpu| {
        let whole = numbers::<f32>(all.rank(), 3, gpu);
        let middle = whole.narrow(0, 1, 1).unwrap();
        all_reduce(all, &middle, ReduceOp::Sum).unwrap();
        let own = 10.0 * all.rank() as f64;
        assert_eq!(values(&whole), [own, own + 1.0, 14.0, 16.0, own + 4.0, own + 5.0]);
        let gathered = all_gather(all, &middle.t().unwrap()).unwrap();
        assert_eq!((gathered.dims(), values(&gathered)), (&[4, 1][..], vec![14.0, 16.0, 14.0, 16.0]));
    });
}

#[test]
fn tensors_on_the_host_go_over_the_host() {
    on_gpus(2, |all, _| {
        let tensor = numbers::<f32>(all.rank(), 1, &Device::Cpu);
        all_reduce(all, &tensor, ReduceOp::Sum).unwrap();
        assert_eq!(values(&tensor), [10.0, 12.0]);
    });
}

#[test]
fn what_cannot_be_done_is_refused_and_the_group_works_on() {
    on_gpus(2, |all, gpu| {
        let tensor = numbers::<f32>(all.rank(), 3, gpu);
        let refused = all_reduce(all.host(), &tensor, ReduceOp::Sum).unwrap_err().to_string();
        assert!(refused.contains("HybridGroup"), "{refused}");
        let of_both = |refused: phalanx_candle::Result<()>| {
            let refused = refused.unwrap_err();
            assert!(
                matches!(
                    refused,
                    Error::Group(phalanx::Error::Misuse { .. } | phalanx::Error::Unsupported { .. })
                ),
                "{refused}"
            );
        };
        if gpu_of(1) == 1 {
            let other = Device::new_cuda(1 - all.rank()).unwrap();
            let elsewhere = Tensor::zeros(3, DType::F32, &other).unwrap();
            let refused = all_reduce(all, &elsewhere, ReduceOp::Sum).unwrap_err().to_string();
            assert!(refused.contains("but this rank works on"), "{refused}");
            of_both(all_reduce_coalesced(all, &[&tensor, &elsewhere], ReduceOp::Sum));
        }
        for refused in [
            all_reduce(all, &tensor.t().unwrap(), ReduceOp::Sum),
            reduce_scatter(all, &tensor, ReduceOp::Sum).map(drop),
            all_to_all(all, &tensor).map(drop),
            all_reduce(all, &tensor, ReduceOp::BitAnd),
            broadcast(all, &tensor, 7),
        ] {
            of_both(refused);
        }
        // And the tensor has its memory.
        all_reduce(all, &tensor, ReduceOp::Avg).unwrap();
        assert_eq!(values(&tensor), [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
    });
}

#[test]
fn what_is_for_the_cpu_alone_says_so_when_it_is_made() {
    use candle_nn::{VarBuilder, VarMap};
    on_gpus(1, |all, gpu| {
        let vb = || VarBuilder::from_varmap(&VarMap::new(), DType::F32, gpu);
        let refused = phalanx_candle::SyncBatchNorm::new(3, 1e-5, vb(), all.host()).unwrap_err().to_string();
        assert!(refused.contains("not supported"), "{refused}");
        let build = |_: &phalanx_candle::Units, vb: VarBuilder<'static>| {
            candle_nn::linear(2, 2, vb.set_device(gpu.clone()))
        };
        let refused = phalanx_candle::Sharded::build(DType::F32, all.host(), Default::default(), build);
        assert!(refused.unwrap_err().to_string().contains("weights are taken on the CPU"));
    });
}

#[test]
fn ranks_that_differ_hear_of_it() {
    let errors = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for group in threads(2) {
            let errors = &errors;
            s.spawn(move || {
                let all = HybridGroup::with_fallback(&group, gpu_of(group.rank()), ways(2)[0]).unwrap();
                let gpu = Device::new_cuda(gpu_of(group.rank())).unwrap();
                let tensor = Tensor::zeros(4 + group.rank(), DType::F32, &gpu).unwrap();
                // The call may return before it is known.
                let heard = all_reduce(&all, &tensor, ReduceOp::Sum).and_then(|()| {
                    (0..).find_map(|_| all_reduce(&all, &tensor, ReduceOp::Sum).err()).map_or(Ok(()), Err)
                });
                errors.lock().unwrap().push(heard.unwrap_err().to_string());
            });
        }
    });
    for error in errors.into_inner().unwrap() {
        assert!(error.contains("tests/cuda.rs"), "both call sites are named: {error}");
    }
}

mod training {
    use super::*;
    use candle_core::Var;
    use candle_core::backprop::GradStore;
    use candle_nn::{Optimizer, ParamsAdamW, VarMap};
    use phalanx_candle::checkpoint::{Checkpoints, State, load_vars, save_vars};
    use phalanx_candle::{AdamW, DiLoCo, DiLoCoConfig};

    /// Two variables that differ between ranks.
    fn variables(salt: usize, gpu: &Device) -> VarMap {
        let varmap = VarMap::new();
        for (name, rows) in [("a", 3), ("b", 5)] {
            let var = Var::from_tensor(&numbers::<f32>(salt, rows, gpu)).unwrap();
            varmap.data().lock().unwrap().insert(name.into(), var);
        }
        varmap
    }

    fn var(varmap: &VarMap, name: &str) -> Var {
        varmap.data().lock().unwrap()[name].clone()
    }

    fn gradients(varmap: &VarMap, of: f64) -> GradStore {
        let mut grads = GradStore::default();
        for name in ["a", "b"] {
            let var = var(varmap, name);
            grads.insert(&var, ((var.as_detached_tensor() * 0.1).unwrap() + of).unwrap());
        }
        grads
    }

    #[test]
    fn models_begin_equal_and_differences_are_named() {
        on_gpus(2, |all, gpu| {
            let varmap = variables(all.rank(), gpu);
            let error = verify_parameters(&varmap, all).unwrap_err().to_string();
            assert!(error.starts_with("parameter `a` differs"), "{error}");
            sync_model(&varmap, all, 1).unwrap();
            verify_parameters(&varmap, all).unwrap();
            assert_eq!(values(&var(&varmap, "a"))[..3], [10.0, 11.0, 12.0]);
            let refused = sync_model(&varmap, all.host(), 0).unwrap_err().to_string();
            assert!(refused.contains("HybridGroup"), "{refused}");
        });
    }

    #[test]
    fn adamw_is_candles() {
        on_gpus(1, |_, gpu| {
            let (ours, theirs) = (variables(1, gpu), variables(1, gpu));
            let params = ParamsAdamW { lr: 0.1, weight_decay: 0.01, ..Default::default() };
            let mut our = AdamW::new(&ours, params.clone()).unwrap();
            let vars = ["a", "b"].map(|name| var(&theirs, name)).to_vec();
            let mut their = candle_nn::AdamW::new(vars, params).unwrap();
            for step in 0..5 {
                our.step(&gradients(&ours, f64::from(step))).unwrap();
                their.step(&gradients(&theirs, f64::from(step))).unwrap();
                for name in ["a", "b"] {
                    assert_eq!(values(&var(&ours, name)), values(&var(&theirs, name)), "step {step}");
                }
            }
        });
    }

    #[test]
    fn a_checkpoint_brings_weights_and_moments_back() {
        let folder = tempfile::tempdir().unwrap();
        let train = |varmap: &VarMap, adamw: &mut AdamW, steps: std::ops::Range<u32>| {
            for step in steps {
                adamw.step(&gradients(varmap, f64::from(step))).unwrap();
            }
        };
        let ended = on_gpus(2, |all, gpu| {
            let varmap = variables(1, gpu);
            let mut adamw = AdamW::new(&varmap, Default::default()).unwrap();
            train(&varmap, &mut adamw, 0..3);
            let mut checkpoints = Checkpoints::open(folder.path(), all.host()).unwrap();
            let mut state = State::new();
            save_vars(&varmap, "model", &mut state).unwrap();
            state.add("optimizer", &adamw).unwrap();
            checkpoints.save(3, state).unwrap();
            train(&varmap, &mut adamw, 3..6);
            values(&var(&varmap, "b"))
        });
        let resumed = on_gpus(1, |all, gpu| {
            let varmap = variables(7, gpu);
            let mut adamw = AdamW::new(&varmap, Default::default()).unwrap();
            let mut checkpoints = Checkpoints::open(folder.path(), all.host()).unwrap();
            let found = checkpoints.latest_good().unwrap().unwrap();
            load_vars(&varmap, "model", &found).unwrap();
            found.restore("optimizer", &mut adamw).unwrap();
            train(&varmap, &mut adamw, 3..6);
            values(&var(&varmap, "b"))
        });
        assert_eq!((&ended[0], &ended[0]), (&ended[1], &resumed[0]));
    }

    #[test]
    fn ranks_that_meet_seldom_meet() {
        on_gpus(2, |all, gpu| {
            let varmap = variables(0, gpu);
            let adamw = AdamW::new(&varmap, Default::default()).unwrap();
            let mut diloco = DiLoCo::new(adamw, &varmap, all, DiLoCoConfig::local_sgd(2)).unwrap();
            for step in 0..4 {
                diloco.step(&gradients(&varmap, f64::from(step) - 2.0 * all.rank() as f64)).unwrap();
                assert_eq!(verify_parameters(&varmap, all).is_ok(), step % 2 == 1, "step {step}");
            }
        });
    }
}

mod gradients {
    use super::*;
    use candle_core::backprop::GradStore;
    use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap};
    use phalanx_candle::compress::Int8;
    use phalanx_candle::{
        DdpConfig, DistributedDataParallel, Group, LossScaler, Overlap, Share, clip_grad_norm, sync_gradients,
    };

    /// Two layers, and one that only some use.
    struct Net {
        first: Linear,
        second: Linear,
        seldom: Linear,
    }

    fn wave(shape: &[usize], salt: f64, device: &Device) -> Tensor {
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|i| (salt + i as f64 * 1.7).sin()).collect();
        let wave = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        wave.to_dtype(DType::F32).unwrap().to_device(device).unwrap()
    }

    impl Net {
        fn new(vb: VarBuilder<'_>, varmap: &VarMap) -> candle_core::Result<Self> {
            let layer = |from, to, name| candle_nn::linear(from, to, vb.pp(name));
            let net = Self {
                first: layer(5, 7, "first")?,
                second: layer(7, 3, "second")?,
                seldom: layer(3, 3, "x-seldom")?,
            };
            for (name, var) in varmap.data().lock().unwrap().iter() {
                var.set(&wave(var.dims(), name.len() as f64, var.device()))?;
            }
            Ok(net)
        }

        /// Mean squared error over rows of a fixed data set, in f32.
        fn loss(
            &self,
            rows: std::ops::Range<usize>,
            seldom: bool,
            device: &Device,
        ) -> candle_core::Result<Tensor> {
            let dtype = self.first.weight().dtype();
            let x = wave(&[12, 5], 1.0, device).narrow(0, rows.start, rows.len())?.to_dtype(dtype)?;
            let y = wave(&[12, 3], 2.0, device).narrow(0, rows.start, rows.len())?;
            let mut out = self.second.forward(&self.first.forward(&x)?.tanh()?)?;
            if seldom {
                out = self.seldom.forward(&out)?;
            }
            (out.to_dtype(DType::F32)? - y)?.sqr()?.mean_all()
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Case {
        Plain,
        /// Rank 1 alone uses a layer.
        Seldom,
        /// Shares of 2 and 10 rows.
        Uneven,
        /// Rank 1 has no batches after the first.
        Join,
        Accumulate,
        Clip,
        Half(DType),
    }

    /// Trains as one of two ranks; the weights, in name order, and the norms of gradients on the way.
    fn train(all: &impl Group, device: &Device, overlap: Overlap, case: Case) -> Vec<f64> {
        let (rank, varmap) = (all.host().rank(), VarMap::new());
        let dtype = if let Case::Half(dtype) = case { dtype } else { DType::F32 };
        let config = DdpConfig::default().bucket_cap_bytes(100).overlap(overlap);
        let ddp = DistributedDataParallel::build_on(device, &varmap, dtype, all, config, |vb| {
            Net::new(vb, &varmap)
        })
        .unwrap();
        let mut vars: Vec<_> =
            varmap.data().lock().unwrap().iter().map(|(n, v)| (n.clone(), v.clone())).collect();
        vars.sort_by(|a, b| a.0.cmp(&b.0));
        let mut sgd = SGD::new(vars.iter().map(|(_, var)| var.clone()).collect(), 0.1).unwrap();
        let mut scaler = LossScaler::new(64.0).unwrap();
        let mut found = Vec::new();
        for step in 0..3 {
            let rows = match case {
                Case::Uneven => [0..2, 2..12][rank].clone(),
                _ => 6 * rank..6 * rank + 6,
            };
            let loss = |rows| ddp.forward(|net| net.loss(rows, case == Case::Seldom && rank == 1, device));
            let mut grads: GradStore = match case {
                Case::Join if rank == 1 && step > 0 => ddp.join().unwrap().expect("rank 0 goes on"),
                Case::Uneven => {
                    let share = Share::new(rows.len(), 12);
                    ddp.backward_share(&loss(rows).unwrap(), share).unwrap()
                }
                Case::Accumulate => {
                    ddp.accumulate(&loss(rows.start..rows.start + 2).unwrap()).unwrap();
                    ddp.backward(&loss(rows.start + 2..rows.end).unwrap()).unwrap()
                }
                Case::Half(_) => ddp.backward(&scaler.scale(&loss(rows).unwrap()).unwrap()).unwrap(),
                _ => ddp.backward(&loss(rows).unwrap()).unwrap(),
            };
            if let Case::Half(_) = case {
                assert!(scaler.unscale(&varmap, &mut grads).unwrap());
            }
            let most = if case == Case::Clip { 0.05 } else { f64::INFINITY };
            found.push(clip_grad_norm(&varmap, &mut grads, most).unwrap());
            let has_seldom = grads.get(&vars.last().unwrap().1).is_some();
            assert_eq!(has_seldom, case == Case::Seldom, "what nobody uses has no gradient");
            sgd.step(&grads).unwrap();
        }
        ddp.verify_parameters().unwrap();
        found.extend(vars.iter().flat_map(|(_, var)| values(var)));
        found
    }

    #[test]
    fn gradients_are_those_of_the_host_whatever_the_step() {
        let cases = [
            Case::Plain,
            Case::Seldom,
            Case::Uneven,
            Case::Join,
            Case::Accumulate,
            Case::Clip,
            Case::Half(DType::F16),
            Case::Half(DType::BF16),
        ];
        for case in cases {
            for overlap in [Overlap::Off, Overlap::On] {
                let expected: Vec<_> = std::thread::scope(|s| {
                    let start = |group: phalanx::ProcessGroup| {
                        s.spawn(move || train(&group, &Device::Cpu, overlap, case))
                    };
                    let ranks: Vec<_> = threads(2).into_iter().map(start).collect();
                    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
                });
                let found = on_gpus(2, |all, gpu| train(all, gpu, overlap, case));
                assert_eq!(found[0], found[1], "{case:?}, {overlap:?}: both ranks have the same bits");
                let coarse = matches!(case, Case::Half(_));
                for (found, expected) in found[0].iter().zip(&expected[0]) {
                    let apart = (found - expected).abs() / (1.0 + expected.abs());
                    assert!(
                        apart < if coarse { 1e-2 } else { 1e-5 },
                        "{case:?}, {overlap:?}: {found}, on the host {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_gradient_of_two_variables_is_reduced_once_for_each() {
        on_gpus(2, |all, gpu| {
            let varmap = VarMap::new();
            let [a, b] =
                ["a", "b"].map(|name| varmap.get(4, name, candle_nn::init::ZERO, DType::F32, gpu).unwrap());
            let mut grads = GradStore::default();
            let both = Tensor::full(1.0 + all.rank() as f32, 4, gpu).unwrap();
            grads.insert(&a, both.clone());
            grads.insert(&b, both);
            sync_gradients(&varmap, &mut grads, all).unwrap();
            for var in [a, b] {
                assert_eq!(values(grads.get(&var).unwrap()), [1.5; 4]);
            }
        });
    }

    #[test]
    fn a_rank_that_gives_up_ends_the_training_of_the_others() {
        let both_are_through = &std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            for group in threads(2) {
                s.spawn(move || {
                    let all = HybridGroup::with_fallback(&group, gpu_of(group.rank()), ways(2)[0]).unwrap();
                    let gpu = Device::new_cuda(gpu_of(group.rank())).unwrap();
                    let varmap = VarMap::new();
                    let config = DdpConfig::default().overlap(Overlap::On);
                    let build = |vb: VarBuilder<'_>| candle_nn::linear(4, 2, vb);
                    let build =
                        DistributedDataParallel::build_on(&gpu, &varmap, DType::F32, &all, config, build);
                    let (ddp, x) = (build.unwrap(), Tensor::ones((3, 4), DType::F32, &gpu).unwrap());
                    let step = || ddp.backward(&ddp.forward(|net| net.forward(&x)?.sqr()?.mean_all())?);
                    step().unwrap();
                    all.barrier().unwrap(); // the devices are done, too
                    // An abort also ends a barrier that others are still in.
                    both_are_through.wait();
                    if group.rank() == 1 {
                        return all.abort("out of memory");
                    }
                    let error = std::iter::from_fn(|| Some(step())).find_map(Result::err).unwrap();
                    assert!(error.to_string().contains("out of memory"), "{error}");
                    // candle goes on: nothing of it is away.
                    assert_eq!(values(&(x * 2.0).unwrap()), [2.0; 12]);
                });
            }
        });
    }

    #[test]
    fn hooks_are_refused_and_the_group_works_on() {
        on_gpus(2, |all, gpu| {
            let varmap = VarMap::new();
            let x = varmap.get(4, "x", candle_nn::init::ONE, DType::F32, gpu).unwrap();
            let ddp = DistributedDataParallel::new(&varmap, all, Default::default()).unwrap();
            let ddp = ddp.with_hook(Int8::new());
            let refused = ddp.backward(&x.sqr().unwrap().sum_all().unwrap()).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Group(phalanx::Error::Unsupported { .. })), "{refused}");
            all_reduce(all, &x, ReduceOp::Sum).unwrap();
            assert_eq!(values(&x), [2.0; 4]);
        });
    }
}
