//! A rank that is stopped while it reads the memory of another, which gives up: it has an error then, and not what the other put there
//! next.

use super::*;
use std::sync::atomic::Ordering::SeqCst;

/// The rank that gives up, the one that is stopped, and the one that comes only then.
const GIVER: usize = 0;
const READER: usize = 1;
const LATE: usize = 2;

const LEN: usize = 3 << 20;

#[derive(Default)]
struct Scene {
    reader_is_stopped: AtomicBool,
    /// The others wait for nobody but the reader.
    others_are_done: AtomicBool,
    giver_gave_up: AtomicBool,
    reader_is_done: AtomicBool,
}

/// What each of the three does while it waits for another.
struct Part<'s> {
    scene: &'s Scene,
    rank: usize,
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

impl Scene {
    fn stop_the_reader(&self) {
        self.reader_is_stopped.store(true, SeqCst);
        wait_for(&self.giver_gave_up);
    }
}

impl WaitCheck for Part<'_> {
    fn look(&mut self, peer: usize, waited: Duration) -> Result<(), Stopped> {
        match (self.rank, peer) {
            (READER, LATE) if !self.scene.reader_is_stopped.load(SeqCst) => self.scene.stop_the_reader(),
            (LATE, READER) => self.scene.others_are_done.store(true, SeqCst),
            (GIVER, READER) if self.scene.others_are_done.load(SeqCst) => return Err(Stopped),
            _ => {}
        }
        Patient(Duration::from_secs(20)).look(peer, waited)
    }

    fn look_meanwhile(&mut self, _peer: usize) -> Result<(), Stopped> {
        Ok(())
    }
}

/// Performs `operation` on three ranks' buffers, windows or not. The reader is stopped when all it needs is there but what the late rank
/// gives; or before it begins, if it waits for none but the giver.
fn reader_is_stopped(
    window: bool,
    before: bool,
    operation: impl Fn(&mut Team, &mut Call<'_>, &mut [u8]) -> Result<(), Fault> + Sync,
) {
    let (scene, file) = (Scene::default(), create(window_len(3, LEN).unwrap()).unwrap());
    on_team(3, true, Reach::Memory, |rank| {
        let (mut plain, mut window) = (vec![1; LEN], window.then(|| super::window(rank, &file, LEN)));
        let buffer = window.as_mut().map_or(&mut plain[..], Window::bytes_mut);
        match rank.rank {
            READER if before => scene.stop_the_reader(),
            LATE => wait_for(&scene.reader_is_stopped),
            _ => {}
        }
        let signature = signature(OpKind::AllReduce, LEN);
        let mut part = Part { scene: &scene, rank: rank.rank };
        let mut call = Call { seq: 1, signature: &signature, wait_check: &mut part };
        let result = operation(&mut rank.team, &mut call, buffer);
        match rank.rank {
            GIVER => {
                assert!(matches!(result, Err(Fault::Stopped)), "{result:?}");
                buffer.fill(0xff);
                scene.giver_gave_up.store(true, SeqCst);
            }
            LATE => scene.others_are_done.store(true, SeqCst),
            _ => {
                scene.reader_is_done.store(true, SeqCst);
                assert!(matches!(result, Err(Fault::Closed { by: Some(GIVER) })), "{result:?}");
            }
        }
        // So long the buffer is there.
        wait_for(&scene.reader_is_done);
    });
}

fn block(rank: usize) -> Range<usize> {
    rank * LEN / 3..(rank + 1) * LEN / 3
}

#[test]
fn who_gathers() {
    for window in [false, true] {
        reader_is_stopped(window, false, |team, call, buffer| {
            let own = team.rank;
            let (part, largest) = (|_| block(own), LEN / 3);
            let transfer = Transfer {
                same: true,
                givers: Givers::All,
                largest,
                part: &part,
                place: Some(&block),
                own: None,
                layout: None,
            };
            team.pull(call, Buffers::InPlace(buffer), transfer)
        });
    }
}

#[test]
fn who_exchanges_in_place() {
    for window in [false, true] {
        reader_is_stopped(window, false, |team, call, buffer| {
            let transfer = Transfer {
                same: false,
                givers: Givers::All,
                largest: LEN / 3,
                part: &block,
                place: Some(&block),
                own: None,
                layout: None,
            };
            team.pull(call, Buffers::InPlace(buffer), transfer)
        });
    }
}

#[test]
fn who_only_takes() {
    for window in [false, true] {
        reader_is_stopped(window, true, |team, call, buffer| team.broadcast(call, buffer, GIVER));
        reader_is_stopped(window, true, |team, call, buffer| {
            let whole = |_| 0..LEN / 3;
            let place: Option<&dyn Fn(usize) -> Range<usize>> =
                if team.rank == GIVER { None } else { Some(&whole) };
            let transfer = Transfer {
                same: false,
                givers: Givers::Only(GIVER),
                largest: LEN / 3,
                part: &block,
                place,
                own: None,
                layout: None,
            };
            team.pull(call, Buffers::InPlace(buffer), transfer)
        });
    }
}

#[test]
fn who_combines() {
    for window in [false, true] {
        reader_is_stopped(window, false, |team, call, buffer| {
            let blocks = Layout::even(3, LEN / 4);
            team.reduce_scatter(call, Buffers::InPlace(buffer), &blocks, Rank::reduction(None))
        });
        for root in [None, Some(READER)] {
            reader_is_stopped(window, false, |team, call, buffer| {
                team.all_reduce(call, buffer, Rank::reduction(root))
            });
        }
    }
}
