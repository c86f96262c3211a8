//! Ranks on the double of NCCL and of the CUDA driver, as threads or as processes.

#![allow(dead_code, reason = "each file of tests uses some of it")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "looking a function of the double up and calling it is one thing"
)]

use phalanx_core::{ReduceOp, Result};
use phalanx_group::ProcessGroup;
use phalanx_nccl::{
    CUDA_LIBRARY, Communicator, Cuda, Device, DeviceBuffer, NCCL_LIBRARY, Nccl, Stream, UniqueId,
};
use phalanx_testkit::World;
use std::ffi::{CString, c_char, c_void};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Far more than anything takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The file of the double. Cargo builds it for these tests, beside them.
pub(crate) fn double() -> PathBuf {
    let test = std::env::current_exe().expect("this program is a file");
    let file = test.parent().expect("it lies in a folder").join("libphalanx_nccl_double.so");
    assert!(file.exists(), "cargo builds {} as a dev-dependency", file.display());
    file
}

pub(crate) fn nccl() -> Nccl {
    Nccl::open(double()).unwrap()
}

pub(crate) fn device(ordinal: usize) -> Device {
    Device::open(Cuda::open(double()).unwrap(), ordinal).unwrap()
}

/// The sum of the ranks' numbers, from one on, read on the host.
pub(crate) fn sum(comm: &Communicator, stream: &Stream, timeout: Duration) -> Result<i64> {
    let mut sum = DeviceBuffer::from_host(stream, &[comm.rank() as i64 + 1])?;
    let mut batch = comm.batch();
    batch.all_reduce(&mut sum, ReduceOp::Sum)?;
    comm.launch(&batch, stream, timeout)?;
    Ok(sum.to_host(stream, timeout)?[0])
}

/// What the double counts.
pub(crate) fn count(what: &str) -> i64 {
    // SAFETY: the file is the double, and the function has this type.
    unsafe {
        let library = libloading::Library::new(double()).unwrap();
        let count = library.get::<unsafe extern "C" fn(*const c_char) -> i64>("phalanxDoubleCount").unwrap();
        count(CString::new(what).unwrap().as_ptr())
    }
}

/// Streams do what they were given before they are gone, so it may take a moment.
pub(crate) fn nothing_is_left() {
    let kinds =
        ["communicators", "streams", "events", "contexts", "allocations", "bytes", "pinned", "operators"];
    let begun = Instant::now();
    for kind in kinds {
        while count(kind) != 0 {
            assert!(begun.elapsed() < LONG, "{} {kind} are left", count(kind));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(count("nonsense"), -1);
}

/// Keeps `stream` at work for some time.
pub(crate) fn delay(stream: &Stream, time: Duration) {
    // SAFETY: the file is the double, the function has this type, and the stream is of the double.
    unsafe {
        let library = libloading::Library::new(double()).unwrap();
        let delay = library.get::<unsafe extern "C" fn(*mut c_void, u64)>("phalanxDoubleDelay").unwrap();
        delay(stream.raw(), time.as_micros() as u64);
    }
}

/// From now on the double of this process has these faults.
pub(crate) fn faults(list: &str) {
    // SAFETY: the file is the double, and the function has this type.
    unsafe {
        let library = libloading::Library::new(double()).unwrap();
        let faults = library.get::<unsafe extern "C" fn(*const c_char)>("phalanxDoubleFaults").unwrap();
        faults(CString::new(list).unwrap().as_ptr());
    }
}

/// The devices of this process, for one test at a time. A communicator that ends waits for all that its device does, as NCCL's does, so ranks of two tests that shared devices could wait for each other for ever.
pub(crate) fn all_devices() -> MutexGuard<'static, ()> {
    static DEVICES: Mutex<()> = Mutex::new(());
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `rank` on each rank of a world that has all devices.
pub(crate) fn run<R: Send + 'static>(
    world: &World,
    world_size: usize,
    rank: impl Fn(ProcessGroup) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let _devices = all_devices();
    world.run(world_size, rank)
}

/// Runs `work` on `n` ranks, each a thread with a communicator, a device and a stream of its own.
pub(crate) fn world(n: usize, work: impl Fn(&Communicator, &Stream) + Sync) {
    let _devices = all_devices();
    let id = UniqueId::new(nccl()).unwrap();
    std::thread::scope(|ranks| {
        for rank in 0..n {
            let (id, work) = (&id, &work);
            ranks.spawn(move || {
                let device = device(rank);
                let comm = Communicator::init(nccl(), &device, id, rank, n, LONG).unwrap();
                work(&comm, &Stream::new(&device).unwrap());
                comm.finalize(LONG).unwrap();
            });
        }
    });
}

/// A process that runs the ignored test `name` of this program, with the double.
pub(crate) fn process(name: &str, environment: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(NCCL_LIBRARY, double())
        .env(CUDA_LIBRARY, double())
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for a process, which must have run one test well.
pub(crate) fn done_well(name: &str, child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{name} did not run: {said}");
}

/// Waits for the processes of a job, which must all have run one test well, but for rank `killed`, which has killed itself.
pub(crate) fn done_well_but_one(name: &str, children: Vec<Child>, killed: usize) {
    for (rank, child) in children.into_iter().enumerate() {
        if rank == killed {
            let status = child.wait_with_output().unwrap().status;
            assert_eq!(status.signal(), Some(9), "{status}");
        } else {
            done_well(name, child);
        }
    }
}

/// Kills this process.
pub(crate) fn die() -> ! {
    let kill = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    panic!("it lives on: {kill:?}");
}

/// Of NCCL, as which the double is tried: each does something else behind its callers' backs. See `crates/nccl-double/src/version.rs`.
pub(crate) const VERSIONS: [u32; 3] = [22_105, 22_602, 23_007];

/// `faults` with each of the versions, unless they have some.
pub(crate) fn at_versions(faults: &[&str]) -> Vec<Vec<String>> {
    let own = || faults.iter().map(|fault| (*fault).to_owned()).collect();
    if faults.iter().any(|fault| fault.contains("version=")) {
        return vec![own()];
    }
    let at = |version| faults.iter().map(|fault| format!("version={version},{fault}")).collect();
    VERSIONS.map(at).into()
}

/// Runs the ignored test `name` in as many processes as there are `faults`, one for each rank, with each version.
pub(crate) fn ranks(name: &str, faults: &[&str]) {
    for faults in at_versions(faults) {
        ranks_once(name, &faults);
    }
}

fn ranks_once(name: &str, faults: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("id");
    let (file, size) = (file.to_str().unwrap(), faults.len().to_string());
    let start = |(rank, fault): (usize, &String)| {
        let rank = rank.to_string();
        process(name, &[("RANK", &rank), ("WORLD_SIZE", &size), ("ID_FILE", file), ("PHALANX_DOUBLE", fault)])
    };
    let children: Vec<_> = faults.iter().enumerate().map(start).collect();
    children.into_iter().for_each(|child| done_well(name, child));
}

/// This process's rank and world size, and the id that rank 0 has made.
pub(crate) fn me() -> (usize, usize, UniqueId) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, size) = (number("RANK"), number("WORLD_SIZE"));
    let file = PathBuf::from(std::env::var_os("ID_FILE").unwrap());
    if rank == 0 {
        let id = UniqueId::new(nccl()).unwrap();
        let new = file.with_extension("new");
        std::fs::write(&new, id.as_bytes()).unwrap();
        std::fs::rename(new, &file).unwrap();
        return (rank, size, id);
    }
    (rank, size, UniqueId::from_bytes(wait_for(&file).try_into().unwrap()))
}

