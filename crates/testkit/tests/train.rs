//! The arrays of `phalanx-train` pass the suite of adapters, and an adapter that does harm does not.

use phalanx_group::ProcessGroup;
use phalanx_testkit::World;
use phalanx_testkit::conformance::train::{
    Averaging, Batch, Library, Named, Saving, Sharding, Toy, averaging, batches, equality, gradients,
    refusals, saving, sharding, whole,
};
use phalanx_train::checkpoint::{Checkpoints, State, save_tensors};
use phalanx_train::{
    Array, DdpConfig, DiLoCo, DiLoCoConfig, Gradients, MissingGradients, Parameter, Reducer, Sgd, SgdParams,
    ShardConfig, Sharded, Share, Stage, sync_model,
};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Weights in plain memory, whose gradients are found by hand. With harm that is done on purpose, or none.
struct Arrays<const HARM: u8> {
    toy: Toy,
    weights: Named,
    reducer: Reducer<Array>,
    grads: Named,
}

fn told(error: phalanx_train::Error) -> String {
    error.to_string()
}

impl<const HARM: u8> Arrays<HARM> {
    /// The loss of a batch, and its gradients in the order of names.
    fn backward(&self, batch: &Batch) -> (f32, Gradients<Array>) {
        let wide = |values: &Vec<f32>| values.iter().map(|&x| x.into()).collect();
        let weights: BTreeMap<_, Vec<f64>> =
            self.weights.iter().map(|(name, values)| (name.clone(), wide(values))).collect();
        let (loss, grads) = gradients(&self.toy, &weights, batch);
        let narrow = |grad: &Vec<f64>| Array::from(grad.iter().map(|&x| x as f32).collect::<Vec<_>>());
        (loss as f32, self.weights.keys().map(|name| grads.get(name).map(narrow)).collect())
    }

    fn given(&mut self, grads: Gradients<Array>) -> Named {
        let named = self.weights.keys().cloned().zip(grads);
        self.grads = named.filter_map(|(name, grad)| Some((name, grad?.try_into().ok()?))).collect();
        self.grads.clone()
    }
}

impl<const HARM: u8> Library for Arrays<HARM> {
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String> {
        let mut arrays: Vec<(&str, Array)> =
            toy.weights.iter().map(|(name, values)| (name.as_str(), Array::from(values.clone()))).collect();
        if HARM != OWN_WEIGHTS {
            sync_model(arrays.iter_mut().map(|(name, array)| (*name, array)), group, 0).map_err(told)?;
        }
        let parameters: Vec<_> = arrays.iter().map(|(name, array)| Parameter::of(*name, array)).collect();
        let config = DdpConfig::default().bucket_cap_bytes(bucket_cap_bytes);
        let mut reducer = Reducer::new(parameters, group, config.bucket_cap_bytes, false).map_err(told)?;
        reducer.set_missing_gradients(MissingGradients::Allow);
        let weights = arrays.into_iter().map(|(name, array)| Ok((name.to_owned(), array.try_into()?)));
        let weights = weights.collect::<Result<_, _>>().map_err(told)?;
        Ok(Self { toy: toy.clone(), weights, reducer, grads: Named::new() })
    }

    fn weights(&self) -> Named {
        self.weights.clone()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String> {
        let share = share.filter(|_| HARM != EQUAL_SHARES);
        let share = share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global));
        let none = || (0.0, self.weights.keys().map(|_| None).collect());
        let (loss, mut grads) = batch.map_or_else(none, |batch| self.backward(batch));
        if HARM == NOTHING_SENT {
            return Ok((loss, self.given(grads)));
        }
        if HARM == ZEROS_FOR_NONE {
            let zeros = |values: &Vec<f32>| Array::from(vec![0.0; values.len()]);
            for (grad, values) in grads.iter_mut().zip(self.weights.values()) {
                grad.get_or_insert_with(|| zeros(values));
            }
        }
        let grads = self.reducer.reduce(grads, share).map_err(told)?;
        Ok((loss, self.given(grads)))
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<(), String> {
        if HARM == KEPT_IS_LOST {
            return Ok(());
        }
        for (place, grad) in self.backward(batch).1.into_iter().enumerate() {
            grad.map_or(Ok(()), |grad| self.reducer.keep(place, grad)).map_err(told)?;
        }
        Ok(())
    }

