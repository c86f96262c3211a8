//! What is written: one document a rank. The names are those of c10d's flight recorder, version 2.10, and a few of our own.

use phalanx_core::Signature;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one rank remembers of all its groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Of c10d's format, whose names these are.
    pub version: String,
    /// `phalanx` and its version.
    pub comm_lib_version: String,
    /// The rank of the job that wrote it …
    pub rank: usize,
    /// … of so many …
    pub world_size: usize,
    /// … here: `host:pid`.
    pub host: String,
    /// Why it was written.
    pub reason: String,
    /// When it was written, since 1970 as all times.
    pub time_dumped_ns: u64,
    /// Ours: what went wrong first in the job, as the arbiter told this rank, or as it saw it; `None` while nothing has.
    #[serde(default)]
    pub first_cause: Option<String>,
    /// The groups by name.
    pub pg_config: BTreeMap<String, GroupConfig>,
    /// How far each has come.
    pub pg_status: BTreeMap<String, GroupStatus>,
    /// The latest operations, in the order in which they began.
    pub entries: Vec<Entry>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// `world`, or the name that a split gave it; the same on all members.
    pub name: String,
    /// The ranks that have it, in words.
    pub desc: String,
    /// The members as ranks of the job, in group order.
    pub ranks: Vec<usize>,
}

/// How far a group has come on this rank. Collectives count from 1; 0 for none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The last collective that was called.
    pub last_enqueued_collective: u64,
    /// The last that was begun.
    pub last_started_collective: u64,
    /// The last that ended well.
    pub last_completed_collective: u64,
    /// What went wrong first, if the group has failed.
    pub failed: Option<String>,
    /// Ranks of the job that had not come to the last collective, or are lost, as far as is known here.
    pub missing: Vec<usize>,
    /// The collective to which those had not come; `None` for lost ranks, which come to none.
    #[serde(default)]
    pub missing_at: Option<u64>,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place in this document.
    pub record_id: u64,
    /// The group, as a place among the groups of this document …
    pub pg_id: usize,
    /// … and by name and description.
    pub process_group: (String, String),
    /// Its place among the group's collectives; 0 for a message.
    pub collective_seq_id: u64,
    /// Its place among this rank's messages; 0 for a collective.
    pub p2p_seq_id: u64,
    /// That of both which is not 0.
    pub op_id: u64,
    /// `phalanx:all_reduce`, `phalanx:send 0->1`, `phalanx:recv 1<-0`, `phalanx:recv_any 1<-any` until a message has come; the numbers are ranks of the job.
    pub profiling_name: String,
    /// When it was called.
    pub time_created_ns: u64,
    /// When it began.
    pub time_discovered_started_ns: Option<u64>,
    /// When it ended, whether well or not, if that is known.
    pub time_discovered_completed_ns: Option<u64>,
    /// Between the two.
    pub duration_ms: Option<f64>,
    /// Elements this rank puts in; empty where that is none, or the call alone does not say.
    pub input_sizes: Vec<Vec<u64>>,
    /// Their type.
    pub input_dtypes: Vec<String>,
    /// Elements it gets out, as for `input_sizes`.
    pub output_sizes: Vec<Vec<u64>>,
    /// Their type.
    pub output_dtypes: Vec<String>,
    /// How far it has come.
    pub state: State,
    /// How long it may take.
    pub timeout_ms: u64,
    /// Whether it is a message.
    pub is_p2p: bool,
    /// Whether nobody waits for it any more.
    pub retired: bool,
    /// Where the program called it.
    pub frames: Vec<Frame>,
    /// Ours: all on which the members have to agree, and the call site.
    pub signature: Signature,
    /// Ours: the tag of a message.
    pub tag: Option<u64>,
}

/// How far an operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for its turn.
    Scheduled,
    /// It runs.
    Started,
    /// It ended well.
    Completed,
    /// Ours: it ended in an error, or will, for its group has failed.
    Failed,
}

/// A place in the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The method that was called.
    pub name: String,
    /// Source file.
    pub filename: String,
    /// Line in it.
    pub line: u32,
}
