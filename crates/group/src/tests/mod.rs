//! What only a look from inside can show: links that lie, ranks that differ, what goes over the wire.

mod bad_links;
pub(crate) mod corrupting;
mod other_build;
#[cfg(target_os = "linux")]
mod other_method;
#[cfg(target_os = "linux")]
mod requests;
mod traces;
mod wiretap;
