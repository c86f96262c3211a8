//! What ranks write of what they did: once for each failure, whole, and with the true first cause.

use crate::control::failure_latch::FailureLatch;
use crate::control::membership::Membership;
use crate::control::notice::Verdict;
use crate::runtime::{self, OsRuntime};
use crate::trace::writer::{Recorder, WRITING_TIME, write};
use crate::trace::{State, Trace};
use crate::{ReduceOp, threads};
use phalanx_core::{Cause, GroupId, Loss, OpKind, Peer, WORLD};
use phalanx_trace::Recorded;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A rank of many groups, and where it writes.
fn rank(name: &str) -> (Arc<Membership>, Vec<Arc<FailureLatch>>, PathBuf) {
    let folder = std::env::temp_dir().join(format!("phalanx_{name}_{}", std::process::id()));
    let me = Peer { rank: 0, host: "h".into() };
    let runtime = OsRuntime::of_thread(Recorder::new(me.clone(), Some(folder.clone())));
    let recorded = Recorded { me, world_size: 2, timeout: Duration::from_secs(1) };
    let membership = Membership::new(recorded, 64, Arc::new(runtime));
    let groups = (0..200).map(|group| if group == 0 { WORLD } else { GroupId(group) });
    let latches = groups.map(|group| membership.latch(group, vec![0, 1])).collect();
    (membership, latches, folder)
}

fn lost() -> Verdict {
    let cause = Cause::Lost { peer: Peer { rank: 1, host: "h".into() }, how: Loss::Died };
    Verdict::Lost { rank: 1, is_gone: true, cause, through: None }
}

#[test]
fn what_fails_at_once_is_written_once() {
    let (membership, _latches, folder) = rank("once");
    membership.hear(lost(), Instant::now());
    membership.runtime().finish_traces();
    let text = std::fs::read(folder.join("trace_rank_0.json")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let trace: Trace = serde_json::from_slice(&text).unwrap();
    assert!(trace.reason.starts_with("world: "), "the first reason: {}", trace.reason);
    assert!(trace.pg_status.values().all(|status| status.failed.is_some()));
}

#[test]
fn a_disk_that_hangs_is_waited_for_once() {
    let (membership, latches, folder) = rank("hangs");
    let begun = Instant::now();
    membership.while_locked(|| {
        // Who writes waits for the lock, as for a disk.
        for latch in &latches {
            latch.raise(Cause::Aborted { peer: membership.me().clone(), reason: "r".into() }, None);
            membership.runtime().finish_traces();
        }
    });
    assert!(begun.elapsed() < 10 * WRITING_TIME, "{:?}", begun.elapsed());
    membership.runtime().finish_traces();
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let (membership, _latches, folder) = rank("nothing");
    // In its place is what no file can take the place of.
    let file = folder.join("trace.json");
    std::fs::create_dir_all(file.join("a folder")).unwrap();
    write(&file, &membership.trace("")).unwrap_err();
    let left = std::fs::read_dir(&folder).unwrap().count();
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(left, 1);
}

#[test]
fn who_is_no_member_is_not_missing() {
    let me = Peer { rank: 2, host: "h".into() };
    let membership = runtime::membership(me, 4, Duration::from_secs(1));
    let groups = [WORLD, GroupId(7)].map(|group| {
        let members = if group == WORLD { vec![0, 1, 2, 3] } else { vec![2, 3] };
        (group, membership.latch(group, members))
    });
    membership.lost_arbiter(Loss::Died);
    let trace = membership.trace("");
    for ((group, _), missing) in groups.iter().zip([vec![0], vec![]]) {
        let status = &trace.pg_status[&group.to_string()];
        assert!(status.failed.is_some());
        assert_eq!(status.missing, missing, "of {group}");
    }
}

#[test]
fn who_did_not_send_is_not_missing_in_a_collective() {
    let me = Peer { rank: 0, host: "h".into() };
    let membership = runtime::membership(me.clone(), 2, Duration::from_secs(1));
    let latch = membership.latch(WORLD, vec![0, 1]);
    let (waited, awaited) = (Duration::from_secs(1), vec![Peer { rank: 1, host: "h".into() }]);
    let missing = awaited.clone();
    let (op, seq, site, envelope) = (OpKind::Recv, 0, None, None);
    let (reporter, meanwhile) = (me, Vec::new());
    latch.raise(
        Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile },
        None,
    );
    let trace = membership.trace("");
    assert_eq!(trace.pg_status["world"].missing, [0; 0]);
    assert_eq!(trace.first_cause, trace.pg_status["world"].failed);
}

