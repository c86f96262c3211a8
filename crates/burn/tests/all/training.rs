//! What is burn's own: modules whose parameters are frozen, of other types, statistics, burn's way to accumulate, and what is refused.

use crate::common::everywhere;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use phalanx_burn::{
    DdpConfig, DistributedDataParallel, Error, MissingGradients, Overlap, Share, sync_model,
    verify_parameters,
};

fn device() -> Device {
    Device::default().autodiff()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().unwrap()
}

fn weight(values: &[f32]) -> Param<Tensor<1>> {
    let data = TensorData::new(values.to_vec(), [values.len()]);
    Param::from_tensor(Tensor::from_data(data, &device()).require_grad())
}

/// Of every kind that a module can have.
#[derive(Module, Debug)]
struct Mixed {
    layers: Vec<Linear>,
    norm: BatchNorm,
    steps: Param<Tensor<1, Int>>,
    head: Option<Param<Tensor<1>>>,
}

impl Mixed {
    fn new(rank: usize) -> Self {
        let steps = Tensor::<1, Int>::from_data([rank as i64, 7], &device());
        Self {
            layers: (0..12).map(|_| LinearConfig::new(3, 2).init(&device())).collect(),
            norm: BatchNormConfig::new(2).init(&device()),
            steps: Param::initialized(Default::default(), steps),
            head: Some(weight(&[rank as f32])),
        }
    }
}

#[test]
fn all_parameters_of_a_module_are_made_equal() {
    everywhere(3, |group| {
        let mut model = Mixed::new(group.rank());
        let error = verify_parameters(&model, &group).unwrap_err();
        assert!(matches!(&error, Error::ParameterMismatch { name, .. } if name == "head"), "{error}");
        sync_model(&mut model, &group, 2).unwrap();
        verify_parameters(&model, &group).unwrap();
        assert_eq!(model.steps.val().into_data().convert::<i64>().try_into_vec::<i64>().unwrap(), [2, 7]);
        assert_eq!(numbers(model.head.clone().unwrap().val()), [2.0]);
        assert!(model.head.as_ref().unwrap().val().is_require_grad(), "it is trained still");
        assert!(!model.norm.running_mean.value().is_require_grad());
        // Twelve layers: `layers.10` stands before `layers.2` among the names, and after it in the module.
        let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
        let x = Tensor::<2>::ones([1, 3], &device());
        let loss =
            model.layers.iter().enumerate().map(|(i, layer)| layer.forward(x.clone()).sum() * i as f32);
        let loss = loss.reduce(|a, b| a + b).unwrap() + model.head.as_ref().unwrap().val();
        let grads = ddp.backward(&model, loss).unwrap();
        for (i, layer) in model.layers.iter().enumerate() {
            let grad = grads.get::<2>(layer.weight.id).unwrap();
            assert_eq!(numbers(grad), [i as f32; 6], "layer {i}");
        }
    });
}

#[test]
fn running_statistics_become_those_of_one_rank() {
    everywhere(2, |group| {
        let mut norm: BatchNorm = BatchNormConfig::new(1).init(&device());
        let config = DdpConfig::default().broadcast_buffers(true);
        let mut ddp = DistributedDataParallel::new(&mut norm, &group, config).unwrap();
        let own = || Tensor::<2>::full([4, 1], 1.0 + group.rank() as f32, &device());
        norm.forward(own());
        assert!(verify_parameters(&norm, &group).is_err());
        ddp.sync_buffers(&norm, 1).unwrap();
        assert_eq!(numbers(norm.running_mean.value()), [0.2]); // a tenth of rank 1's batch

        // Each step gives rank 0's, also where the forward pass was the first use of what another rank had.
        let loss = norm.forward(own()).sum() + norm.gamma.val().sum() + norm.beta.val().sum();
        ddp.backward(&norm, loss).unwrap();
        let expected = 0.9 * 0.2 + 0.1 * 1.0;
        assert!((numbers(norm.running_mean.value())[0] - expected).abs() < 1e-6);
        verify_parameters(&norm, &group).unwrap();
    });
}

#[test]
fn what_is_frozen_is_not_missed_and_may_be_trained_later() {
    everywhere(2, |group| {
        let mut model = [weight(&[1.0]), weight(&[2.0]).set_require_grad(false)];
        let config = DdpConfig::default().missing_gradients(MissingGradients::Error);
        let mut ddp = DistributedDataParallel::new(&mut model, &group, config).unwrap();
        let loss = |model: &[Param<Tensor<1>>; 2]| model[0].val() * model[1].val() * group.rank() as f32;
        let grads = ddp.backward(&model, loss(&model)).unwrap();
        assert_eq!(numbers(grads.get::<1>(model[0].id).unwrap()), [1.0]);
        assert!(grads.get::<1>(model[1].id).is_none());

        let [first, second] = model;
        let model = [first, second.set_require_grad(true)];
        let grads = ddp.backward(&model, loss(&model)).unwrap();
        assert_eq!(numbers(grads.get::<1>(model[1].id).unwrap()), [0.5]);

        let error = ddp.backward(&model, model[1].val() * 2.0).unwrap_err();
        assert!(matches!(&error, Error::NoGradient { names, .. } if names == &["0"]), "{error}");
    });
}

