//! The process group that users hold, its operations, and the traits of those who perform them.

mod asynchronous;
mod asynchronous_blocks;
mod asynchronous_coalesced;
pub(crate) mod backend;
mod barrier;
pub(crate) mod call;
mod coalesced;
mod collectives;
pub(crate) mod derived;
pub(crate) mod encryption;
mod external_engine;
pub(crate) mod handles;
pub(crate) mod memory;
pub(crate) mod message_batch;
pub(crate) mod new_group;
pub(crate) mod objects;
pub(crate) mod owner_process;
pub(crate) mod pending;
pub(crate) mod perform;
mod point_to_point;
pub(crate) mod pre_mul_sum;
pub(crate) mod process_group;
pub(crate) mod registered_buffer;
pub(crate) mod request;
mod shrink_and_rejoin;
pub(crate) mod split;
pub(crate) mod work;