#[test]
fn the_first_cause_is_of_the_job_and_not_of_the_groups_of_this_rank() {
    let me = Peer { rank: 0, host: "h".into() };
    let membership = runtime::membership(me.clone(), 3, Duration::from_secs(1));
    let _world = membership.latch(WORLD, vec![0, 1, 2]);
    // Of a group that this rank is not in, and of one that it is in.
    for (group, words) in [(GroupId(7), "the first"), (WORLD, "the second")] {
        let cause = Cause::Aborted { peer: me.clone(), reason: words.into() };
        membership.hear(Verdict::Group { group, cause, through: None }, Instant::now());
    }
    let trace = membership.trace("");
    let says = |words: &str, said: &Option<String>| said.as_ref().is_some_and(|said| said.ends_with(words));
    assert!(says("the first", &trace.first_cause), "{:?}", trace.first_cause);
    assert!(says("the second", &trace.pg_status["world"].failed));
}

#[test]
fn everything_a_rank_did_is_told() {
    let groups = threads(2);
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
        assert!(message.frames[0].filename.ends_with("traces.rs"));
        assert_eq!(trace.pg_status["world"].last_completed_collective, 3);
    }
}

/// However soon it comes: at once, while its receiver looks for it without a clock, or much later.
#[test]
fn a_message_that_is_waited_for_is_told_once() {
    let [zero, one]: [_; 2] = threads(2).try_into().unwrap();
    one.send(&[0u8; 3], 0, 0).unwrap();
    zero.recv(&mut [0u8; 3], 1, 0).unwrap();
    for round in 1..100u64 {
        std::thread::scope(|scope| {
            scope.spawn(|| zero.recv(&mut [0u8; 3], 1, round).unwrap());
            if round == 50 {
                std::thread::sleep(Duration::from_millis(50));
            }
            one.send(&[0u8; 3], 0, round).unwrap();
        });
    }
    let entries = zero.backend.trace().unwrap().entries;
    assert!(entries.iter().all(|entry| entry.state == State::Completed), "{entries:?}");
    assert!(entries.iter().rev().map(|entry| entry.tag).eq((0..100).rev().map(Some).take(entries.len())));
    assert!(entries.len() >= 60, "with the one that came late");
    // One that does not come.
    zero.recv_timeout(&mut [0u8; 3], 1, 7000, Duration::ZERO).unwrap_err();
    let entries = zero.backend.trace().unwrap().entries;
    assert_eq!(entries.iter().filter(|entry| entry.tag == Some(7000)).count(), 1);
}

/// Also where it is over at once.
#[test]
fn how_long_a_message_took_is_told_from_16_kib_on() {
    let [zero, one]: [_; 2] = threads(2).try_into().unwrap();
    for len in [3, (16 << 10) - 1, 16 << 10, 40 << 10, 64 << 10, 80 << 10] {
        one.send(&vec![1u8; len], 0, len as u64).unwrap();
        zero.recv(&mut vec![0u8; len], 1, len as u64).unwrap();
    }
    for group in [zero, one] {
        let entries = group.backend.trace().unwrap().entries;
        assert_eq!(entries.len(), 6, "{entries:?}");
        for entry in entries {
            let is_told = entry.duration_ms.is_some_and(|took| took > 0.0);
            let is_long = entry.tag.is_some_and(|len| len >= 16 << 10);
            assert!(is_told || !is_long, "{entry:?}");
            assert_eq!(entry.state, State::Completed);
        }
    }
}

#[test]
fn a_message_from_any_rank_is_told_with_its_sender_once_there_is_one() {
    let [taker, sender]: [_; 2] = threads(2).try_into().unwrap();
    sender.send(&[1u8; 3], 0, 7).unwrap();
    assert_eq!(taker.recv_any(&mut [0u8; 3], 7).unwrap(), 1);
    let coming = taker.recv_any_async(vec![0u8; 5], 9).unwrap();
    taker.abort("on purpose");
    assert!(coming.wait().is_err());
    let trace = taker.backend.trace().unwrap();
    let of = |name: &str| trace.entries.iter().find(|entry| entry.profiling_name == name).unwrap();
    let (came, awaited) = (of("phalanx:recv_any 0<-1"), of("phalanx:recv_any 0<-any"));
    assert_eq!((came.state, came.tag, &came.output_sizes), (State::Completed, Some(7), &vec![vec![3]]));
    assert_eq!((awaited.state, awaited.tag, awaited.is_p2p), (State::Failed, Some(9), true));
    let said = phalanx_trace::verdict(&phalanx_trace::Merged { traces: vec![trace], unread: Vec::new() });
    assert!(said.contains("world: unfinished recv_any 0<-any, tag 9, after "), "{said}");
    assert!(!said.contains("missing"), "{said}");
}
