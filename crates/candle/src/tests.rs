//! What can be seen from inside only: where gradients lie, and what is under way when.

use crate::element::bytes_mut;
use crate::model::{Parameter, parameters};
use crate::{DdpConfig, DistributedDataParallel, Overlap, Share, sync_gradients};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use phalanx_testkit::World;
use std::sync::{Arc, Mutex, OnceLock};

/// The gradients of one step on one rank.
fn step(varmap: &VarMap, rank: usize, step: usize) -> GradStore {
    let mut grads = GradStore::default();
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let scale = (1 + rank + 10 * step + 100 * name.len()) as f64 / 7.0;
        let wave = Tensor::arange(0f64, var.elem_count() as f64, &Device::Cpu).unwrap().sin().unwrap();
        let grad = (wave * scale).unwrap().reshape(var.shape()).unwrap().to_dtype(var.dtype()).unwrap();
        grads.insert(var, grad);
    }
    grads
}

fn bits(varmap: &VarMap, grads: &GradStore) -> Vec<Vec<u64>> {
    let all = |var: &Var| {
        let wide = grads.get(var).unwrap().flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        wide.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
    };
    parameters(varmap).iter().map(|p| all(&p.var)).collect()
}

/// Where the gradients lie, in name order.
fn places(varmap: &VarMap, grads: &GradStore) -> Vec<*const u8> {
    let place = |p: &Parameter| bytes_mut(grads.get(&p.var).unwrap(), |bytes| bytes.as_ptr()).unwrap();
    parameters(varmap).iter().map(place).collect()
}

#[test]
fn gradients_stay_where_they_are() {
    for world in [World::thread(), World::tcp(), World::shm()] {
        world.run(3, |group| {
            let varmap = VarMap::new();
            for (name, dtype, shape) in [
                ("a", DType::F32, [40_000, 2]),
                ("bb", DType::BF16, [5, 31]),
                ("ccc", DType::F64, [1, 3]),
                ("dddd", DType::F64, [2, 1]),
                ("eeeee", DType::F16, [7, 1]),
            ] {
                let var = Var::zeros(&shape, dtype, &Device::Cpu).unwrap();
                varmap.data().lock().unwrap().insert(name.to_owned(), var);
            }
            let config = DdpConfig::default().bucket_cap_bytes(1000);
            let ddp = DistributedDataParallel::new(&varmap, &group, config).unwrap();
            for at in 0..2 {
                let mut found = step(&varmap, group.rank(), at);
                let before = places(&varmap, &found);
                ddp.sync_gradients(&mut found, Share::EQUAL).unwrap();
                assert_eq!(places(&varmap, &found), before);

                let mut plain = step(&varmap, group.rank(), at);
                sync_gradients(&varmap, &mut plain, &group).unwrap();
                assert_eq!(bits(&varmap, &found), bits(&varmap, &plain));
            }
        });
    }
}

#[test]
fn gradients_in_any_layout_are_averaged() {
    World::thread().run(2, |group| {
        let varmap = VarMap::new();
        let var = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        varmap.data().lock().unwrap().insert("a".to_owned(), var.clone());
        let rows = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap().reshape((3, 2)).unwrap();
        let mut grads = GradStore::default();
        grads.insert(&var, (rows * (1 + group.rank()) as f64).unwrap().t().unwrap());
        sync_gradients(&varmap, &mut grads, &group).unwrap();
        let found = grads.get(&var).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(found, [[0.0, 3.0, 6.0], [1.5, 4.5, 7.5]]);
    });
}

#[test]
fn sums_beyond_f16_have_averages_within() {
    World::tcp().run(3, |group| {
        let varmap = VarMap::new();
        let var = Var::zeros(4, DType::F16, &Device::Cpu).unwrap();
        varmap.data().lock().unwrap().insert("a".to_owned(), var.clone());
        let mut grads = GradStore::default();
        grads.insert(&var, Tensor::full(60_000f32, 4, &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap());
        sync_gradients(&varmap, &mut grads, &group).unwrap();
        let found = grads.get(&var).unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
        assert!(found.iter().all(|x| (x - 60_000.0).abs() < 100.0), "{found:?}");
    });
}

/// Copies, and notes how many buckets are under way when the backward pass comes by.
struct Witness {
    ddp: Arc<OnceLock<DistributedDataParallel<[Tensor; 3]>>>,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl CustomOp1 for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let launched = self.ddp.get().unwrap().gradients().launched();
        self.seen.lock().unwrap().push(launched);
        Ok(Some(grad.clone()))
    }
}

#[test]
fn buckets_are_under_way_during_the_backward_pass_in_the_order_of_rank_0() {
    World::tcp().run(2, |group| {
        let varmap = VarMap::new();
        let config = DdpConfig::default().bucket_cap_bytes(0).overlap(Overlap::On);
        let build = |vb: VarBuilder<'_>| Ok([vb.get(4, "a")?, vb.get(4, "b")?, vb.get(4, "c")?]);
        let ddp = DistributedDataParallel::build(&varmap, DType::F32, &group, config, build).unwrap();
        let (shared, seen) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(Vec::new())));
        let witness = || Witness { ddp: shared.clone(), seen: seen.clone() };
        let ddp = shared.get_or_init(|| ddp);
        for _ in 0..2 {
            let loss = ddp.forward(|[a, b, c]| {
                let x = (a.apply_op1(witness())? * b)?;
                (x.apply_op1(witness())? * c)?.sum_all()
            });
            ddp.backward(&loss.unwrap()).unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), [1, 2, 1, 2]);
    });
}