/// The content of a file, once it is there.
pub(crate) fn wait_for(file: &Path) -> Vec<u8> {
    let begun = Instant::now();
    loop {
        if let Ok(bytes) = std::fs::read(file) {
            return bytes;
        }
        assert!(begun.elapsed() < LONG, "{} never came", file.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// This process's rank of a communicator of all processes.
pub(crate) fn joined() -> (Communicator, Stream) {
    let (rank, size, id) = me();
    let device = device(rank);
    let comm = Communicator::init(nccl(), &device, &id, rank, size, LONG).unwrap();
    (comm, Stream::new(&device).unwrap())
}

/// Runs the ignored test `name` in as many processes as there are `faults`, which are ranks of one job. Returns the processes.
pub(crate) fn job(name: &str, faults: &[&str], timeout_s: &str) -> (tempfile::TempDir, Vec<Child>) {
    job_with(name, faults, timeout_s, &[])
}

/// As [`job`], with more in the environment of each.
pub(crate) fn job_with(
    name: &str,
    faults: &[&str],
    timeout_s: &str,
    more: &[(&str, &str)],
) -> (tempfile::TempDir, Vec<Child>) {
    let folder = tempfile::tempdir().unwrap();
    let (store, size) = (format!("file://{}", folder.path().display()), faults.len().to_string());
    let start = |(rank, fault): (usize, &&str)| {
        let rank = rank.to_string();
        let secret = "5a".repeat(32);
        let own = [
            ("PHALANX_RANK", &*rank),
            ("PHALANX_WORLD_SIZE", &size),
            ("PHALANX_LOCAL_RANK", &rank),
            ("PHALANX_LOCAL_WORLD_SIZE", &size),
            ("PHALANX_STORE", &store),
            ("PHALANX_JOB_ID", name),
            ("PHALANX_SECRET", &secret),
            ("PHALANX_HOST", "127.0.0.1"),
            ("PHALANX_TIMEOUT_S", timeout_s),
            ("PHALANX_DOUBLE", fault),
        ];
        process(name, &[&own, more].concat())
    };
    let children = faults.iter().enumerate().map(start).collect();
    (folder, children)
}
