//! Tests of the adapter for ferrotorch.

mod common;
mod conformance;
mod surface;
mod training;