#[test]
fn weights_of_every_float_type_have_gradients_of_it() {
    everywhere(2, |group| {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let value = Tensor::<1>::from_data([1.0, 2.0], (&device(), dtype)).require_grad();
            let mut model = Param::from_tensor(value);
            let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
            let grads = ddp.backward(&model, model.val().sum() * (1 + group.rank()) as f32).unwrap();
            let grad = grads.get::<1>(model.id).unwrap();
            assert_eq!((grad.dtype(), numbers(grad)), (dtype, vec![1.5, 1.5]));
        }
    });
}

#[test]
fn gradients_that_burn_accumulates_are_those_of_all_ranks() {
    everywhere(2, |group| {
        let mut model = weight(&[1.0]);
        let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
        let mut sum = GradientsAccumulator::new();
        for factor in [2.0, 3.0] {
            let loss = model.val() * factor * group.rank() as f32;
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        let grads = ddp.sync_gradients(&model, sum.grads(), Share::EQUAL).unwrap();
        assert_eq!(numbers(grads.get::<1>(model.id).unwrap()), [2.5]);
    });
}

#[test]
fn clipped_gradients_are_the_same_on_all_ranks() {
    everywhere(2, |group| {
        let mut model = [weight(&[0.0, 0.0]), weight(&[0.0])];
        let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
        let loss = model[0].val().sum() * 4.0 * group.rank() as f32 + model[1].val();
        let mut grads = ddp.backward(&model, loss).unwrap(); // 2, 2 and 1
        assert_eq!(ddp.clip_grad_norm(&model, &mut grads, 1.5).unwrap(), 3.0);
        let clipped = numbers(grads.get::<1>(model[0].id).unwrap());
        assert!(clipped.iter().all(|x| (x - 1.0).abs() < 1e-6), "{clipped:?}");
        assert!(ddp.clip_grad_norm(&model, &mut grads, -1.0).is_err());
        assert_eq!(numbers(grads.get::<1>(model[0].id).unwrap()), clipped, "nothing was changed");
    });
}

#[test]
fn optimizers_of_burn_keep_ranks_equal() {
    everywhere(3, |group| {
        let mut model = Mixed::new(group.rank());
        let config = DdpConfig::default().bucket_cap_bytes(32);
        let mut ddp = DistributedDataParallel::new(&mut model, &group, config).unwrap();
        let optimizers: [ModuleOptimizer; 2] =
            [AdamConfig::new().init(), SgdConfig::new().with_momentum(None).init()];
        for mut optimizer in optimizers {
            for step in 0..3 {
                let x = Tensor::<2>::full([2, 3], (step + group.rank()) as f32, &device());
                let out = model.layers.iter().map(|layer| layer.forward(x.clone()).square().mean());
                let loss = out.reduce(|a, b| a + b).unwrap() + model.head.as_ref().unwrap().val();
                let grads = ddp.backward(&model, loss).unwrap();
                model = optimizer.step(0.01, model, grads);
                ddp.verify_parameters(&model).unwrap();
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    everywhere(2, |group| {
        let mut model = [weight(&[1.0]), weight(&[2.0])];
        let refused =
            DistributedDataParallel::new(&mut model, &group, DdpConfig::default().overlap(Overlap::On));
        assert!(matches!(refused, Err(Error::Group(phalanx::Error::Misuse { .. }))), "{refused:?}");

        let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
        let (fewer, more) = (weight(&[1.0]), [weight(&[1.0]), weight(&[1.0]), weight(&[1.0])]);
        for error in
            [ddp.backward(&fewer, fewer.val()).unwrap_err(), ddp.backward(&more, more[2].val()).unwrap_err()]
        {
            let error = error.to_string();
            assert!(error.contains("than the one that was wrapped"), "{error}");
        }
    });
}

#[test]
fn a_step_that_fails_leaves_nothing_of_what_was_accumulated_for_it() {
    everywhere(2, |group| {
        let mut model = weight(&[1.0]);
        let mut ddp = DistributedDataParallel::new(&mut model, &group, Default::default()).unwrap();
        let other = [weight(&[1.0]), weight(&[1.0])];
        ddp.accumulate(&model, model.val() * 2.0).unwrap();
        ddp.backward(&other, other[1].val() * 1.0).unwrap_err();
        let grads = ddp.backward(&model, model.val() * 5.0).unwrap();
        assert_eq!(grads.get::<1>(model.id).unwrap().into_scalar::<f32>(), 5.0);

        ddp.accumulate(&model, model.val() * 2.0).unwrap();
        ddp.accumulate(&other, other[1].val() * 1.0).unwrap_err();
        let grads = ddp.backward(&model, model.val() * 5.0).unwrap();
        assert_eq!(grads.get::<1>(model.id).unwrap().into_scalar::<f32>(), 5.0);
    });
}
