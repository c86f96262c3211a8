//! What is ferrotorch's own: hooks, weights at several places, frozen ones, what is refused, checkpoints.

use crate::common::everywhere;
use ferrotorch_core::grad_fns::{arithmetic, reduction};
use ferrotorch_core::{FerrotorchResult, Tensor, creation};
use ferrotorch_nn::{Linear, Module, Parameter};
use phalanx_ferrotorch::checkpoint::{self, Checkpoints, State};
use phalanx_ferrotorch::{Backend, DDP, DdpConfig, Overlap, SimulatedBackend};
use std::sync::Arc;

/// Weights, by the names that they have here.
struct Weights(Vec<(&'static str, Parameter<f32>)>);

impl Weights {
    fn new(named: &[(&'static str, &[f32])]) -> Self {
        let new = |numbers: &[f32]| Parameter::from_slice(numbers, &[numbers.len()]).unwrap();
        Self(named.iter().map(|(name, numbers)| (*name, new(numbers))).collect())
    }
}

impl Module<f32> for Weights {
    fn forward(&self, input: &Tensor<f32>) -> FerrotorchResult<Tensor<f32>> {
        Ok(input.clone())
    }

    fn parameters(&self) -> Vec<&Parameter<f32>> {
        self.0.iter().map(|(_, parameter)| parameter).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter<f32>> {
        self.0.iter_mut().map(|(_, parameter)| parameter).collect()
    }

    fn named_parameters(&self) -> Vec<(String, &Parameter<f32>)> {
        self.0.iter().map(|(name, parameter)| ((*name).to_owned(), parameter)).collect()
    }

    fn train(&mut self) {}

    fn eval(&mut self) {}

    fn is_training(&self) -> bool {
        true
    }
}

fn both() -> [DdpConfig; 2] {
    [Overlap::Off, Overlap::On].map(|overlap| DdpConfig::default().overlap(overlap))
}

fn times(tensor: &Tensor<f32>, by: f32) -> Tensor<f32> {
    let sum = reduction::sum(tensor).unwrap();
    arithmetic::mul(&sum, &creation::scalar(by).unwrap()).unwrap()
}

fn grad(parameter: &Parameter<f32>) -> Option<Vec<f32>> {
    parameter.grad().unwrap().map(|grad| grad.data_vec().unwrap())
}

#[test]
fn a_weight_that_is_used_often_is_sent_once_complete() {
    everywhere(2, |backend| {
        for config in both() {
            let weights = Weights::new(&[("b", &[1.0, 2.0]), ("a", &[3.0])]);
            let ddp = DDP::with_config(weights, backend.clone(), config);
            let [b, a] = [&ddp.module().0[0].1, &ddp.module().0[1].1];
            let rank = backend.rank() as f32;
            let mut loss = times(a, 1.0 + rank);
            for use_ in 1..=5 {
                loss = arithmetic::add(&loss, &times(b, use_ as f32 * rank)).unwrap();
            }
            for step in 1..=2 {
                // Without zeros in between, the second step adds to the mean that the first one left.
                ddp.backward(&loss).unwrap();
                assert_eq!(grad(b), Some(vec![7.5 * step as f32; 2]));
                assert_eq!(grad(a), Some(vec![1.5 * step as f32]));
            }
        }
    });
}

#[test]
fn gradients_of_earlier_passes_are_part_of_the_sum() {
    everywhere(2, |backend| {
        for config in both() {
            let ddp =
                DDP::with_config(Weights::new(&[("a", &[1.0]), ("b", &[1.0])]), backend.clone(), config);
            let [a, b] = [&ddp.module().0[0].1, &ddp.module().0[1].1];
            ferrotorch_core::backward(&times(a, 2.0 * backend.rank() as f32)).unwrap();
            ddp.backward(&times(b, 4.0)).unwrap(); // of `a` comes nothing more
            assert_eq!((grad(a), grad(b)), (Some(vec![1.0]), Some(vec![4.0])));
        }
    });
}

#[test]
fn what_no_rank_uses_has_no_gradient_and_what_is_frozen_neither() {
    everywhere(2, |backend| {
        for config in both() {
            let mut weights = Weights::new(&[("used", &[1.0]), ("never", &[1.0]), ("frozen", &[1.0])]);
            weights.0[2].1.set_requires_grad(false);
            let mut ddp = DDP::with_config(weights, backend.clone(), config);
            ddp.broadcast_parameters(1).unwrap();
            assert!(!ddp.module().0[2].1.requires_grad(), "it is frozen still");
            let [used, never, frozen] = [0, 1, 2].map(|i| &ddp.module().0[i].1);
            let loss = arithmetic::add(&times(used, 3.0), &times(frozen, 3.0)).unwrap();
            ddp.backward(&loss).unwrap();
            assert_eq!((grad(used), grad(never), grad(frozen)), (Some(vec![3.0]), None, None));
        }
    });
}

#[test]
fn ranks_with_other_models_hear_which_parameter_differs() {
    everywhere(2, |backend| {
        let len = 2 + backend.rank();
        let mut ddp = DDP::new(Weights::new(&[("a", &[1.0]), ("b", &vec![1.0; len])]), backend.clone());
        let error = ddp.broadcast_parameters(0).unwrap_err().to_string();
        assert!(error.contains("parameter `b` differs between ranks"), "{error}");
        backend.barrier().unwrap();

        let mut ddp = DDP::new(Weights::new(&[("a", &[backend.rank() as f32])]), backend.clone());
        let error = ddp.verify_parameters().unwrap_err().to_string();
        assert!(error.contains("parameter `a` differs between ranks"), "{error}");
        ddp.broadcast_parameters(1).unwrap();
        ddp.verify_parameters().unwrap();
        assert_eq!(ddp.module().0[0].1.data_vec().unwrap(), [1.0]);
    });
}

#[test]
fn a_backward_pass_that_fails_is_told_on_every_rank() {
    everywhere(2, |backend| {
        let config = DdpConfig::default().overlap(Overlap::On);
        let ddp = DDP::with_config(Weights::new(&[("a", &[1.0, 2.0])]), backend.clone(), config);
        let a = &ddp.module().0[0].1;
        // On rank 1 the loss is no scalar.
        let loss = if backend.rank() == 0 { times(a, 1.0) } else { arithmetic::mul(a, a).unwrap() };
        let error = ddp.backward(&loss).unwrap_err().to_string();
        if backend.rank() == 0 {
            assert!(error.contains("rank 1") && error.contains("tests/all/training.rs"), "{error}");
        }
        let again = ddp.backward(&times(a, 1.0)).unwrap_err().to_string();
        assert!(!again.contains("panicked"), "{again}");
    });
}

#[test]
fn a_checkpoint_is_loaded_on_another_number_of_ranks_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let on = |ranks: usize, rank: &(dyn Fn(SimulatedBackend) -> Vec<f32> + Sync)| {
        let backends = SimulatedBackend::create_group(ranks).unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                backends.into_iter().map(|backend| scope.spawn(move || rank(backend))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let numbers = |ddp: &DDP<Linear<f32>, f32>| {
        ddp.parameters().iter().flat_map(|parameter| parameter.data_vec().unwrap()).collect::<Vec<_>>()
    };
    let saved = on(2, &|backend| {
        let mut checkpoints = Checkpoints::open(folder.path(), backend.group()).unwrap();
        let mut ddp = DDP::new(Linear::<f32>::new(5, 3, true).unwrap(), Arc::new(backend));
        ddp.broadcast_parameters(0).unwrap();
        let mut state = State::new();
        checkpoint::save_module(ddp.module(), "model", &mut state).unwrap();
        checkpoints.save(7, state).unwrap();
        numbers(&ddp)
    });
    let loaded = on(3, &|backend| {
        let mut checkpoints = Checkpoints::open(folder.path(), backend.group()).unwrap();
        let mut ddp = DDP::new(Linear::<f32>::new(5, 3, true).unwrap(), Arc::new(backend));
        let found = checkpoints.latest_good().unwrap().unwrap();
        checkpoint::load_module(ddp.module_mut(), "model", &found).unwrap();
        let mut other = Linear::<f32>::new(4, 3, true).unwrap();
        let before = other.parameters()[0].data_vec().unwrap();
        checkpoint::load_module(&mut other, "model", &found).unwrap_err();
        assert_eq!(other.parameters()[0].data_vec().unwrap(), before);
        numbers(&ddp)
    });
    assert!(loaded.iter().all(|loaded| *loaded == saved[0]));
}
