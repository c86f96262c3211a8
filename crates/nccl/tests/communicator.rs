//! Communicators on the double: every operation, type and operator, launches together, splits, and the order of streams.

#![cfg(target_os = "linux")]

mod common;
#[path = "suite/small.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod small;

use common::{LONG, all_devices, delay, device, nccl, world};
use half::{bf16, f16};
use phalanx_core::{DType, Error, ReduceOp};
use phalanx_nccl::{
    Call, Communicator, DataType, DeviceBuffer, DistributedConfig, F8E4M3, F8E5M2, Kind, Stream, UniqueId,
};
use small::Small;
use std::time::Duration;

fn buffer<T: Small>(stream: &Stream, elements: &[u8]) -> DeviceBuffer<T> {
    let elements: Vec<T> = elements.iter().map(|&n| T::of(n)).collect();
    DeviceBuffer::from_host(stream, &elements).unwrap()
}

fn check<T: Small>(buffer: &DeviceBuffer<T>, stream: &Stream, expected: &[u8], what: &str) {
    let expected: Vec<T> = expected.iter().map(|&n| T::of(n)).collect();
    let name = std::any::type_name::<T>();
    assert_eq!(buffer.to_host(stream, LONG).unwrap(), expected, "{what} of {name}");
}

/// All operations on two ranks in one type that NCCL reduces.
fn everything<T: Small>(comm: &Communicator, stream: &Stream) {
    let rank = comm.rank() as u8;
    let is_float = T::DTYPE.is_none_or(DType::is_float);
    let reductions = [
        (ReduceOp::Sum, [3, 4]),
        (ReduceOp::Prod, [2, 4]),
        (ReduceOp::Min, [1, 2]),
        (ReduceOp::Max, [2, 2]),
        (ReduceOp::PreMulSum(2.0), [6, 8]),
    ];
    // Integers have no pre-multiplied sum.
    for (reduction, expected) in reductions.into_iter().filter(|(op, _)| is_float || op.factor().is_none()) {
        let what = format!("{reduction:?}");
        let mine = [rank + 1, 2];
        let mut batch = comm.batch();
        let mut in_place: DeviceBuffer<T> = buffer(stream, &mine);
        batch.all_reduce(&mut in_place, reduction).unwrap();
        comm.launch(&batch, stream, LONG).unwrap();
        check(&in_place, stream, &expected, &what);

        let input: DeviceBuffer<T> = buffer(stream, &mine);
        let mut output: DeviceBuffer<T> = buffer(stream, &[0, 0]);
        let mut part: DeviceBuffer<T> = buffer(stream, &[0]);
        let mut at_root: DeviceBuffer<T> = buffer(stream, &mine);
        let mut batch = comm.batch();
        batch.all_reduce_into(&input, &mut output, reduction).unwrap();
        batch.reduce_scatter(&input, &mut part, reduction).unwrap();
        batch.reduce(&mut at_root, reduction, 1).unwrap();
        comm.launch(&batch, stream, LONG).unwrap();
        check(&input, stream, &mine, "the input");
        check(&output, stream, &expected, &what);
        check(&part, stream, &expected[usize::from(rank)..][..1], &what);
        check(&at_root, stream, if rank == 1 { &expected } else { &mine }, &what);
    }
    // The sum of 2 and 4, halved.
    let mut average: DeviceBuffer<T> = buffer(stream, &[2 + 2 * rank]);
    let mut batch = comm.batch();
    batch.all_reduce(&mut average, ReduceOp::Avg).unwrap();
    comm.launch(&batch, stream, LONG).unwrap();
    check(&average, stream, &[3], "avg");
}

