//! What NCCL and the driver do wrong, in processes: each ends in an error, within its time, and nothing is left.

#![cfg(target_os = "linux")]

mod common;

use common::{LONG, count, device, done_well, joined, me, nccl, nothing_is_left, process, ranks, sum};
use phalanx_core::{Error, ReduceOp};
use phalanx_nccl::{Communicator, Cuda, DeviceBuffer, Stream, UniqueId};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_secs(1);

#[test]
fn processes_work_together() {
    for size in [1, 2, 4, 8] {
        ranks("child_works", &vec![""; size]);
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_works() {
    let (comm, stream) = joined();
    let n = comm.world_size() as i64;
    for _ in 0..10 {
        assert_eq!(sum(&comm, &stream, LONG).unwrap(), n * (n + 1) / 2);
    }
    let half = comm.split(Some(comm.rank() as u32 % 2), 0, LONG).unwrap().unwrap();
    let members = half.world_size() as i64;
    assert_eq!(sum(&half, &stream, LONG).unwrap(), members * (members + 1) / 2);
    half.finalize(LONG).unwrap();
    // The double computes in the process of rank 0, which must not end before the other half is done.
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), n * (n + 1) / 2);
    comm.finalize(LONG).unwrap();
    drop((half, comm, stream));
    nothing_is_left();
}

