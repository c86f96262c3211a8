//! All tests of the adapter: one program, since each links libtorch.

mod conformance;
mod other_libraries;
mod tensors;
mod training;
