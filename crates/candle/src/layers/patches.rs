//! Images as matrices of patches, so that a convolution is a product of matrices.

use candle_nn::Conv2dConfig;
use std::ops::Range;

/// The sizes of one convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patches {
    pub(super) channels: usize,
    /// Height and width.
    pub(super) image: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) outcome: [usize; 2],
    padding: usize,
    stride: usize,
    dilation: usize,
}

impl Patches {
    /// `None` if the kernel is larger than the image.
    pub(super) fn new(
        channels: usize,
        image: [usize; 2],
        kernel: [usize; 2],
        config: &Conv2dConfig,
    ) -> Option<Self> {
        let Conv2dConfig { padding, stride, dilation, .. } = *config;
        let mut outcome = [0; 2];
        for (at, outcome) in outcome.iter_mut().enumerate() {
            let reach = dilation * kernel[at].checked_sub(1)? + 1;
            *outcome = (image[at] + 2 * padding).checked_sub(reach)? / stride + 1;
        }
        Some(Self { channels, image, kernel, outcome, padding, stride, dilation })
    }

    /// Numbers of a patch.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Patches of an image.
    pub(super) fn count(&self) -> usize {
        self.outcome[0] * self.outcome[1]
    }

    /// Numbers of an image.
    pub(super) fn numbers(&self) -> usize {
        self.channels * self.image[0] * self.image[1]
    }

    /// Where a patch's number `of` is in a dimension of the image, for the patch at `at`; `None` in the padding.
    fn place(&self, dimension: usize, at: usize, of: usize) -> Option<usize> {
        let place = (at * self.stride + of * self.dilation).checked_sub(self.padding)?;
        (place < self.image[dimension]).then_some(place)
    }

    /// The patches of a row whose number `of` lies within the image, and where the first's does.
    fn within(&self, of: usize) -> (Range<usize>, usize) {
        let shift = of * self.dilation;
        let first = self.padding.saturating_sub(shift).div_ceil(self.stride).min(self.outcome[1]);
        let end = (self.image[1] + self.padding).saturating_sub(shift).div_ceil(self.stride);
        let end = end.clamp(first, self.outcome[1]);
        (first..end, (first * self.stride + shift).saturating_sub(self.padding))
    }

    /// The patches of an image, one a column.
    pub(super) fn take(&self, image: &[f32]) -> Vec<f32> {
        let mut patches = Vec::with_capacity(self.depth() * self.count());
        self.for_each_run(|row, run| {
            let Some((within, from)) = run else { return patches.resize(row.end, 0.0) };
            patches.resize(row.start + within.start, 0.0);
            match self.stride {
                1 => patches.extend_from_slice(&image[from..from + within.len()]),
                stride => patches.extend(image[from..].iter().step_by(stride).take(within.len())),
            }
            patches.resize(row.end, 0.0);
        });
        patches
    }

    /// Adds what belongs to each number of the image to it.
    pub(super) fn add(&self, patches: &[f32], image: &mut [f32]) {
        self.for_each_run(|row, run| {
            let Some((within, from)) = run else { return };
            let source = &patches[row.start + within.start..row.start + within.end];
            match self.stride {
                1 => image[from..from + source.len()].iter_mut().zip(source).for_each(|(y, x)| *y += x),
                stride => {
                    image[from..].iter_mut().step_by(stride).zip(source).for_each(|(y, x)| *y += x);
                }
            }
        });
    }

    /// Passes on each run of numbers that belong to one row of outcomes: where it is among the patches, which of it lies within the image, and where its first is
    /// there.
    fn for_each_run(&self, mut work: impl FnMut(Range<usize>, Option<(Range<usize>, usize)>)) {
        let ([height, width], [rows, columns]) = (self.image, self.outcome);
        let mut start = 0;
        for channel in 0..self.channels {
            for of_row in 0..self.kernel[0] {
                for of_column in 0..self.kernel[1] {
                    let (within, first) = self.within(of_column);
                    for at in 0..rows {
                        let place = self.place(0, at, of_row).filter(|_| !within.is_empty());
                        let run = place.map(|row| (within.clone(), (channel * height + row) * width + first));
                        work(start..start + columns, run);
                        start += columns;
                    }
                }
            }
        }
    }
}
