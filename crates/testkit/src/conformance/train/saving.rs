//! What some ranks have saved, any number of ranks loads.

use super::{ONE_BUCKET, Saving, Toy, WORLDS, bits};
use crate::World;
use std::path::PathBuf;

/// Saved by every world, loaded by every world, bit by bit; and the training goes on from there.
pub fn any_number_of_ranks_goes_on_where_others_have_stopped<S: Saving>(world: &World) {
    let folder = Folder::new();
    let step_of = |ranks: usize| ranks as u64;
    let mut saved = Vec::new();
    for ranks in WORLDS {
        let path = folder.0.join(ranks.to_string());
        let of_ranks = world.run(ranks, move |group| {
            let toy = Toy::new(61);
            let mut library = S::wrap(&toy, &group, ONE_BUCKET).unwrap();
            library.step(Some(&toy.batch(3, group.rank(), ranks)), None).unwrap();
            library.descend(0.1);
            library.save(&path, &group, step_of(ranks)).unwrap();
            bits(&library.weights())
        });
        saved.push(of_ranks[0].clone());
    }
    for (by, expected) in WORLDS.zip(saved) {
        for ranks in WORLDS {
            let path = folder.0.join(by.to_string());
            let loaded = world.run(ranks, move |group| {
                let toy = Toy::new(62); // other weights
                let mut library = S::wrap(&toy, &group, ONE_BUCKET).unwrap();
                library.load(&path, &group, step_of(by)).unwrap();
                let loaded = bits(&library.weights());
                library.step(Some(&toy.batch(3, 0, 0)), None).unwrap();
                library.descend(0.1);
                (loaded, bits(&library.weights()))
            });
            for (rank, (loaded, after)) in loaded.into_iter().enumerate() {
                assert_eq!(loaded, expected, "saved by {by} ranks, loaded by rank {rank} of {ranks}");
                assert_ne!(after, expected, "a step after loading changed nothing");
            }
        }
    }
}

/// A folder that goes when this goes.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("phalanx-saving-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // of a test that may have failed already
    }
}