/// All operations that only move, on two ranks in any type.
fn moved<T: Small>(comm: &Communicator, stream: &Stream) {
    let rank = comm.rank() as u8;
    let mine: DeviceBuffer<T> = buffer(stream, &[rank, 5]);
    let mut sent: DeviceBuffer<T> = buffer(stream, &[rank, 7]);
    let mut gathered: DeviceBuffer<T> = buffer(stream, &[0; 4]);
    let mut exchanged: DeviceBuffer<T> = buffer(stream, &[0; 2]);
    let mut received: DeviceBuffer<T> = buffer(stream, &[0; 2]);
    let mut own: DeviceBuffer<T> = buffer(stream, &[0; 2]);
    let mut at_root: DeviceBuffer<T> = buffer(stream, &[0; 4]);
    let from_root: DeviceBuffer<T> = buffer(stream, &[1, 2]);
    let mut scattered: DeviceBuffer<T> = buffer(stream, &[0]);
    let other = usize::from(1 - rank);
    let mut batch = comm.batch();
    batch.broadcast(&mut sent, 1).unwrap();
    batch.all_gather(&mine, &mut gathered).unwrap();
    batch.all_to_all(&mine, &mut exchanged).unwrap();
    batch.gather(&mine, (rank == 1).then_some(&mut at_root), 1).unwrap();
    batch.scatter((rank == 0).then_some(&from_root), &mut scattered, 0).unwrap();
    batch.send(&mine, other).unwrap();
    batch.recv(&mut received, other).unwrap();
    comm.launch(&batch, stream, LONG).unwrap();
    check(&sent, stream, &[1, 7], "broadcast");
    check(&gathered, stream, &[0, 5, 1, 5], "all_gather");
    check(&exchanged, stream, if rank == 0 { &[0, 1] } else { &[5, 5] }, "all_to_all");
    check(&at_root, stream, if rank == 1 { &[0, 5, 1, 5] } else { &[0; 4] }, "gather");
    check(&scattered, stream, &[rank + 1], "scatter");
    check(&received, stream, &[1 - rank, 5], "recv");
    let mut batch = comm.batch();
    batch.send(&mine, usize::from(rank)).unwrap();
    batch.recv(&mut own, usize::from(rank)).unwrap();
    comm.launch(&batch, stream, LONG).unwrap();
    check(&own, stream, &[rank, 5], "recv from oneself");
}

#[test]
fn every_operation_type_and_operator() {
    world(2, |comm, stream| {
        macro_rules! each {
            ($what:ident: $($t:ty)*) => { $($what::<$t>(comm, stream);)* };
        }
        each!(everything: f32 f64 f16 bf16 i8 u8 i32 u32 i64 u64 F8E4M3 F8E5M2);
        each!(moved: f32 f64 f16 bf16 i8 u8 i16 i32 u32 i64 u64 F8E4M3 F8E5M2);
    });
}

/// A type is no size: i32 and f32 have four bytes each, and other sums.
#[test]
fn integers_are_not_reduced_as_floats() {
    world(2, |comm, stream| {
        let mut integers = DeviceBuffer::from_host(stream, &[1i32 << 24, 3]).unwrap();
        let mut batch = comm.batch();
        batch.all_reduce(&mut integers, ReduceOp::Sum).unwrap();
        comm.launch(&batch, stream, LONG).unwrap();
        assert_eq!(integers.to_host(stream, LONG).unwrap(), [1 << 25, 6]);
    });
}

#[test]
fn what_nccl_has_not_is_said_and_leaves_the_communicator_well() {
    world(1, |comm, stream| {
        let mut shorts = DeviceBuffer::<i16>::zeros(stream, 4).unwrap();
        let mut floats = DeviceBuffer::<f32>::zeros(stream, 4).unwrap();
        let mut more = DeviceBuffer::<f32>::zeros(stream, 5).unwrap();
        let shown = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();
        let mut batch = comm.batch();
        let unsupported = "all_reduce is not supported by the nccl backend: NCCL ";
        assert!(shown(batch.all_reduce(&mut shorts, ReduceOp::Sum)).starts_with(unsupported));
        let mut batch = comm.batch();
        assert!(shown(batch.all_reduce(&mut floats, ReduceOp::BitAnd)).starts_with(unsupported));
        let mut batch = comm.batch();
        let lengths = "all_gather: output has 5 elements, expected 4 (4 × 1 ranks)";
        assert_eq!(shown(batch.all_gather(&floats, &mut more)), lengths);
        assert_eq!(
            shown(batch.send(&floats, 1)),
            "send: rank 1 is out of range: the ranks of this communicator are 0..1"
        );
        // Nothing is in there by now; no elements are fine too.
        let mut none = DeviceBuffer::<f32>::zeros(stream, 0).unwrap();
        batch.all_reduce(&mut none, ReduceOp::Sum).unwrap();
        comm.launch(&batch, stream, LONG).unwrap();
        assert!(none.to_host(stream, LONG).unwrap().is_empty());
    });
}

/// Its lengths would be wrong there, and NCCL would write beyond the end.
#[test]
fn a_batch_of_another_communicator_is_refused() {
    world(2, |comm, stream| {
        let alone = comm.split(Some(comm.rank() as u32), 0, LONG).unwrap().unwrap();
        let input = DeviceBuffer::<f32>::zeros(stream, 4).unwrap();
        let mut output = DeviceBuffer::<f32>::zeros(stream, 4).unwrap();
        let mut batch = alone.batch();
        batch.all_gather(&input, &mut output).unwrap();
        let error = comm.launch(&batch, stream, LONG).unwrap_err();
        assert!(
            error.to_string().starts_with(
                "all_gather: the batch was made for rank 0/1 of another group, not for Communicator(rank "
            ),
            "{error}"
        );
        alone.launch(&batch, stream, LONG).unwrap();
        let mut batch = comm.batch();
        let error = batch.gather(&input, None, 2).unwrap_err();
        assert_eq!(error.to_string(), "gather: root 2 is out of range: the ranks of this group are 0..2");
        alone.finalize(LONG).unwrap();
    });
}

