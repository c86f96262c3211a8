//! How ranks find each other.
//!
//! A [`Store`] is a small key-value table that all processes of a job see: in one process ([`MemoryStore`]), in a
//! directory they share ([`FileStore`]), or in a server that the launcher or rank 0 runs ([`TcpStoreServer`],
//! [`TcpStore`]). [`PrefixStore`] gives each user of a store a corner of its own. [`Config`] reads from the environment who
//! this process is and where its store is, and [`Config::open_store`] opens it.
//!
//! Deliberately absent: what the ranks tell each other once they have met; membership; bulk data.
//!
//! ```
//! use phalanx_core::Deadline;
//! use phalanx_rendezvous::{MemoryStore, Store};
//! use std::time::{Duration, Instant};
//!
//! let store = MemoryStore::new();
//! std::thread::scope(|ranks| -> phalanx_core::Result<()> {
//!     ranks.spawn(|| store.set("address of rank 0", b"10.0.0.7:41234"));
//!     // Rank 1 waits until it is there.
//!     let address = store.get("address of rank 0", &Deadline::after(Instant::now(), Duration::from_secs(10)))?;
//!     assert_eq!(address, b"10.0.0.7:41234");
//!     Ok(())
//! })?;
//! # Ok::<(), phalanx_core::Error>(())
//! ```

mod channel;
mod client;
mod elastic;
mod env;
#[cfg(unix)]
mod file;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod heard;
pub mod lifeline;
mod location;
mod meet;
mod meeting;
mod memory;
mod open;
mod other_launchers;
mod own_hosts;
mod prefix;
mod protocol;
mod secret_file;
mod server;
mod shared_file;
mod slurm;
mod step_secret;
mod store;
mod table;
mod this_host;
mod time_limits;
mod workers;

pub use channel::{Channel, OwnChannel};
pub use client::TcpStore;
pub use elastic::Elastic;
pub use env::{Config, Source, TRACE_LEN, secret_of_environment};
#[cfg(unix)]
pub use file::FileStore;
pub use lifeline::{Lifeline, LifelineServer};
pub use location::StoreLocation;
pub use memory::MemoryStore;
pub use open::OpenStore;
pub use other_launchers::{Asking, refuse_foreign_job};
pub use own_hosts::{host_name, own_hosts};
pub use prefix::PrefixStore;
pub use secret_file::read_secret;
pub use server::TcpStoreServer;
pub use shared_file::SharedFile;
pub use step_secret::StepSecret;
pub use store::{KEY_LEN_MAX, Store, VALUE_LEN_MAX};
pub use this_host::ThisHost;
pub use time_limits::TimeLimits;
pub use workers::Workers;
