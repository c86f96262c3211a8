//! From what is remembered to what is written.

use super::format::{Entry, Frame, GroupConfig, GroupStatus, State, Trace};
use super::log::Log;
use super::log::{Call, End};
use phalanx_core::{Cause, Envelope, GroupId, OpKind, Peer, Signature};
use std::time::Duration;

/// What a rank remembers of one of its groups.
#[derive(Debug)]
pub struct GroupRecord<'g> {
    /// The group.
    pub group: GroupId,
    /// Ranks of the job, in group order.
    pub members: &'g [usize],
    /// Why it has failed, if it has.
    pub failed: Option<&'g Cause>,
    /// Its latest collectives.
    pub collectives: &'g Log,
    /// Its latest messages.
    pub messages: &'g Log,
}

/// The rank of which a trace tells.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The rank.
    pub me: Peer,
    /// Ranks of its job.
    pub world_size: usize,
    /// How long its operations may take.
    pub timeout: Duration,
}

/// When a trace is made, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// By the clock of the logs.
    pub at: u64,
    /// What to add to times of that clock to get times since 1970.
    pub epoch: u64,
}

/// All that a rank remembers of `groups`; `first` is what the arbiter said first of any group.
pub fn snapshot(
    of: &Recorded,
    now: Now,
    groups: &[GroupRecord<'_>],
    first: Option<&Cause>,
    reason: &str,
) -> Trace {
    let Recorded { me, world_size, timeout } = of;
    let (epoch, world_size, timeout) = (now.epoch, *world_size, *timeout);
    let mut trace = Trace {
        version: "2.10".to_owned(),
        comm_lib_version: concat!("phalanx ", env!("CARGO_PKG_VERSION")).to_owned(),
        rank: me.rank,
        world_size,
        host: me.host.clone(),
        reason: reason.to_owned(),
        time_dumped_ns: epoch + now.at,
        first_cause: first_cause(groups, first).map(ToString::to_string),
        pg_config: Default::default(),
        pg_status: Default::default(),
        entries: Vec::new(),
    };
    for (id, record) in groups.iter().enumerate() {
        let members = record.members;
        let name = record.group.to_string();
        let desc = format!("{} of {} ranks", members.len(), world_size);
        let of_job = trace.rank;
        let rank = members.iter().position(|&member| member == of_job).unwrap_or(0);
        let group = Group { id, name, desc, of_job, rank, world_size: members.len(), epoch, timeout };
        let failed = record.failed;
        let collectives = record.collectives.calls();
        trace.pg_status.insert(group.name.clone(), status(&collectives, failed, members));
        let all = collectives.into_iter().chain(record.messages.calls());
        trace.entries.extend(all.map(|(call, end)| group.entry(call, end, failed.is_some())));
        let config = GroupConfig { name: group.name.clone(), desc: group.desc, ranks: members.to_vec() };
        trace.pg_config.insert(group.name, config);
    }
    trace.entries.sort_by_key(|entry| entry.time_created_ns);
    trace.entries.iter_mut().zip(0..).for_each(|(entry, id)| entry.record_id = id);
    trace
}

/// What went wrong first: what the arbiter said, or, where nothing was heard of it, what this rank believes of one of its groups.
fn first_cause<'a>(groups: &'a [GroupRecord<'_>], told: Option<&'a Cause>) -> Option<&'a Cause> {
    told.or_else(|| groups.iter().find_map(|record| record.failed))
}

fn status(collectives: &[(Call, End)], failed: Option<&Cause>, members: &[usize]) -> GroupStatus {
    let last = |which: fn(End) -> bool| {
        collectives.iter().rev().find(|(_, end)| which(*end)).map_or(0, |(call, _)| call.number)
    };
    let (missing, missing_at) = match failed {
        // Of a message only its other end is known, and that has no place among the collectives.
        Some(Cause::TimedOut { missing, seq: seq @ 1.., .. }) => {
            (missing.iter().map(|peer| peer.rank).collect(), Some(*seq))
        }
        // Without rank 0 those groups fail, too, in which nobody waits for it.
        Some(Cause::Lost { peer, .. }) if members.contains(&peer.rank) => (vec![peer.rank], None),
        _ => (Vec::new(), None),
    };
    GroupStatus {
        last_enqueued_collective: last(|_| true),
        last_started_collective: last(|end| end != End::NotBegun),
        last_completed_collective: last(|end| matches!(end, End::At(_))),
        failed: failed.map(ToString::to_string),
        missing,
        missing_at,
    }
}