#[test]
fn nothing_is_left_whatever_was_done() {
    ranks("child_leaves_nothing", &["", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_leaves_nothing() {
    let (comm, stream) = joined();
    assert!(count("communicators") == 1 && count("streams") == 3 && count("contexts") == 1);
    let mut floats = DeviceBuffer::from_host(&stream, &[1.0f32; 1000]).unwrap();
    let mut batch = comm.batch();
    batch.all_reduce(&mut floats, ReduceOp::PreMulSum(0.5)).unwrap();
    comm.launch(&batch, &stream, LONG).unwrap();
    assert_eq!(count("allocations"), 1);
    // Dropped while a stream may still use it; so is the communicator, when all is done.
    drop(floats);
    assert!(stream.synchronize(LONG).unwrap());
    drop((comm, stream));
    nothing_is_left();
}

#[test]
fn an_init_that_hangs_is_given_up_by_all() {
    ranks("child_is_not_joined", &["", "init-hangs", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_not_joined() {
    let (rank, size, id) = me();
    let error = Communicator::init(nccl(), &device(rank), &id, rank, size, SHORT).unwrap_err();
    assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    assert!(
        error.to_string().starts_with(&format!("rank {rank}/3: the ranks did not come together")),
        "{error}"
    );
    nothing_is_left();
}

#[test]
fn a_launch_that_is_refused_says_why() {
    ranks("child_is_refused", &["refuse@2"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_refused() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 1);
    let error = sum(&comm, &stream, LONG).unwrap_err().to_string();
    assert!(error.starts_with("ncclGroupEnd of NCCL 2."), "{error}");
    assert!(error.ends_with(": unhandled system error (2): from the double"), "{error}");
    // That was said at once, so nothing is under way, and nothing will be: NCCL refuses all from now on.
    assert!(stream.synchronize(LONG).unwrap());
    let error = sum(&comm, &stream, LONG).unwrap_err().to_string();
    assert!(error.ends_with(": unhandled system error (2): from the double"), "{error}");
    drop((comm, stream));
    nothing_is_left();
}

#[test]
fn an_asynchronous_error_is_seen_and_the_abort_frees_the_stream() {
    ranks("child_has_an_error_behind_its_back", &["error@2", "stall@2"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_an_error_behind_its_back() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 3);
    comm.async_error().unwrap();
    sum(&comm, &stream, SHORT).unwrap_err();
    match comm.rank() {
        0 => {
            let begun = Instant::now();
            let error = loop {
                match comm.async_error() {
                    Err(error) => break error.to_string(),
                    Ok(()) => assert!(begun.elapsed() < LONG, "it never comes"),
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(error.contains("remote process exited or there was a network error (6)"), "{error}");
        }
        _ => comm.async_error().unwrap(),
    }
    assert!(!stream.synchronize(SHORT).unwrap());
    comm.abort(LONG).unwrap();
    assert!(stream.synchronize(LONG).unwrap());
    let error = sum(&comm, &stream, LONG).unwrap_err().to_string();
    assert!(error.ends_with("the communicator was aborted"), "{error}");
    comm.abort(LONG).unwrap();
    drop((comm, stream));
    nothing_is_left_but_what_was_lost();
}

/// NCCL keeps one text for the whole process.
#[test]
fn what_nccl_said_of_something_else_is_not_told_of_a_communicator() {
    ranks("child_hears_nothing_stale", &["stale,error@2"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_hears_nothing_stale() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 1);
    sum(&comm, &stream, SHORT).unwrap_err();
    let error = comm.async_error().unwrap_err().to_string();
    assert!(error.ends_with(": remote process exited or there was a network error (6)"), "{error}");
    // What is said of another while this one is ill neither.
    let other = Communicator::init(nccl(), &device(1), &UniqueId::new(nccl()).unwrap(), 0, 1, LONG).unwrap();
    common::faults("stale,refuse@1");
    let error = sum(&other, &Stream::new(&device(1)).unwrap(), LONG).unwrap_err().to_string();
    assert!(error.ends_with(": unhandled system error (2): from the double"), "{error}");
    let error = comm.async_error().unwrap_err().to_string();
    assert!(error.ends_with(": remote process exited or there was a network error (6)"), "{error}");
}

/// As when somebody in the process has reset the device.
#[test]
fn an_abort_needs_no_context() {
    ranks("child_has_lost_its_context", &[""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_lost_its_context() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 1);
    let with = std::env::var("PHALANX_DOUBLE").unwrap();
    common::faults(&format!("{with}no-context"));
    let error = sum(&comm, &stream, LONG).unwrap_err().to_string();
    assert!(error.ends_with("CUDA_ERROR_CONTEXT_IS_DESTROYED (709): context is destroyed"), "{error}");
    comm.abort(LONG).unwrap();
    assert_eq!((count("communicators"), count("aborted")), (0, 1));
}

#[test]
fn a_kernel_that_went_wrong_is_told_in_the_drivers_words_and_everything_can_be_dropped() {
    ranks("child_has_a_broken_device", &["sticky@2"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_a_broken_device() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 1);
    let mut buffer = DeviceBuffer::from_host(&stream, &[1i64]).unwrap();
    let mut batch = comm.batch();
    batch.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    let error = comm.launch(&batch, &stream, LONG).unwrap_err().to_string();
    let of_driver = "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered";
    assert!(error.contains("unhandled cuda error (1)") || error.ends_with(of_driver), "{error}");
    let error = buffer.to_host(&stream, LONG).unwrap_err().to_string();
    assert!(error.ends_with(of_driver), "{error}");
    comm.abort(LONG).unwrap();
    drop((buffer, comm, stream));
    assert_eq!(count("communicators"), 0);
}

/// The driver gives no longer piece.
#[test]
fn long_copies_take_little_pinned_memory() {
    done_well("child_copies_much", process("child_copies_much", &[("PHALANX_DOUBLE", "pinned=8388608")]));
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_copies_much() {
    const MOST: i64 = 128 << 20;
    let device = device(0);
    let stream = Stream::new(&device).unwrap();
    // Longer than a piece, of which the last part is shorter.
    let numbers: Vec<u32> = (0..(50 << 18) + 3).collect();
    for _ in 0..3 {
        let mut buffer = DeviceBuffer::from_host(&stream, &numbers).unwrap();
        buffer.copy_from_host(&stream, &numbers).unwrap();
        assert!(buffer.to_host(&stream, LONG).unwrap() == numbers);
    }
    for len in [1, 20_000, 40_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000] {
        assert!(
            DeviceBuffer::from_host(&stream, &numbers[..len]).unwrap().to_host(&stream, LONG).unwrap()
                == numbers[..len]
        );
    }
    assert!(count("pinned_bytes") <= MOST, "{} bytes", count("pinned_bytes"));
    // Behind a stream that is busy too: who copies then waits for pieces.
    common::delay(&stream, SHORT);
    let all: Vec<_> = (0..5).map(|_| DeviceBuffer::from_host(&stream, &numbers).unwrap()).collect();
    assert!(count("pinned_bytes") <= MOST, "{} bytes", count("pinned_bytes"));
    assert!(all.iter().all(|buffer| buffer.to_host(&stream, LONG).unwrap() == numbers));
    drop((all, stream, device));
    nothing_is_left();
}

/// Memory that a launch may write which failed half-way is never freed.
fn nothing_is_left_but_what_was_lost() {
    assert_eq!((count("communicators"), count("operators")), (0, 0));
}

#[test]
fn a_rank_that_dies_leaves_a_launch_that_an_abort_ends() {
    ranks("child_loses_the_other", &["", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_loses_the_other() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 3);
    if comm.rank() == 1 {
        return std::mem::forget(comm);
    }
    let error = sum(&comm, &stream, SHORT).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    comm.abort(LONG).unwrap();
    drop((comm, stream));
    nothing_is_left();
}

#[test]
fn an_abort_that_hangs_is_given_up_and_so_is_the_drop() {
    ranks("child_can_not_abort", &["stall@1,abort-hangs"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_can_not_abort() {
    let (comm, stream) = joined();
    sum(&comm, &stream, SHORT).unwrap_err();
    let error = comm.abort(SHORT).unwrap_err().to_string();
    assert!(
        error.starts_with("ncclCommAbort of NCCL") && error.ends_with("still in progress after 1.0 s"),
        "{error}"
    );
    // Everything can still be dropped, and the process can end.
    drop((comm, stream));
}

#[test]
fn a_finalize_that_hangs_is_given_up() {
    ranks("child_can_not_finalize", &["finalize-hangs"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_can_not_finalize() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 1);
    let error = comm.finalize(SHORT).unwrap_err().to_string();
    assert!(error.starts_with("ncclCommFinalize of NCCL") && error.contains("still in progress"), "{error}");
    drop((comm, stream));
    nothing_is_left();
}

#[test]
fn memory_that_is_not_there_is_an_error_and_no_more() {
    ranks("child_has_little_memory", &["memory=4096"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_little_memory() {
    let (comm, stream) = joined();
    let kept = DeviceBuffer::<u8>::zeros(&stream, 4000).unwrap();
    let error = DeviceBuffer::<u8>::zeros(&stream, 100).unwrap_err().to_string();
    assert!(error.starts_with("cuMemAllocAsync of CUDA driver 13.0 (/"), "{error}");
    assert!(error.ends_with(": CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"), "{error}");
    let error = DeviceBuffer::<u64>::zeros(&stream, usize::MAX / 4).unwrap_err();
    assert!(matches!(error, Error::Misuse { .. }), "{error}");
    drop(kept);
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 1);
}

#[test]
fn a_type_that_came_later_is_refused_but_moved() {
    ranks("child_has_an_old_nccl", &["version=21903"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_an_old_nccl() {
    let (comm, stream) = joined();
    let mut buffer = DeviceBuffer::<phalanx_nccl::F8E4M3>::zeros(&stream, 3).unwrap();
    let error = comm.batch().all_reduce(&mut buffer, ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.ends_with("NCCL 2.19.3 does not reduce phalanx_nccl::element::F8E4M3"), "{error}");
    let mut batch = comm.batch();
    batch.broadcast(&mut buffer, 0).unwrap();
    comm.launch(&batch, &stream, LONG).unwrap();
    buffer.to_host(&stream, LONG).unwrap();
}

#[test]
fn a_driver_without_a_device_is_unavailable() {
    done_well("child_has_no_device", process("child_has_no_device", &[("PHALANX_DOUBLE", "no-device")]));
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_no_device() {
    let error = Cuda::load().unwrap_err().to_string();
    assert!(error.starts_with("a CUDA device is not available (tried: /"), "{error}");
    assert!(
        error.ends_with(": cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected)"),
        "{error}"
    );
}

/// Inside NCCL no deadline is kept, and nothing can be aborted.
#[test]
fn nccl_must_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let id = folder.path().join("id");
    for setting in [("NCCL_COMM_BLOCKING", "1"), ("PHALANX_DOUBLE", "blocking-file")] {
        std::fs::write(&id, UniqueId::new(nccl()).unwrap().as_bytes()).unwrap();
        for name in ["child_makes_no_id", "child_joins_nobody"] {
            done_well(name, process(name, &[setting, ("ID_FILE", id.to_str().unwrap())]));
        }
    }
}

fn names_the_variable(error: &Error) {
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(error.to_string().starts_with("configuration: NCCL_COMM_BLOCKING is \"1\""), "{error}");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_makes_no_id() {
    names_the_variable(&UniqueId::new(nccl()).unwrap_err());
    let id = UniqueId::from_bytes([0; UniqueId::LEN]);
    names_the_variable(&Communicator::init(nccl(), &device(0), &id, 0, 1, LONG).unwrap_err());
}

/// The first that this process asks NCCL for.
#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_joins_nobody() {
    let id = std::fs::read(std::env::var_os("ID_FILE").unwrap()).unwrap();
    let id = UniqueId::from_bytes(id.try_into().unwrap());
    names_the_variable(&Communicator::init(nccl(), &device(0), &id, 0, 1, LONG).unwrap_err());
    nothing_is_left();
}

/// Nobody has to write the id to a file by hand for long, but it must not be in a log.
#[test]
fn the_id_is_not_shown() {
    assert_eq!(format!("{:?}", UniqueId::new(nccl()).unwrap()), "UniqueId");
}
