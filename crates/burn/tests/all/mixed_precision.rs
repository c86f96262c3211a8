//! Forward and backward passes in 16 bits, with weights of 32 bits or of 16, and losses that are scaled.

use crate::common::everywhere;
use burn::module::Param;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use phalanx::ProcessGroup;
use phalanx_burn::{DistributedDataParallel, LossScaler, Sharded};

fn device() -> Device {
    Device::default().autodiff()
}

fn number(weight: &Param<Tensor<1>>) -> f32 {
    weight.val().into_data().convert::<f32>().try_into_vec().unwrap()[0]
}

fn weight(dtype: DType) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::from_data(TensorData::from([1f32]), (&device(), dtype)).require_grad())
}

/// `factor` times the weight, computed in f16, as f32: the gradient is rounded to f16 on its way back.
fn times(weight: &Param<Tensor<1>>, factor: f32) -> Tensor<1> {
    (weight.val().cast(DType::F16) * factor).cast(DType::F32)
}

/// The rank's gradient. The lesser is lost in f16, unless the loss is scaled; the larger overflows there if it is scaled by 65536.
fn factor(group: &ProcessGroup, step: usize) -> f32 {
    match (step, group.rank()) {
        (1, 1) => 4.0,
        (_, rank) => [1e-8, 3e-8][rank],
    }
}

#[test]
fn small_gradients_survive_16_bits_and_an_overflow_on_one_rank_skips_the_step_of_all() {
    everywhere(2, |group| {
        let mut model = weight(DType::F32);
        let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
        let mut sgd: ModuleOptimizer = SgdConfig::new().init();
        let mut scaler = LossScaler::new(65536.0).unwrap();
        let mut steps = Vec::new();
        for step in 0..3 {
            // A factor of the pass in f16: its product with the scale is the gradient there.
            let loss = times(&model, 1.0) * factor(&group, step) * scaler.factor();
            let mut grads = ddp.backward(&model, loss).unwrap();
            steps.push(ddp.unscale(&mut scaler, &model, &mut grads).unwrap());
            if steps[step] {
                let grad = grads.get::<1>(model.id).unwrap().into_scalar::<f32>();
                assert!((grad / 2e-8 - 1.0).abs() < 1e-2, "{grad}");
                model = sgd.step(1e6, model, grads);
            }
        }
        assert_eq!((steps, scaler.factor()), (vec![true, false, true], 32768.0));
        assert_eq!(model.val().dtype(), DType::F32);
        assert!((number(&model) - 0.96).abs() < 1e-3, "{}", number(&model));
        ddp.verify_parameters(&model).unwrap();

        // Without a scale nothing is left of them.
        let grads = ddp.backward(&model, times(&model, 1.0) * factor(&group, 0)).unwrap();
        let lost = grads.get::<1>(model.id).unwrap().into_scalar::<f32>();
        assert!((lost / 2e-8 - 1.0).abs() > 0.2, "{lost}");
    });
}

#[test]
fn weights_of_f16_are_trained_in_32_bits_by_scaled_losses() {
    everywhere(2, |group| {
        let mut model = weight(DType::F16);
        let mut zero = Sharded::new(&mut model, &group, Default::default()).unwrap();
        let mut sgd: ModuleOptimizer = SgdConfig::new().init();
        let mut scaler = LossScaler::new(65536.0).unwrap();
        let mut steps = Vec::new();
        for step in 0..3 {
            let loss = model.val().cast(DType::F32) * factor(&group, step) * scaler.factor();
            let mut grads = zero.backward(&model, loss).unwrap();
            steps.push(zero.unscale(&mut scaler, &mut grads).unwrap());
            if steps[step] {
                model = zero.step(&mut sgd, 1e6, model, grads).unwrap();
            }
        }
        assert_eq!((steps, scaler.factor()), (vec![true, false, true], 32768.0));
        assert_eq!(model.val().dtype(), DType::F16);
        assert!((number(&model) - 0.96).abs() < 1e-3, "{}", number(&model));
        zero.verify_parameters(&model).unwrap();
    });
}
