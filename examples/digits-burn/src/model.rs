//! The network: two convolutions and a linear layer, 6,090 weights.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use examples_common::digits::images::{Images, SIDE};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A small convolutional network for 8 × 8 images of ten kinds.
#[derive(Module, Debug)]
pub(crate) struct Cnn {
    near: Conv2d,
    far: Conv2d,
    pool: MaxPool2d,
    classes: Linear,
}

impl Cnn {
    /// With initial weights that depend on `seed` alone.
    pub(crate) fn new(seed: u64, device: &Device) -> Self {
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        let model = Self {
            near: conv([1, 16]),
            far: conv([16, 32]),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            classes: LinearConfig::new(2 * 2 * 32, 10).init(device),
        };
        model.map(&mut Initialise { random: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// `[n, 1, 8, 8]` to `[n, 10]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let near = self.pool.forward(activation::relu(self.near.forward(images)));
        let far = self.pool.forward(activation::relu(self.far.forward(near)));
        self.classes.forward(far.flatten(1, 3))
    }

    /// Mean cross entropy over a batch.
    pub(crate) fn loss(&self, (images, labels): (Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
        let criterion = CrossEntropyLossConfig::new().init(&labels.device());
        criterion.forward(self.forward(images), labels)
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
    let pixels: Vec<f32> = pixels.into_iter().map(|pixel| pixel as f32).collect();
    let labels: Vec<i64> = labels.into_iter().map(i64::from).collect();
    let pixels = TensorData::new(pixels, [indices.len(), 1, SIDE, SIDE]);
    let labels = TensorData::new(labels, [indices.len()]);
    (Tensor::from_data(pixels, device), Tensor::from_data(labels, device))
}

/// Sets weights uniformly within ±√(6 / inputs) (He et al. 2015) and biases to zero.
///
/// Burn's generator belongs to the device, which ranks that are threads have in common, so the values are drawn here.
struct Initialise {
    random: ChaCha8Rng,
}

impl ModuleMapper for Initialise {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weight| {
            // A linear layer has its inputs first, a convolution its outputs.
            let dims = weight.dims();
            let inputs: usize = if D == 2 { dims[0] } else { dims[1..].iter().product() };
            let bound = if D == 1 { 0.0 } else { (6.0 / inputs as f64).sqrt() };
            // 53 random bits make a number in [0, 1).
            let mut uniform = || (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let values =
                (0..dims.iter().product::<usize>()).map(|_| (bound * (2.0 * uniform() - 1.0)) as f32);
            let data = TensorData::new(values.collect::<Vec<_>>(), dims);
            Tensor::<D>::from_data(data, &weight.device()).require_grad()
        })
    }
}

struct Read(Vec<(String, Vec<f64>)>);

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().convert::<f64>();
        self.0.push((self.0.len().to_string(), values.try_into_vec().expect("they were converted")));
    }
}
