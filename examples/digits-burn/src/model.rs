//! The network: two convolutions and a linear layer, 6,090 weights.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use examples_common::digits::images::{Images, SIDE};
use examples_common::digits::start::{self, Weight};

/// A small convolutional network for 8 × 8 images of ten kinds.
#[derive(Module, Debug)]
pub(crate) struct Cnn {
    near: Conv2d,
    far: Conv2d,
    pool: MaxPool2d,
    classes: Linear,
}

impl Cnn {
    /// With the weights with which all programs of the digits begin.
    pub(crate) fn new(seed: u64, device: &Device) -> Self {
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        let mut model = Self {
            near: conv([1, 16]),
            far: conv([16, 32]),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            classes: LinearConfig::new(2 * 2 * 32, 10).init(device),
        };
        for weight in start::weights(seed) {
            match weight.name {
                "near.weight" => model.near.weight = param(weight, device),
                "near.bias" => model.near.bias = Some(param(weight, device)),
                "far.weight" => model.far.weight = param(weight, device),
                "far.bias" => model.far.bias = Some(param(weight, device)),
                // Burn's linear layers have their inputs first.
                "classes.weight" => {
                    model.classes.weight = Param::from_tensor(tensor(weight, device).transpose());
                }
                "classes.bias" => model.classes.bias = Some(param(weight, device)),
                other => unreachable!("the network has no {other}"),
            }
        }
        model
    }

    /// `[n, 1, 8, 8]` to `[n, 10]`.
    pub(crate) fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let near = self.pool.forward(activation::relu(self.near.forward(images)));
        let far = self.pool.forward(activation::relu(self.far.forward(near)));
        self.classes.forward(far.flatten(1, 3))
    }

    /// Mean cross entropy over a batch.
    pub(crate) fn loss(&self, (images, labels): (Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
        Self::criterion(self.forward(images), labels)
    }

    pub(crate) fn criterion(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&labels.device()).forward(logits, labels)
    }

    /// How many images of a batch are recognised.
    pub(crate) fn right(&self, (images, labels): (Tensor<4>, Tensor<1, Int>)) -> i64 {
        let found = self.forward(images).argmax(1).squeeze::<1>();
        found.equal(labels).int().sum().into_scalar()
    }

    /// The weights by their places in the model.
    pub(crate) fn weights(&self) -> Vec<(String, Vec<f64>)> {
        let mut read = Read(Vec::new());
        self.visit(&mut read);
        read.0
    }
}

/// The images at `indices`, `[n, 1, 8, 8]`, and what they show, `[n]`.
pub(crate) fn batch(images: &Images, indices: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let (pixels, labels) = images.at(indices);
    let labels: Vec<i64> = labels.into_iter().map(i64::from).collect();
    let pixels = TensorData::new(pixels, [indices.len(), 1, SIDE, SIDE]);
    let labels = TensorData::new(labels, [indices.len()]);
    (Tensor::from_data(pixels, (device, DType::F64)), Tensor::from_data(labels, device))
}

fn param<const D: usize>(weight: Weight, device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(weight, device))
}

fn tensor<const D: usize>(weight: Weight, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(weight.values, weight.dims), (device, DType::F64))
}

struct Read(Vec<(String, Vec<f64>)>);

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().convert::<f64>();
        self.0.push((self.0.len().to_string(), values.try_into_vec().expect("they were converted")));
    }
}
