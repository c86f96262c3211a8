//! What a group takes of the host's memory is as `docs/reference/memory.md` says.
#![cfg(target_os = "linux")]

use phalanx_shm::{ShmTransport, create, pipes_len, segment_len};
use phalanx_transport::Transport;
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

#[test]
fn the_table_in_the_docs_is_right() {
    let row = |world_size: usize| {
        let (team, pipes) = (segment_len(world_size), pipes_len(world_size));
        let each = [team, pipes, team + pipes].map(|bytes| kib(bytes / world_size));
        format!(
            "| {world_size} | {} KiB | {} KiB | {} KiB | {} KiB |",
            each[0],
            each[1],
            each[2],
            kib(team + pipes)
        )
    };
    let docs = include_str!("../../../docs/reference/memory.md");
    let missing: Vec<_> = [2, 8, 64].map(row).into_iter().filter(|row| !docs.contains(row)).collect();
    assert!(missing.is_empty(), "docs/reference/memory.md lacks\n{}", missing.join("\n"));
}

/// Pages that the system has given.
fn taken(file: &File) -> usize {
    file.metadata().unwrap().blocks() as usize * 512
}

#[test]
fn pipes_take_memory_when_they_are_used() {
    let file = File::from(create(pipes_len(64)).unwrap());
    let mut ranks: Vec<_> = (0..64).map(|rank| ShmTransport::join(&file, rank, 64).unwrap()).collect();
    let joined = taken(&file);
    assert_eq!(joined, 64 * 128, "128 bytes for each rank that has joined, and nothing was sent");
    let message = vec![7; 4096];
    assert_eq!(ranks[3].send(60, &[IoSlice::new(&message)]), Ok(4096));
    let used = taken(&file) - joined;
    assert!((4096..=4 * 4096).contains(&used), "one message of a page: {used} bytes");
}