/// The data is not there yet when the collective is put on another stream, and its result not when it is asked for on a third.
#[test]
fn streams_wait_for_each_other_where_they_share_a_buffer() {
    world(2, |comm, compute| {
        let (communication, third) =
            (Stream::new(comm.device()).unwrap(), Stream::new(comm.device()).unwrap());
        for round in 0..4 {
            delay(compute, Duration::from_millis(30));
            let mut sum = DeviceBuffer::from_host(compute, &[round as f32; 100]).unwrap();
            let mut batch = comm.batch();
            batch.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            delay(&communication, Duration::from_millis(10));
            comm.launch(&batch, &communication, LONG).unwrap();
            assert_eq!(sum.to_host(&third, LONG).unwrap(), [2.0 * round as f32; 100]);
            // Nobody overwrites what a collective still reads.
            delay(&communication, Duration::from_millis(10));
            let mut output = DeviceBuffer::zeros(&third, 100).unwrap();
            let mut batch = comm.batch();
            batch.all_reduce_into(&sum, &mut output, ReduceOp::Sum).unwrap();
            comm.launch(&batch, &communication, LONG).unwrap();
            sum.copy_from_host(compute, &[-1.0; 100]).unwrap();
            assert_eq!(output.to_host(&third, LONG).unwrap(), [4.0 * round as f32; 100]);
            assert_eq!(sum.to_host(&third, LONG).unwrap(), [-1.0; 100]);
        }
    });
}

/// candle computes on it. NCCL launches on a thread of its own, where it is not behind what this one has computed.
#[test]
fn the_default_stream_of_each_thread_is_refused() {
    const PER_THREAD: usize = 2;
    world(2, |comm, stream| {
        // SAFETY: it is there as long as its thread.
        let own = unsafe { Stream::from_raw(comm.device(), PER_THREAD as *mut _) };
        delay(&own, Duration::from_millis(100));
        let mut sum = DeviceBuffer::from_host(&own, &[1.0f32]).unwrap();
        let mut batch = comm.batch();
        batch.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let error = comm.launch(&batch, &own, LONG).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        comm.launch(&batch, stream, LONG).unwrap();
        assert_eq!(sum.to_host(&own, LONG).unwrap(), [2.0]);
    });
}

/// What the double is for: the same on raw addresses without an event reads what is not there yet.
#[test]
fn the_double_shows_when_an_event_is_missing() {
    world(1, |comm, compute| {
        let communication = Stream::new(comm.device()).unwrap();
        // The first launch is slow.
        let warm = DeviceBuffer::<f32>::zeros(compute, 1).unwrap();
        let call = |buffer: &DeviceBuffer<f32>, to: &DeviceBuffer<f32>| Call {
            kind: Kind::AllReduce(ReduceOp::Sum),
            from: buffer.address(),
            to: to.address(),
            count: buffer.len(),
            data_type: DataType::F32,
        };
        // SAFETY: the buffers outlive the streams' work, for which the test waits; that the order is missing is the point.
        unsafe { comm.launch_raw(&[call(&warm, &warm)], &communication, LONG).unwrap() };
        for is_ordered in [true, false] {
            let input = DeviceBuffer::from_host(compute, &[1.0f32]).unwrap();
            let output = DeviceBuffer::<f32>::zeros(compute, 1).unwrap();
            assert!(compute.synchronize(LONG).unwrap());
            let mut input = input;
            delay(compute, Duration::from_millis(200));
            input.copy_from_host(compute, &[2.0]).unwrap();
            if is_ordered {
                input.order(&communication).unwrap();
            }
            // SAFETY: as above.
            unsafe { comm.launch_raw(&[call(&input, &output)], &communication, LONG).unwrap() };
            assert!(communication.synchronize(LONG).unwrap());
            let expected = if is_ordered { 2.0 } else { 1.0 };
            assert_eq!(output.to_host(compute, LONG).unwrap(), [expected]);
        }
    });
}