/// What the entries of a group have in common.
struct Group {
    id: usize,
    name: String,
    desc: String,
    /// This rank in the job …
    of_job: usize,
    /// … and in the group.
    rank: usize,
    world_size: usize,
    epoch: u64,
    timeout: Duration,
}

impl Group {
    fn entry(&self, call: Call, end: End, group_has_failed: bool) -> Entry {
        let Call { number, signature, with, called, begun } = call;
        let (state, ended) = match end {
            End::NotBegun => (State::Scheduled, None),
            End::NotYet if group_has_failed => (State::Failed, None),
            End::NotYet => (State::Started, None),
            End::InVain => (State::Failed, None),
            End::At(at) => (State::Completed, Some(at)),
        };
        let (input, output) = sizes(&signature, self.world_size, self.rank);
        let dtypes =
            |sizes: &[Vec<u64>]| sizes.iter().filter_map(|_| Some(signature.dtype?.to_string())).collect();
        let op = signature.op;
        Entry {
            record_id: 0,
            pg_id: self.id,
            process_group: (self.name.clone(), self.desc.clone()),
            collective_seq_id: if with.is_none() { number } else { 0 },
            p2p_seq_id: if with.is_some() { number } else { 0 },
            op_id: number,
            profiling_name: match with {
                Some(Envelope { peer: Some(peer), .. }) if matches!(op, OpKind::Recv | OpKind::RecvAny) => {
                    format!("phalanx:{op} {}<-{peer}", self.of_job)
                }
                Some(Envelope { peer: Some(peer), .. }) => format!("phalanx:{op} {}->{peer}", self.of_job),
                Some(Envelope { peer: None, .. }) => format!("phalanx:{op} {}<-any", self.of_job),
                None => format!("phalanx:{op}"),
            },
            time_created_ns: self.epoch + called,
            time_discovered_started_ns: (end != End::NotBegun).then_some(self.epoch + begun),
            time_discovered_completed_ns: ended.map(|at| self.epoch + at),
            duration_ms: ended.map(|at| (at - begun) as f64 / 1e6),
            input_dtypes: dtypes(&input),
            input_sizes: input,
            output_dtypes: dtypes(&output),
            output_sizes: output,
            state,
            timeout_ms: self.timeout.as_millis() as u64,
            is_p2p: with.is_some(),
            retired: matches!(end, End::InVain | End::At(_)),
            frames: vec![Frame {
                name: op.to_string(),
                filename: signature.site.file.clone().into_owned(),
                line: signature.site.line,
            }],
            tag: with.map(|with| with.tag),
            signature,
        }
    }
}

/// How many elements go in and come out at this rank, where the call says so.
fn sizes(signature: &Signature, world_size: usize, rank: usize) -> (Vec<Vec<u64>>, Vec<Vec<u64>>) {
    let is_root = signature.root.is_none_or(|root| root as usize == rank);
    let whole = vec![vec![signature.count]];
    // Where ranks have unlike shares, only the sum of these is known here.
    let share =
        if signature.detail == 0 { vec![vec![signature.count / world_size as u64]] } else { Vec::new() };
    let of_root = |sizes: &Vec<Vec<u64>>| if is_root { sizes.clone() } else { Vec::new() };
    match signature.op {
        OpKind::AllReduce => (whole.clone(), whole),
        OpKind::Broadcast => (of_root(&whole), whole),
        OpKind::Reduce => (whole.clone(), of_root(&whole)),
        OpKind::AllGather | OpKind::Split => (share, whole),
        OpKind::ReduceScatter => (whole, share),
        OpKind::Gather => (share, of_root(&whole)),
        OpKind::Scatter => (of_root(&whole), share),
        OpKind::AllToAll if signature.detail == 0 => (whole.clone(), whole),
        OpKind::Send => (whole, Vec::new()),
        OpKind::Recv | OpKind::RecvAny => (Vec::new(), whole),
        _ => (Vec::new(), Vec::new()),
    }
}
