//! The lowest layer: types of C, and tables of functions found at run time. Nothing here is checked.

mod table;

pub(crate) mod cuda;
pub(crate) mod nccl;

pub(crate) use table::{Optional, table};
