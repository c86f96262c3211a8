//! Tests of the adapter for ferrotorch.

mod common;
mod conformance;
mod other_libraries;
mod surface;
mod training;
