//! Jobs over several hosts: a launcher on each. That of node rank 0 leads, and has one [supervisor](crate::supervise) for all ranks; the
//! others are its agents: hands that start processes, pass on signals and output, and say how processes end.
//!
//! - **`protocol`**: what they say to each other.
//! - **`agent`**, with **`tasks`** and **`feed`**: an agent, its processes, and their output on its way to the leader.
//! - **`ssh`** and **`letter`**: agents that the leader starts itself.
//! - **`leader`**, with **`reception`** and **`remote`**: the leader, its end of the sessions, and processes elsewhere as it has them.

mod address;
pub(crate) mod agent;
mod feed;
pub(crate) mod leader;
pub(crate) mod letter;
pub(crate) mod limits;
pub(crate) mod node;
pub(crate) mod protocol;
pub(crate) mod reception;
pub(crate) mod remote;
pub(crate) mod ssh;
mod tasks;
