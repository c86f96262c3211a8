//! The images as candle's tensors.

use crate::model::DTYPE;
use candle_core::{Device, Tensor};
use examples_common::digits::images::{self, Images, SIDE};

/// Images and what they show.
#[derive(Debug)]
pub struct Digits(Images);

/// The images to train on, and those held out.
///
/// # Errors
/// If the file within the program is damaged.
pub fn load() -> anyhow::Result<(Digits, Digits)> {
    let (train, test) = images::load()?;
    Ok((Digits(train), Digits(test)))
}

impl Digits {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The images at `indices`, `[n, 1, 8, 8]`, and what they show, `[n]`.
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    pub fn batch(&self, indices: &[usize]) -> candle_core::Result<(Tensor, Tensor)> {
        let (pixels, labels) = self.0.at(indices);
        let images = Tensor::from_vec(pixels, (indices.len(), 1, SIDE, SIDE), &Device::Cpu)?;
        Ok((images.to_dtype(DTYPE)?, Tensor::from_vec(labels, indices.len(), &Device::Cpu)?))
    }

    /// All images and what they show, as [`batch`](Self::batch).
    ///
    /// # Errors
    /// Those of candle.
    pub fn all(&self) -> candle_core::Result<(Tensor, Tensor)> {
        self.batch(&Vec::from_iter(0..self.len()))
    }
}