/// NCCL would fail the communicator for it until 2.28.
#[test]
fn floats_of_eight_bits_are_moved_where_they_are_not_reduced() {
    common::ranks("child_moves_raw_floats", &["version=22703,capability=80"; 2]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_moves_raw_floats() {
    let (comm, stream) = common::joined();
    let rank = comm.rank() as u8;
    let mine = DeviceBuffer::from_host(&stream, &[F8E4M3(rank)]).unwrap();
    let all = DeviceBuffer::<F8E4M3>::zeros(&stream, 2).unwrap();
    let wide = DeviceBuffer::from_host(&stream, &[f32::from(rank); 3]).unwrap();
    let (from, to, data_type) = (mine.address(), all.address(), DataType::F8E4M3);
    let gather = Call { kind: Kind::AllGather, from, to, count: 1, data_type };
    let (kind, from, to, data_type) =
        (Kind::Broadcast { root: 1 }, wide.address(), wide.address(), DataType::F32);
    let broadcast = Call { kind, from, to, count: 3, data_type };
    // SAFETY: the buffers outlive the stream's work, for which the test waits.
    unsafe { comm.launch_raw(&[gather, broadcast], &stream, LONG).unwrap() };
    assert!(stream.synchronize(LONG).unwrap());
    assert_eq!(all.to_host(&stream, LONG).unwrap(), [F8E4M3(0), F8E4M3(1)]);
    assert_eq!(wide.to_host(&stream, LONG).unwrap(), [1.0; 3]);
}

/// What is freed when its last use is over keeps nobody waiting who wants memory.
#[test]
fn a_new_buffer_does_not_wait_for_those_that_were_dropped() {
    let device = device(0);
    let (busy, idle) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let mut dropped = DeviceBuffer::<f32>::zeros(&busy, 4).unwrap();
    delay(&busy, Duration::from_secs(3));
    dropped.copy_from_host(&busy, &[1.0; 4]).unwrap();
    let last_use = busy.record().unwrap();
    drop(dropped);
    let new = DeviceBuffer::from_host(&idle, &[2.0f32]).unwrap();
    assert_eq!(new.to_host(&idle, LONG).unwrap(), [2.0]);
    assert!(!last_use.is_over().unwrap());
    assert!(common::count("pools_apart") > 0);
}

/// A launch is not waited for, and the host hears in time that it is not done.
#[test]
fn a_launch_returns_before_it_is_done() {
    world(2, |comm, stream| {
        let mut sum = DeviceBuffer::from_host(stream, &[1.0f32]).unwrap();
        for _ in 0..2 {
            delay(stream, Duration::from_millis(300));
            let mut batch = comm.batch();
            batch.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            comm.launch(&batch, stream, LONG).unwrap();
            assert!(!stream.record().unwrap().is_over().unwrap());
            assert!(!stream.synchronize(Duration::from_millis(10)).unwrap());
            let error = sum.to_host(stream, Duration::from_millis(10)).unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        }
        assert!(stream.synchronize(LONG).unwrap());
        assert_eq!(sum.to_host(stream, LONG).unwrap(), [4.0]);
    });
}

#[test]
fn the_device_says_how_long_it_took() {
    const TIME: Duration = Duration::from_millis(30);
    let stream = Stream::new(&device(0)).unwrap();
    let before = stream.record_time().unwrap();
    delay(&stream, TIME);
    let after = stream.record_time().unwrap();
    assert!(after.wait(LONG).unwrap());
    assert!(after.since(&before).unwrap() >= TIME && before.since(&after).unwrap() == Duration::ZERO);
    // Of others it is not known.
    let other = stream.record().unwrap();
    assert!(other.wait(LONG).unwrap());
    assert!(matches!(other.since(&before), Err(Error::Library { .. })));
}

#[test]
fn splits_are_communicators_of_their_own() {
    world(4, |comm, stream| {
        let rank = comm.rank();
        // The even ones the other way round; rank 3 stays alone.
        let color = (rank != 3).then_some(rank as u32 % 2);
        let part = comm.split(color, -(rank as i32), LONG).unwrap();
        let Some(part) = part else { return assert_eq!(rank, 3) };
        let (expected, sum) = [((1, 2), 2), ((0, 1), 1), ((0, 2), 2)][rank];
        assert_eq!((part.rank(), part.world_size()), expected);
        let mut ranks = DeviceBuffer::from_host(stream, &[rank as i32]).unwrap();
        let mut batch = part.batch();
        batch.all_reduce(&mut ranks, ReduceOp::Sum).unwrap();
        part.launch(&batch, stream, LONG).unwrap();
        assert_eq!(ranks.to_host(stream, LONG).unwrap(), [sum]);
        part.finalize(LONG).unwrap();
    });
}

/// Of two ranks one does not come to it.
#[test]
fn a_split_is_ended_by_an_abort() {
    let _devices = all_devices();
    let id = &UniqueId::new(nccl()).unwrap();
    let [comm, _idle] = std::thread::scope(|ranks| {
        let join =
            |rank| ranks.spawn(move || Communicator::init(nccl(), &device(rank), id, rank, 2, LONG).unwrap());
        [0, 1].map(join).map(|rank| rank.join().unwrap())
    });
    std::thread::scope(|threads| {
        let split = threads.spawn(|| comm.split(Some(0), 0, LONG));
        // So that it has begun; but whichever comes first, it ends in this.
        std::thread::sleep(Duration::from_millis(100));
        comm.abort(LONG).unwrap();
        let error = split.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Library { .. }), "{error}");
        assert!(error.to_string().ends_with("the communicator was aborted"), "{error}");
    });
}

