//! Worlds in one process, oracles and conformance suites for testing multi-rank code.

pub mod conformance;