    fn join(&mut self) -> Result<Option<Named>, String> {
        let grads = self.reducer.join().map_err(told)?;
        Ok(grads.map(|grads| self.given(grads)))
    }

    fn descend(&mut self, rate: f64) {
        for (name, grad) in &self.grads {
            let weights = self.weights.get_mut(name).expect("each gradient has a weight");
            weights.iter_mut().zip(grad).for_each(|(weight, grad)| *weight -= rate as f32 * grad);
        }
    }
}

/// Weights in the order of their names, with gradients by hand.
struct Weights {
    toy: Toy,
    arrays: Vec<Array>,
}

impl Weights {
    fn new(toy: &Toy) -> Self {
        Self { toy: toy.clone(), arrays: toy.weights.values().cloned().map(Array::from).collect() }
    }

    fn named(&mut self) -> impl Iterator<Item = (&str, &mut Array)> {
        self.toy.weights.keys().map(String::as_str).zip(&mut self.arrays)
    }

    fn numbers(&self) -> Named {
        let numbers = self.arrays.iter().map(|array| array.as_slice().unwrap().to_vec());
        self.toy.weights.keys().cloned().zip(numbers).collect()
    }

    fn backward(&self, batch: &Batch) -> Gradients<Array> {
        let wide = |array: &Array| array.as_slice::<f32>().unwrap().iter().map(|&x| x.into()).collect();
        let weights = self.toy.weights.keys().cloned().zip(self.arrays.iter().map(wide)).collect();
        let (_, grads) = gradients(&self.toy, &weights, batch);
        let narrow = |grad: &Vec<f64>| Array::from(grad.iter().map(|&x| x as f32).collect::<Vec<_>>());
        self.toy.weights.keys().map(|name| grads.get(name).map(narrow)).collect()
    }
}

struct Dealt<const HARM: u8> {
    weights: Weights,
    zero: Sharded,
    sgd: Sgd<Array>,
}

impl<const HARM: u8> Sharding for Dealt<HARM> {
    fn deal_out(toy: &Toy, group: &ProcessGroup, with_gradients: bool, rate: f64) -> Result<Self, String> {
        let mut weights = Weights::new(toy);
        let stage = if with_gradients { Stage::Gradients } else { Stage::Optimizer };
        let config = ShardConfig::default().stage(stage);
        let zero = Sharded::new(weights.named(), group, config).map_err(told)?;
        if HARM == OWN_WEIGHTS {
            weights = Weights::new(toy);
        }
        let sgd = zero.sgd(SgdParams { lr: rate, ..Default::default() });
        Ok(Self { weights, zero, sgd })
    }

    fn weights(&self) -> Named {
        self.weights.numbers()
    }

    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(), String> {
        let share = share.filter(|_| HARM != EQUAL_SHARES);
        let share = share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global));
        let none = || self.weights.arrays.iter().map(|_| None).collect();
        let grads = batch.map_or_else(none, |batch| self.weights.backward(batch));
        let grads = self.zero.reduce(grads, share).map_err(told)?;
        self.sgd.step(&mut self.zero, &grads).map_err(told)?;
        if HARM == NOTHING_SENT { Ok(()) } else { self.zero.gather(&mut self.weights.arrays).map_err(told) }
    }
}

struct Averaged<const HARM: u8> {
    weights: Weights,
    diloco: DiLoCo,
    sgd: Sgd<Array>,
}

impl<const HARM: u8> Averaging for Averaged<HARM> {
    fn average(toy: &Toy, group: &ProcessGroup, sync_every: u64, rate: f64) -> Result<Self, String> {
        let mut weights = Weights::new(toy);
        let config = DiLoCoConfig::local_sgd(sync_every);
        let diloco = DiLoCo::new(weights.named(), group, config).map_err(told)?;
        if HARM == OWN_WEIGHTS {
            weights = Weights::new(toy);
        }
        let params = SgdParams { lr: rate, ..Default::default() };
        let sgd = Sgd::new(weights.named().map(|(name, weight)| (name, &*weight)), params);
        Ok(Self { weights, diloco, sgd })
    }

    fn weights(&self) -> Named {
        self.weights.numbers()
    }