#[test]
fn an_init_for_which_not_all_come_ends_in_time() {
    let id = UniqueId::new(nccl()).unwrap();
    let error = Communicator::init(nccl(), &device(0), &id, 0, 2, Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, Error::Rendezvous { rank: 0, world_size: 2, .. }), "{error}");
    assert!(error.to_string().contains("ncclCommInitRankConfig of NCCL 2."), "{error}");
}

#[test]
fn two_ranks_with_one_device_are_refused() {
    let _devices = all_devices();
    let id = UniqueId::new(nccl()).unwrap();
    std::thread::scope(|ranks| {
        for rank in 0..2 {
            let id = &id;
            ranks.spawn(move || {
                let error =
                    Communicator::init(nccl(), &device(0), id, rank, 2, LONG).unwrap_err().to_string();
                assert!(error.contains("invalid usage (5)"), "{error}");
            });
        }
    });
}

#[test]
fn a_device_that_there_is_not_is_named() {
    let cuda = device(0);
    assert!(cuda.to_string().starts_with("device 0 (double of a GPU (host memory), GPU-6e6f7420-"), "{cuda}");
    let error =
        phalanx_nccl::Device::open(phalanx_nccl::Cuda::open(common::double()).unwrap(), 8).unwrap_err();
    assert_eq!(error.to_string(), "configuration: there is no device 8: this machine has 8, from 0");
}

#[test]
fn ranks_meet_over_a_file_even_if_an_old_one_is_there() {
    let _devices = all_devices();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("id");
    let config = |rank| DistributedConfig { world_size: 2, rank, comm_file: folder.path().join("id") };
    // Of an earlier run of this process, which waits for ranks that don't come, and of one that has ended, which NCCL does not find.
    let lives = || std::fs::write(&file, UniqueId::new(nccl()).unwrap().as_bytes()).unwrap();
    let is_over = || {
        let id = [("ID_FILE", file.to_str().unwrap())];
        common::done_well("child_leaves_an_id", common::process("child_leaves_an_id", &id));
    };
    let leave: [&dyn Fn(); 3] = [&|| (), &lives, &is_over];
    for leave in leave {
        leave();
        std::thread::scope(|ranks| {
            ranks.spawn(|| config(1).connect(nccl(), &device(1), LONG).unwrap().finalize(LONG).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            let comm = config(0).connect(nccl(), &device(0), LONG).unwrap();
            comm.finalize(LONG).unwrap();
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    is_over();
    let error = config(1).connect(nccl(), &device(1), Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("the id there is of no use (ncclComm"), "{error}");
    std::fs::remove_file(&file).unwrap();
    let error = config(1).connect(nccl(), &device(1), Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("rank 0 has not written NCCL's id to /"), "{error}");
    let nowhere = DistributedConfig { comm_file: "/nowhere/id".into(), ..config(0) };
    let error = nowhere.connect(nccl(), &device(0), LONG).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

/// No other id will come, so nobody waits for one.
#[test]
fn what_nccl_refuses_to_ranks_that_met_over_a_file_is_the_error_of_all() {
    let _devices = all_devices();
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|ranks| {
        for rank in 0..2 {
            let config = DistributedConfig { world_size: 2, rank, comm_file: folder.path().join("id") };
            ranks.spawn(move || {
                // Both have one device.
                let error = config.connect(nccl(), &device(0), LONG).unwrap_err();
                assert!(matches!(error, Error::Library { .. }), "{error}");
                assert!(error.to_string().contains("invalid usage (5)"), "{error}");
            });
        }
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_leaves_an_id() {
    let file = std::env::var_os("ID_FILE").unwrap();
    std::fs::write(file, UniqueId::new(nccl()).unwrap().as_bytes()).unwrap();
}
