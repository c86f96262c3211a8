//! What comes of looking for the libraries: found, not found, too old, twice. Processes of their own, for what is loaded stays.

#![cfg(target_os = "linux")]

mod common;

use common::{device, done_well, double};
use phalanx_nccl::{CUDA_LIBRARY, Communicator, Cuda, NCCL_LIBRARY, Nccl, UniqueId};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs the ignored test `name` of this file in a process of its own.
fn in_a_process(name: &str, environment: &[(&str, &Path)]) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env_remove(NCCL_LIBRARY)
        .env_remove(CUDA_LIBRARY)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    done_well(name, child);
}

/// A copy of the double in which `symbol` has another name, as in a version that hasn't it.
fn without(symbol: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(double()).unwrap();
    let name = format!("\0{symbol}\0").into_bytes();
    let places: Vec<usize> =
        bytes.windows(name.len()).enumerate().filter(|(_, found)| *found == name).map(|(i, _)| i).collect();
    assert!(!places.is_empty(), "the double has no {symbol}");
    for place in places {
        bytes[place + 1] = b'X';
    }
    let file = folder.join("libnccl.so.2");
    std::fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn the_file_that_is_named_is_found_with_its_version() {
    let nccl = Nccl::open(double()).unwrap();
    assert_eq!(nccl.version().to_string(), "2.28.99");
    assert_eq!(nccl.path().canonicalize().unwrap(), double().canonicalize().unwrap());
    let cuda = Cuda::open(double()).unwrap();
    assert!(cuda.to_string().starts_with("CUDA driver 13.0 (/"), "{cuda}");
    in_a_process("child_finds_what_is_named", &[(NCCL_LIBRARY, &double()), (CUDA_LIBRARY, &double())]);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_finds_what_is_named() {
    assert!(Nccl::is_available());
    assert_eq!(Nccl::load().unwrap().path(), Cuda::load().unwrap().path());
}

#[test]
fn a_file_that_is_not_there_is_unavailable_with_its_name() {
    let nowhere = Path::new("/nowhere/libnccl.so.2");
    let error = Nccl::open(nowhere).unwrap_err().to_string();
    assert!(error.starts_with("NCCL is not available (tried: /nowhere/libnccl.so.2: "), "{error}");
    let error = Cuda::open(nowhere).unwrap_err().to_string();
    assert!(error.starts_with("the CUDA driver is not available (tried: /nowhere/"), "{error}");
    // What is no library at all is not either.
    let error = Nccl::open(file!()).unwrap_err().to_string();
    assert!(error.starts_with("NCCL is not available"), "{error}");
    in_a_process("child_is_told_all_that_was_tried", &[]);
}

/// Where NCCL or a driver is installed they may be found; where not, all names are in the error.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_told_all_that_was_tried() {
    if let Err(error) = Nccl::load() {
        let error = error.to_string();
        assert!(error.contains("tried: libnccl.so.2: ") && error.contains("; libnccl.so: "), "{error}");
        assert!(error.ends_with("; PHALANX_NCCL_LIBRARY can name its file)"), "{error}");
        assert!(!Nccl::is_available());
    }
    if let Err(error) = Cuda::load() {
        assert!(error.to_string().contains("libcuda.so.1: "), "{error}");
    }
}

/// Where the wheel of an active environment of Python has it. The system's own goes first, if it has one.
#[test]
fn the_wheel_of_an_active_environment_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::copy(double(), &file).unwrap();
    in_a_process("child_finds_a_wheel", &[("VIRTUAL_ENV", folder.path())]);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_finds_a_wheel() {
    let found = Nccl::load().unwrap();
    let environment = PathBuf::from(std::env::var_os("VIRTUAL_ENV").unwrap());
    // SAFETY: it is what was tried just now.
    let of_system = unsafe { libloading::Library::new("libnccl.so.2") };
    assert!(found.path().starts_with(environment) || of_system.is_ok(), "{found}");
}

#[test]
fn a_file_that_the_variable_names_and_is_not_there_is_told_with_the_variable() {
    let nowhere = Path::new("/nowhere/libnccl.so.2");
    in_a_process("child_is_told_the_variable", &[(NCCL_LIBRARY, nowhere)]);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_told_the_variable() {
    let error = Nccl::load().unwrap_err().to_string();
    assert!(error.starts_with("NCCL is not available (tried: /nowhere/libnccl.so.2: "), "{error}");
    assert!(error.ends_with("; PHALANX_NCCL_LIBRARY is set to that file, and no other is tried)"), "{error}");
}

#[test]
fn a_library_that_lacks_what_is_needed_is_refused_with_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let error = Nccl::open(without("ncclReduceScatter", folder.path())).unwrap_err().to_string();
    assert!(error.contains("libnccl.so.2 lacks ncclReduceScatter"), "{error}");
    // What came later is not missed until it is called.
    let folder = tempfile::tempdir().unwrap();
    let old = Nccl::open(without("ncclCommInitRankConfig", folder.path())).unwrap();
    let id = UniqueId::new(old).unwrap();
    let error =
        Communicator::init(old, &device(0), &id, 0, 1, Duration::from_secs(9)).unwrap_err().to_string();
    let wanted =
        "ncclCommInitRankConfig, which came with NCCL 2.14, is not available (tried: NCCL 2.28.99 (/";
    assert!(error.starts_with(wanted), "{error}");
}

#[test]
fn two_in_one_process_are_found_and_named() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = [first.path().join("libnccl.so.2"), second.path().join("libnccl.so.2.1")];
    for file in &files {
        std::fs::copy(double(), file).unwrap();
    }
    let environment: [(&str, &Path); 2] = [("FIRST", &files[0]), ("LD_LIBRARY_PATH", first.path())];
    in_a_process("child_has_one_and_finds_it", &environment);
    let environment: [(&str, &Path); 2] = [("FIRST", &files[1]), ("LD_LIBRARY_PATH", first.path())];
    in_a_process("child_has_another_and_refuses", &environment);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_has_one_and_finds_it() {
    Nccl::open(std::env::var_os("FIRST").unwrap()).unwrap();
    Nccl::load().unwrap();
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_has_another_and_refuses() {
    Nccl::open(std::env::var_os("FIRST").unwrap()).unwrap();
    let error = Nccl::load().unwrap_err().to_string();
    assert!(error.starts_with("configuration: this process has two NCCL libraries"), "{error}");
    assert!(error.contains("libnccl.so.2 and ") || error.contains("libnccl.so.2.1 and "), "{error}");
    assert!(error.contains(NCCL_LIBRARY), "{error}");
}

/// The real library loads where there is neither driver nor GPU. `PHALANX_TEST_LIBNCCL` names its file, as the wheel `nvidia-nccl-cu13` has it.
#[test]
#[expect(clippy::print_stdout, reason = "a test that is skipped says so, and one that isn't, what it found")]
fn the_real_library_tells_its_version() {
    let Some(file) = std::env::var_os("PHALANX_TEST_LIBNCCL") else {
        println!("skipped: PHALANX_TEST_LIBNCCL does not name a libnccl.so.2");
        return;
    };
    let nccl = Nccl::open(file).unwrap();
    println!("{nccl}");
    // The device is one of the double, of which the real library knows nothing.
    let id = UniqueId::new(nccl).unwrap();
    let error =
        Communicator::init(nccl, &device(0), &id, 0, 1, Duration::from_secs(30)).unwrap_err().to_string();
    println!("{error}");
    assert!(
        error.starts_with("ncclCommInitRankConfig of NCCL 2.") && error.contains("unhandled cuda error"),
        "{error}"
    );
    assert!(nccl.version().major == 2 && nccl.version().minor >= 14, "{nccl}");
}