    fn step(&mut self, batch: &Batch) -> Result<(), String> {
        let grads = self.weights.backward(batch);
        self.sgd.step(&mut self.weights.arrays, &grads).map_err(told)?;
        if HARM == NOTHING_SENT {
            return Ok(());
        }
        self.diloco.step(&mut self.weights.arrays).map_err(told)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.diloco.finish(&mut self.weights.arrays).map_err(told)
    }
}

impl<const HARM: u8> Saving for Arrays<HARM> {
    fn save(&self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let arrays: Vec<Array> = self.weights.values().cloned().map(Array::from).collect();
        let mut state = State::new();
        save_tensors(self.weights.keys().map(String::as_str).zip(&arrays), "model", &mut state);
        let saved = Checkpoints::open(folder, group).and_then(|mut all| all.save(step, state));
        saved.map_err(|error| error.to_string())
    }

    fn load(&mut self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String> {
        let found = Checkpoints::open(folder, group).and_then(|mut all| all.load(step));
        let found = found.map_err(|error| error.to_string())?;
        if HARM == NOTHING_SENT {
            return Ok(());
        }
        for (name, values) in &mut self.weights {
            *values = found.read(&format!("model.{name}")).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

type Right = Arrays<0>;
type RightlyDealt = Dealt<0>;
type RightlyAveraged = Averaged<0>;
phalanx_testkit::train_conformance!(Right, sharding: RightlyDealt, averaging: RightlyAveraged, saving: Right);

// Each is a way in which an adapter can be wrong.
const OWN_WEIGHTS: u8 = 1;
const EQUAL_SHARES: u8 = 2;
const NOTHING_SENT: u8 = 3;
const ZEROS_FOR_NONE: u8 = 4;
const KEPT_IS_LOST: u8 = 5;

#[test]
fn every_kind_of_harm_is_noticed() {
    let noticed = |test: fn(&World), what: &str| {
        let outcome = catch_unwind(AssertUnwindSafe(|| test(&World::thread())));
        assert!(outcome.is_err(), "{what} is not noticed");
    };
    noticed(equality::ranks_begin_with_the_weights_of_rank_0::<Arrays<OWN_WEIGHTS>>, "own weights");
    noticed(refusals::another_network_is_refused_by_name::<Arrays<OWN_WEIGHTS>>, "another network");
    noticed(batches::uneven_batches_count_by_their_samples::<Arrays<EQUAL_SHARES>>, "equal shares");
    noticed(batches::a_rank_without_samples_takes_part::<Arrays<EQUAL_SHARES>>, "a rank that counts");
    noticed(refusals::shares_that_make_no_batch_are_refused::<Arrays<EQUAL_SHARES>>, "wrong shares");
    noticed(whole::gradients_are_those_of_all_batches_together::<Arrays<NOTHING_SENT>>, "own gradients");
    noticed(whole::fifty_steps_are_those_of_one_process::<Arrays<NOTHING_SENT>>, "own training");
    noticed(equality::buckets_of_any_size_give_the_same_bits::<Arrays<NOTHING_SENT>>, "other bits");
    noticed(batches::a_weight_that_no_rank_uses_has_no_gradient::<Arrays<ZEROS_FOR_NONE>>, "zeros");
    noticed(batches::kept_gradients_are_added_up::<Arrays<KEPT_IS_LOST>>, "lost gradients");
    noticed(sharding::ranks_begin_with_the_weights_of_rank_0::<Dealt<OWN_WEIGHTS>>, "own weights of ZeRO");
    noticed(sharding::batches_count_by_their_samples::<Dealt<EQUAL_SHARES>>, "equal shares of ZeRO");
    noticed(sharding::weights_are_those_of_one_process::<Dealt<NOTHING_SENT>>, "own steps of ZeRO");
    noticed(averaging::ranks_begin_with_the_weights_of_rank_0::<Averaged<OWN_WEIGHTS>>, "own outer weights");
    noticed(averaging::weights_are_means_of_what_ranks_have_trained::<Averaged<NOTHING_SENT>>, "no mean");
    noticed(saving::any_number_of_ranks_goes_on_where_others_have_stopped::<Arrays<NOTHING_SENT>>, "no load");
}
