//! Layers that compute what candle's do, in fewer passes over memory: for training on CPUs.
//!
//! candle's backward pass allocates for each operation, adds each gradient to a tensor of zeros, and turns the gradient of a linear layer's weights around element by
//! element. A layer of these is one operation with a backward pass of its own, made of matrix products and of loops that use the vectors of the processor.
//! Variables have candle's names, shapes and initial values: a file of one is a file of the other. The numbers are candle's but for their last digits.
//!
//! In a model that [`build`](crate::DistributedDataParallel::build) makes the gradients of weights go to the sum over the ranks as they come out of the matrix product.
//!
//! On devices, and for other types than f32, they are candle's own operations. `docs/guide/tuning.md` says what they are worth.

mod conv;
mod elementwise;
mod linear;
mod operation;
mod patches;
mod pool;
mod softmax;
mod weight;

pub use conv::{Conv2d, conv2d, conv2d_no_bias};
pub use elementwise::{gelu, relu};
pub use linear::{Linear, linear, linear_no_bias};
pub use pool::max_pool2d;
pub use softmax::softmax_last_dim;
