//! From what is remembered to what is written.

use super::clock;
use super::format::{Entry, Frame, GroupConfig, GroupStatus, State, Trace};
use super::log::{Call, End};
use super::writer::Recorder;
use crate::control::watch::Alarm;
use phalanx_core::{Cause, OpKind, Signature};
use std::sync::Arc;
use std::time::Duration;

/// All that this rank remembers of `groups`; `first` is what the arbiter said first of any group.
pub(super) fn trace(
    recorder: &Recorder,
    groups: &[Arc<Alarm>],
    first: Option<&Cause>,
    reason: &str,
) -> Trace {
    let epoch = clock::since_1970();
    let mut trace = Trace {
        version: "2.10".to_owned(),
        comm_lib_version: concat!("phalanx ", env!("CARGO_PKG_VERSION")).to_owned(),
        rank: recorder.me.rank,
        world_size: recorder.world_size,
        host: recorder.me.host.clone(),
        reason: reason.to_owned(),
        time_dumped_ns: epoch + clock::precise(),
        first_cause: first_cause(groups, first).map(ToString::to_string),
        pg_config: Default::default(),
        pg_status: Default::default(),
        entries: Vec::new(),
    };
    for (id, alarm) in groups.iter().enumerate() {
        let members = alarm.members();
        let name = alarm.group().to_string();
        let desc = format!("{} of {} ranks", members.len(), recorder.world_size);
        let of_job = trace.rank;
        let rank = members.iter().position(|&member| member == of_job).unwrap_or(0);
        let group = Group {
            id,
            name,
            desc,
            of_job,
            rank,
            world_size: members.len(),
            epoch,
            timeout: recorder.timeout,
        };
        let failed = alarm.first_cause();
        let collectives = alarm.collectives.calls();
        trace.pg_status.insert(group.name.clone(), status(&collectives, failed, members));
        let all = collectives.into_iter().chain(alarm.messages.calls());
        trace.entries.extend(all.map(|(call, end)| group.entry(call, end, failed.is_some())));
        let config = GroupConfig { name: group.name.clone(), desc: group.desc, ranks: members.to_vec() };
        trace.pg_config.insert(group.name, config);
    }
    trace.entries.sort_by_key(|entry| entry.time_created_ns);
    trace.entries.iter_mut().zip(0..).for_each(|(entry, id)| entry.record_id = id);
    trace
}

