//! Performs schedules over a [`Wire`](phalanx_transport::Wire), given the time: collectives as `phalanx-algo` plans them, and point-to-point messages.
//!
//! A [`Plan`](plan::Plan) is a schedule in bytes. A [`Collective`](collective::Collective) performs one, a [`Message`](message::Message) is one
//! tagged message, a [`Batch`](batch::Batch) those that one caller waits for; all move what can be moved each time they are polled, and never wait. A short message is tried [at once](at_once) first. All operations of a group share a
//! [`Core`](core::Core). An [`Attempt`](attempt::Attempt) is an operation under the clock: it finds out what is late, gone or wrong, and lets
//! `phalanx-control` settle why the group fails.
//!
//! Deliberately absent: clocks, threads, sleep, sockets. Who drives operations, and on what it sleeps, is `phalanx-group`; a simulation drives
//! them at a time of its own.

pub mod any_peer;
pub mod at_once;
pub mod attempt;
pub mod batch;
pub mod collective;
pub mod core;
pub mod eager;
pub mod message;
pub mod message_queues;
pub mod operation;
pub mod partial;
mod patience;
pub mod plan;
mod said;
pub mod scratch;
pub mod task;
pub mod turns;
