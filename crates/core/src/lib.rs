//! The vocabulary of phalanx: what every other crate agrees on.
//!
//! Ranks are plain `usize` values in `0..world_size`; lengths are in elements unless a name says bytes.
//! Here are the element types ([`Element`], [`DType`]), the reduce operators ([`ReduceOp`]), who owns which part of a
//! buffer ([`chunk`]), time limits as values ([`Deadline`]), what one call of a collective looks like to its
//! peers ([`Signature`]) and in which [`Method`] they perform it, how ranks may share memory ([`Staging`], [`LibraryCopy`]), why a group failed
//! ([`Cause`]) and the one error type ([`Error`]).
//!
//! Deliberately absent: sockets, threads, files, environment variables, and `unsafe`.
//!
//! ```
//! use phalanx_core::{DType, Element, ReduceOp, chunk};
//! assert_eq!(f32::DTYPE, DType::F32);
//! assert!(ReduceOp::BitAnd.supports(DType::U8) && !ReduceOp::BitAnd.supports(DType::F32));
//! assert_eq!(chunk(1, 3, 10), 3..6); // rank 1 of 3 owns these of 10 elements
//! ```

mod cause;
mod cause_text;
mod chunk;
mod deadline;
mod dtype;
mod error;
mod library_copy;
mod method;
mod peer;
mod reduce;
mod signature;
mod staging;
mod wait;

pub use cause::{Cause, Envelope, GroupId, Loss, WORLD};
pub use chunk::{Layout, chunk};
pub use deadline::Deadline;
pub use dtype::{DType, Element};
pub use error::{Context, Error, Result};
pub use library_copy::LibraryCopy;
pub use method::Method;
pub use peer::Peer;
pub use reduce::ReduceOp;
pub use signature::{CallSite, OpKind, Signature};
pub use staging::Staging;
pub use wait::Wait;
