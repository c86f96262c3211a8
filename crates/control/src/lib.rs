//! The control plane of a job: who is here, who is lost, and what went wrong first.
//!
//! Every rank keeps one line to the [`Arbiter`](arbiter::Arbiter) on rank 0. Whoever notices trouble reports it and believes the
//! arbiter's verdict instead of its own eyes: all verdicts reach all ranks in one order, so all ranks name the
//! same first cause, even when failing ranks bring down others. On lines between processes both ends send
//! [beats](heartbeat), so that who is stopped or cut off is found as well.
//!
//! A rank has a [`Membership`](membership::Membership): all that it has heard. Each of its groups has a
//! [`GroupHealth`](group_health::GroupHealth): whether the group has failed, why, and how errors say so. A backend that notices trouble calls
//! [`fail`](group_health::GroupHealth::fail), and returns the error that it gets; one that drives operations by polling calls
//! [`accuse`](group_health::GroupHealth::accuse), and [`verdict`](group_health::GroupHealth::verdict) until that is known.
//!
//! Deliberately absent: sockets, threads, a clock. Lines carry [`Notice`](notice::Notice) and [`Verdict`](notice::Verdict) as somebody else sees
//! fit, and the time and sleep come from a [`Runtime`](runtime::Runtime).
//!
//! # Examples
//! Two ranks see two faults at once, and are told of one:
//! ```
//! use phalanx_control::arbiter::Arbiter;
//! use phalanx_control::notice::{Notice, Verdict};
//! use phalanx_core::{Cause, Peer, WORLD};
//!
//! let mut arbiter = Arbiter::new(2, None);
//! for rank in 0..2 {
//!     let addr = ([127, 0, 0, 1], 1).into();
//!     arbiter.handle(rank, Notice::Join { host: format!("h{rank}"), addr, local: None, settings: String::new() });
//! }
//! let sees = |rank: usize, reason: &str| {
//!     let peer = Peer { rank, host: format!("h{rank}") };
//!     let cause = Cause::Aborted { peer, reason: reason.into() };
//!     Notice::Failed { group: WORLD, members: vec![0, 1], cause }
//! };
//! let mail = arbiter.handle(1, sees(1, "no data left"));
//! assert!(arbiter.handle(0, sees(0, "rank 1 sends nothing")).is_empty(), "what comes second is no news");
//! for (_, verdict) in mail {
//!     let Verdict::Group { cause, .. } = verdict else { panic!("{verdict:?}") };
//!     assert_eq!(cause.to_string(), "rank 1 (h1) aborted the group: no data left");
//! }
//! ```

pub mod address_book;
pub mod arbiter;
pub mod changes;
pub mod client;
#[doc(hidden)]
pub mod error_state;
pub mod failure_latch;
#[doc(hidden)]
pub mod failure_report;
pub mod group_health;
pub mod heartbeat;
pub mod job_context;
pub mod launcher_link;
#[doc(hidden)]
pub mod limits;
mod line;
mod lock;
mod member;
pub mod membership;
pub mod notice;
pub mod outage;
#[doc(hidden)]
pub mod reminder;
pub mod runtime;
#[doc(hidden)]
pub mod settings_agreement;
#[doc(hidden)]
pub mod wait_graph;

pub use line::Control;
