//! The largest of each window.

use super::operation::{is_ours, read_both, tensor};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

/// The largest number of each square window, side by side: [`Tensor::max_pool2d`] in one pass forward and one backward.
///
/// The gradient goes to the first of those that are equal, as in PyTorch; candle deals it out to all.
///
/// # Shape
/// `[n, channels, height, width]` in, `[n, channels, height / size, width / size]` out.
///
/// # Errors
/// Those of candle, and for windows of size zero.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[[[[1f32, 2.0, 5.0], [4.0, 3.0, 6.0]]]], &Device::Cpu)?;
/// let y = phalanx_candle::layers::max_pool2d(&x, 2)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [4.0]); // a column that fills no window is left out
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn max_pool2d(x: &Tensor, size: usize) -> Result<Tensor> {
    if size == 0 {
        bail!("windows of size 0 have no largest number")
    }
    if is_ours(x) && x.rank() == 4 { x.contiguous()?.apply_op1(Pool { size }) } else { x.max_pool2d(size) }
}

struct Pool {
    size: usize,
}

impl Pool {
    /// Passes on, for each window in order, where the first of its largest numbers is, and this.
    #[inline]
    fn for_each(&self, dims: &[usize], numbers: &[f32], mut work: impl FnMut(usize, f32)) {
        let (height, width) = (dims[2], dims[3]);
        for image in 0..dims[0] * dims[1] {
            for row in 0..height / self.size {
                for column in 0..width / self.size {
                    let corner = (image * height + row * self.size) * width + column * self.size;
                    let (mut best, mut most) = (corner, numbers[corner]);
                    for line in 0..self.size {
                        let start = corner + line * width;
                        for (at, &x) in numbers[start..start + self.size].iter().enumerate() {
                            // Without a branch: which is the largest can't be foreseen.
                            let is_larger = x > most;
                            best = if is_larger { start + at } else { best };
                            most = if is_larger { x } else { most };
                        }
                    }
                    work(best, most);
                }
            }
        }
    }
}

impl CustomOp1 for Pool {
    fn name(&self) -> &'static str {
        "phalanx-max-pool2d"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("pooling takes numbers in row-major order")
        };
        let numbers = &storage.as_slice::<f32>()?[start..end];
        let dims = layout.dims();
        let dims_after = vec![dims[0], dims[1], dims[2] / self.size, dims[3] / self.size];
        let mut outcome = Vec::with_capacity(dims_after.iter().product());
        self.for_each(dims, numbers, |_, most| outcome.push(most));
        Ok((CpuStorage::F32(outcome), Shape::from(dims_after)))
    }

    fn bwd(&self, x: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grads = read_both(x, grad, |numbers, grad| {
            let mut grads = vec![0f32; numbers.len()];
            let mut grad = grad.iter();
            self.for_each(x.dims(), numbers, |at, _| grads[at] = *grad.next().unwrap_or(&0.0));
            grads
        })?;
        Ok(Some(tensor(grads, x.shape())?))
    }
}
