//! Optimizers: their arithmetic on slices, and what they remember of a model's weights.

mod adamw;
mod adamw_step;
mod alike;
mod sgd;
mod sgd_step;
mod slots;

pub use adamw::AdamW;
pub use adamw_step::{AdamWParams, AdamWStep};
pub use sgd::Sgd;
pub use sgd_step::{SgdParams, SgdStep};
