//! The network: two convolutions and a linear layer, 6,090 weights.

use examples_common::digits::images::{Images, SIDE};
use examples_common::digits::start::{self, Weight};
use tch::nn::{self, ConvConfig, Module, VarStore};
use tch::{Kind, Tensor};

/// A small convolutional network for 8 × 8 images of ten kinds, which computes in f64.
#[derive(Debug)]
pub(crate) struct Cnn {
    near: nn::Conv2D,
    far: nn::Conv2D,
    classes: nn::Linear,
}

impl Cnn {
    /// Builds the network in `store`, with the weights with which all programs of the digits begin.
    pub(crate) fn new(store: &mut VarStore, seed: u64) -> Self {
        let root = &store.root();
        let same_size = ConvConfig { padding: 1, ..Default::default() };
        let model = Self {
            near: nn::conv2d(root / "near", 1, 16, 3, same_size),
            far: nn::conv2d(root / "far", 16, 32, 3, same_size),
            classes: nn::linear(root / "classes", 2 * 2 * 32, 10, Default::default()),
        };
        store.double();
        let mut variables = store.variables();
        for Weight { name, values, .. } in start::weights(seed) {
            let var = variables.get_mut(name).expect("the network has what it begins with");
            let values = Tensor::from_slice(&values).view_as(var);
            tch::no_grad(|| var.copy_(&values));
        }
        model
    }

    /// Mean cross entropy over a batch.
    pub(crate) fn loss(&self, (images, labels): &(Tensor, Tensor)) -> Tensor {
        self.forward(images).cross_entropy_for_logits(labels)
    }

    /// How many images of a batch are recognised.
    pub(crate) fn right(&self, (images, labels): &(Tensor, Tensor)) -> i64 {
        self.forward(images).argmax(-1, false).eq_tensor(labels).sum(Kind::Int64).int64_value(&[])
    }
}

impl Module for Cnn {
    /// `[n, 1, 8, 8]` to `[n, 10]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        let near = self.near.forward(images).relu().max_pool2d_default(2);
        let far = self.far.forward(&near).relu().max_pool2d_default(2);
        self.classes.forward(&far.flatten(1, -1))
    }
}

/// The images at `indices`, `[n, 1, 8, 8]`, and what they show, `[n]`.
pub(crate) fn batch(images: &Images, indices: &[usize]) -> (Tensor, Tensor) {
    let (pixels, labels) = images.at(indices);
    let labels: Vec<i64> = labels.into_iter().map(i64::from).collect();
    let (n, side) = (indices.len() as i64, SIDE as i64);
    let pixels = Tensor::from_slice(&pixels).view([n, 1, side, side]);
    (pixels, Tensor::from_slice(&labels))
}
