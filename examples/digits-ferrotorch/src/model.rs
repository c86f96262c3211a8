//! The network: two convolutions and a linear layer, 6,090 weights.

use examples_common::digits::images::{Images, SIDE};
use examples_common::digits::start::{self, Weight};
use ferrotorch_core::grad_fns::activation::relu;
use ferrotorch_core::{FerrotorchResult, Tensor, creation};
use ferrotorch_nn::{Conv2d, CrossEntropyLoss, Flatten, Linear, MaxPool2d, Module, Parameter, Reduction};
use std::collections::HashMap;

/// A small convolutional network for 8 × 8 images of ten kinds, which computes in f64.
pub(crate) struct Cnn {
    near: Conv2d<f64>,
    far: Conv2d<f64>,
    pool: MaxPool2d,
    flatten: Flatten,
    classes: Linear<f64>,
}

impl Cnn {
    /// With the weights with which all programs of the digits begin.
    pub(crate) fn new(seed: u64) -> FerrotorchResult<Self> {
        let tensor = |Weight { name, dims, values }| Ok((name, creation::from_slice(&values, &dims)?));
        let weights: FerrotorchResult<HashMap<&str, Tensor<f64>>> =
            start::weights(seed).into_iter().map(tensor).collect();
        let weights = weights?;
        let conv = |weight: &str, bias: &str| {
            Conv2d::from_parts(weights[weight].clone(), Some(weights[bias].clone()), (1, 1), (1, 1))
        };
        let mut classes = Linear::new(2 * 2 * 32, 10, true)?;
        classes.weight = Parameter::new(weights["classes.weight"].clone());
        classes.bias = Some(Parameter::new(weights["classes.bias"].clone()));
        Ok(Self {
            near: conv("near.weight", "near.bias")?,
            far: conv("far.weight", "far.bias")?,
            pool: MaxPool2d::new([2, 2], [2, 2], [0, 0]),
            flatten: Flatten::default(),
            classes,
        })
    }

    fn layers(&self) -> [(&'static str, &dyn Module<f64>); 3] {
        [("near", &self.near), ("far", &self.far), ("classes", &self.classes)]
    }
}

impl Module<f64> for Cnn {
    /// `[n, 1, 8, 8]` to `[n, 10]`.
    fn forward(&self, images: &Tensor<f64>) -> FerrotorchResult<Tensor<f64>> {
        let near = self.pool.forward(&relu(&self.near.forward(images)?)?)?;
        let far = self.pool.forward(&relu(&self.far.forward(&near)?)?)?;
        self.classes.forward(&self.flatten.forward(&far)?)
    }

    fn parameters(&self) -> Vec<&Parameter<f64>> {
        self.layers().into_iter().flat_map(|(_, layer)| layer.parameters()).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter<f64>> {
        let Self { near, far, classes, .. } = self;
        let layers: [&mut dyn Module<f64>; 3] = [near, far, classes];
        layers.into_iter().flat_map(|layer| layer.parameters_mut()).collect()
    }

    fn named_parameters(&self) -> Vec<(String, &Parameter<f64>)> {
        let mut all = Vec::new();
        for (layer, module) in self.layers() {
            let named = module.named_parameters().into_iter();
            all.extend(named.map(|(name, parameter)| (format!("{layer}.{name}"), parameter)));
        }
        all
    }

    fn train(&mut self) {}

    fn eval(&mut self) {}

    fn is_training(&self) -> bool {
        true
    }
}

/// The images at `indices`, `[n, 1, 8, 8]`, and what they show, `[n]`, as ferrotorch's losses take it.
pub(crate) fn batch(images: &Images, indices: &[usize]) -> FerrotorchResult<(Tensor<f64>, Tensor<f64>)> {
    let (pixels, labels) = images.at(indices);
    let labels: Vec<f64> = labels.into_iter().map(f64::from).collect();
    let n = indices.len();
    Ok((creation::from_slice(&pixels, &[n, 1, SIDE, SIDE])?, creation::from_slice(&labels, &[n])?))
}

/// Mean cross entropy over a batch.
pub(crate) fn loss(logits: &Tensor<f64>, labels: &Tensor<f64>) -> FerrotorchResult<Tensor<f64>> {
    CrossEntropyLoss::new(Reduction::Mean, 0.0).forward(logits, labels)
}

/// How many images of a batch are recognised.
pub(crate) fn right(logits: &Tensor<f64>, labels: &Tensor<f64>) -> FerrotorchResult<usize> {
    let (logits, labels) = (logits.data_vec()?, labels.data_vec()?);
    let best = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let found = logits.chunks_exact(10).map(best);
    Ok(found.zip(labels).filter(|(found, label)| found.is_some_and(|found| found as f64 == *label)).count())
}