/// What went wrong first: what the arbiter said, or, where nothing was heard of it, what this rank believes of one of its groups.
fn first_cause<'a>(groups: &'a [Arc<Alarm>], told: Option<&'a Cause>) -> Option<&'a Cause> {
    told.or_else(|| groups.iter().find_map(|alarm| alarm.first_cause()))
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
                Some((peer, _)) if op == OpKind::Recv => format!("phalanx:recv {}<-{peer}", self.of_job),
                Some((peer, _)) => format!("phalanx:{op} {}->{peer}", self.of_job),
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
            tag: with.map(|(_, tag)| tag),
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
        OpKind::Recv => (Vec::new(), whole),
        _ => (Vec::new(), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use crate::control::notice::Verdict;
    use crate::control::watch::Watch;
    use crate::trace::State;
    use crate::trace::writer::Recorder;
    use crate::{ReduceOp, SimulatedBackend};
    use phalanx_core::{Cause, GroupId, Loss, OpKind, Peer, WORLD};
    use std::time::{Duration, Instant};

    #[test]
    fn who_is_no_member_is_not_missing() {
        let me = Peer { rank: 2, host: "h".into() };
        let watch = Watch::new(Recorder::new(me, 4, Duration::from_secs(1)));
        let groups = [WORLD, GroupId(7)].map(|group| {
            let members = if group == WORLD { vec![0, 1, 2, 3] } else { vec![2, 3] };
            (group, watch.alarm(group, members))
        });
        watch.lost_arbiter(Loss::Died);
        let trace = watch.trace("");
        for ((group, _), missing) in groups.iter().zip([vec![0], vec![]]) {
            let status = &trace.pg_status[&group.to_string()];
            assert!(status.failed.is_some());
            assert_eq!(status.missing, missing, "of {group}");
        }
    }

    #[test]
    fn who_did_not_send_is_not_missing_in_a_collective() {
        let me = Peer { rank: 0, host: "h".into() };
        let watch = Watch::new(Recorder::new(me.clone(), 2, Duration::from_secs(1)));
        let alarm = watch.alarm(WORLD, vec![0, 1]);
        let (waited, awaited) = (Duration::from_secs(1), vec![Peer { rank: 1, host: "h".into() }]);
        let missing = awaited.clone();
        let (op, seq, site, envelope) = (OpKind::Recv, 0, None, None);
        let (reporter, meanwhile) = (me, Vec::new());
        alarm.raise(
            Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile },
            None,
        );
        let trace = watch.trace("");
        assert_eq!(trace.pg_status["world"].missing, [0; 0]);
        assert_eq!(trace.first_cause, trace.pg_status["world"].failed);
    }

    #[test]
    fn the_first_cause_is_of_the_job_and_not_of_the_groups_of_this_rank() {
        let me = Peer { rank: 0, host: "h".into() };
        let watch = Watch::new(Recorder::new(me.clone(), 3, Duration::from_secs(1)));
        let _world = watch.alarm(WORLD, vec![0, 1, 2]);
        // Of a group that this rank is not in, and of one that it is in.
        for (group, words) in [(GroupId(7), "the first"), (WORLD, "the second")] {
            let cause = Cause::Aborted { peer: me.clone(), reason: words.into() };
            watch.hear(Verdict::Group { group, cause, through: None }, Instant::now());
        }
        let trace = watch.trace("");
        let says =
            |words: &str, said: &Option<String>| said.as_ref().is_some_and(|said| said.ends_with(words));
        assert!(says("the first", &trace.first_cause), "{:?}", trace.first_cause);
        assert!(says("the second", &trace.pg_status["world"].failed));
    }

    #[test]
    fn everything_a_rank_did_is_told() {
        let groups = SimulatedBackend::create_group(2);
        let rank = |group: crate::ProcessGroup| {
            let (rank, mut all) = (group.rank(), [0u16; 4]);
            group.all_gather(&[rank as u16; 2], &mut all).unwrap();
            let _ = group.all_reduce_async(vec![1.0f32; 8], ReduceOp::Max).unwrap().wait().unwrap();
            match rank {
                0 => group.send(&[1u8; 3], 1, 7).unwrap(),
                _ => group.recv(&mut [0u8; 3], 0, 7).unwrap(),
            }
            let half = group.split(Some(rank as u32), 0).unwrap().unwrap();
            half.barrier().unwrap();
            group.backend.trace().unwrap()
        };
        let traces: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (rank, trace) in traces.iter().enumerate() {
            assert_eq!((trace.rank, trace.world_size, trace.pg_config.len()), (rank, 2, 2));
            assert!(trace.entries.iter().all(|entry| entry.state == State::Completed), "{trace:?}");
            let of = |name: &str| trace.entries.iter().find(|entry| entry.profiling_name == name).unwrap();
            let gather = of("phalanx:all_gather");
            assert_eq!((&gather.input_sizes, &gather.output_sizes), (&vec![vec![2]], &vec![vec![4]]));
            assert_eq!((gather.collective_seq_id, gather.input_dtypes.join(" ")), (1, "u16".to_owned()));
            assert_eq!((of("phalanx:all_reduce").collective_seq_id, of("phalanx:split").op_id), (2, 3));
            assert_ne!(of("phalanx:barrier").process_group.0, "world");
            let message = of(["phalanx:send 0->1", "phalanx:recv 1<-0"][rank]);
            assert_eq!((message.is_p2p, message.p2p_seq_id, message.tag), (true, 1, Some(7)));
            assert!(message.frames[0].filename.ends_with("snapshot.rs"));
            assert_eq!(trace.pg_status["world"].last_completed_collective, 3);
        }
    }
}
