//! Objects of serde types.

use super::WORLDS;
use crate::World;
use phalanx_core::Error;
use phalanx_group::{OBJECT_LEN_MAX, ProcessGroup};
use std::collections::BTreeMap;

type Settings = (String, BTreeMap<u32, Option<f64>>, Vec<bool>);

fn settings(of: usize) -> Settings {
    let map = (0..of as u32).map(|i| (i, (i % 2 == 0).then_some(f64::from(i) / 3.0))).collect();
    (format!("rank {of} ≥ 0"), map, vec![true; of * 100])
}

/// Objects arrive as they were, from every root, of unlike lengths, in rank order.
pub fn objects_arrive_as_they_were(world: &World) {
    for world_size in WORLDS {
        world.run(world_size, move |group| {
            let rank = group.rank();
            for root in 0..world_size {
                // Only the root's counts.
                let mine = (rank == root).then(|| settings(root));
                assert_eq!(group.broadcast_object(mine, root).unwrap(), settings(root));
            }
            let all = group.all_gather_object(&settings(rank)).unwrap();
            let of_all: Vec<_> = (0..world_size).map(settings).collect();
            assert_eq!(all, of_all);
            for root in 0..world_size {
                let gathered = group.gather_object(&settings(rank), root).unwrap();
                assert_eq!(gathered.as_ref(), (rank == root).then_some(&of_all));
                let own = group.scatter_object(gathered.as_deref(), root).unwrap();
                assert_eq!(own, settings(rank));
            }
        });
    }
}

/// Objects go from one rank to another in the order in which they were sent, those without a byte too.
pub fn objects_are_messages(world: &World) {
    world.run(3, |group| {
        let (rank, world_size) = (group.rank(), group.world_size());
        let (next, before) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);
        group.send_object(&settings(rank), next, 5).unwrap();
        group.send_object(&(), next, 5).unwrap();
        group.send_object(&rank, next, 6).unwrap();
        assert_eq!(group.recv_object::<usize>(before, 6).unwrap(), before);
        assert_eq!(group.recv_object::<Settings>(before, 5).unwrap(), settings(before));
        group.recv_object::<()>(before, 5).unwrap();

        // Nothing of what is too long is sent; what can't be decoded is gone, and the next one arrives.
        is_object_error(group.send_object(&"x".repeat(OBJECT_LEN_MAX), next, 5));
        group.send_object(&200u8, next, 5).unwrap();
        group.send_object(&"well", next, 5).unwrap();
        is_object_error(group.recv_object::<String>(before, 5));
        assert_eq!(group.recv_object::<String>(before, 5).unwrap(), "well");
        works(&group);
    });
}

/// What is too long is an error on every rank, and what another type was sent for is one where it arrives. The group works on.
pub fn objects_that_cannot_be_sent_hurt_nobody(world: &World) {
    world.run(3, |group| {
        let too_long = || "x".repeat(OBJECT_LEN_MAX);
        let is_root = group.rank() == 1;
        is_object_error(group.broadcast_object(is_root.then(too_long), 1));
        works(&group);
        let mine = if is_root { too_long() } else { String::new() };
        is_object_error(group.all_gather_object(&mine));
        works(&group);
        is_object_error(group.gather_object(&mine, 0));
        works(&group);
        let three = [String::new(), too_long(), String::new()];
        is_object_error(group.scatter_object(is_root.then_some(&three[..]), 1));
        works(&group);

        // 200 is a length whose string is missing.
        let outcome = match is_root {
            true => group.broadcast_object(Some(200u8), 1).map(|_| String::new()),
            false => group.broadcast_object(None::<String>, 1),
        };
        assert_eq!(outcome.is_ok(), is_root);
        if !is_root {
            is_object_error(outcome);
        }
        works(&group);
    });
}

fn is_object_error<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Object { .. })), "{outcome:?}");
}

fn works(group: &ProcessGroup) {
    assert_eq!(group.all_gather_object(&group.rank()).unwrap(), (0..group.world_size()).collect::<Vec<_>>());
}
