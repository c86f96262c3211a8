//! Whose turn it is: libraries that are compared have ranks at the same time, of which all wait but one library's.
//!
//! A machine that other guests share is faster in one second than in the next. Starting the ranks of a library takes a second or more, so
//! libraries that were started one after the other would each be measured on another machine. Here the ranks of all libraries are
//! started first, and a turn, one case of one library, begins right after the turn before.
//!
//! Each rank connects to the port that its task names, and reads. A byte that comes says that the turn is its library's; the byte that it
//! writes says that its turn is over. A rank that waits does so in the kernel and takes no core. The peers' programs do the same (`peers/method.h`).
//!
//! Ranks that wake up together often share a core at first. So each spins for a while before it measures: the scheduler moves one of two that do
//! within a few milliseconds. Without that an all_reduce of 1 KiB took 8 ms in some turns.

use crate::task::Task;
use phalanx::{Error, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a rank spins before it measures.
const SETTLE: Duration = Duration::from_millis(10);
/// How often one looks whether a rank has come.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The turns of one library's ranks, given by the process that started them.
#[derive(Debug)]
pub(crate) struct Turns {
    listener: TcpListener,
    ranks: Vec<TcpStream>,
}

impl Turns {
    /// # Errors
    /// `Io`: there is no port to listen at.
    pub(crate) fn new() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|e| Error::io("listening for the ranks that take turns", e))?;
        Ok(Self { listener, ranks: Vec::new() })
    }

    /// What the ranks connect to.
    ///
    /// # Errors
    /// `Io`: the system does not say.
    pub(crate) fn port(&self) -> Result<u16> {
        let address = self.listener.local_addr();
        Ok(address.map_err(|e| Error::io("listening for the ranks that take turns", e))?.port())
    }

    /// Waits until `ranks` ranks have come.
    ///
    /// # Errors
    /// `TimedOut`: they have not after `patience`. `UnexpectedEof`: `is_over` says that they won't. What accepting a connection returns.
    pub(crate) fn meet(
        &mut self,
        ranks: usize,
        patience: Duration,
        mut is_over: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let begun = Instant::now();
        while self.ranks.len() < ranks {
            match self.listener.accept() {
                Ok((rank, _)) => {
                    rank.set_nonblocking(false)?;
                    rank.set_nodelay(true)?;
                    self.ranks.push(rank);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if is_over() {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    if begun.elapsed() > patience {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    thread::sleep(LOOK_EVERY);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets the ranks measure one case, and waits until all have.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut`: they have not after `patience`. Any other: one has ended.
    pub(crate) fn give(&mut self, patience: Duration) -> io::Result<()> {
        for rank in &mut self.ranks {
            rank.write_all(&[0])?;
        }
        for rank in &mut self.ranks {
            rank.set_read_timeout(Some(patience))?;
            rank.read_exact(&mut [0])?;
        }
        Ok(())
    }
}

/// A rank's end of it.
#[derive(Debug)]
pub(crate) struct Turn(Option<TcpStream>);

impl Turn {
    /// Of a task that is measured alone it is always the turn.
    ///
    /// # Errors
    /// `Io`: the benchmark, which gives the turns, is not there.
    pub(crate) fn of(task: &Task) -> Result<Self> {
        let connect = |port| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true).map(|()| stream)
        };
        let stream = task.turns.map(connect).transpose();
        stream.map(Self).map_err(|e| Error::io("connecting to the benchmark, which gives the turns", e))
    }

    /// Waits for the turn, takes it, and hands it back.
    ///
    /// # Errors
    /// `Io`: the benchmark, which gives the turns, has ended. What `measure` returns.
    pub(crate) fn take(&mut self, measure: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(stream) = &mut self.0 else { return measure() };
        stream.read_exact(&mut [0]).map_err(|e| Error::io("waiting for a turn", e))?;
        let begun = Instant::now();
        while begun.elapsed() < SETTLE {
            std::hint::spin_loop();
        }
        measure()?;
        stream.write_all(&[0]).map_err(|e| Error::io("handing a turn back", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::tests::task;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_measures_out_of_turn() {
        // Two libraries of two ranks each, and how many turns their ranks have taken.
        let taken = [const { AtomicUsize::new(0) }; 2];
        thread::scope(|scope| {
            let mut libraries: Vec<_> = taken
                .iter()
                .map(|taken| {
                    let turns = Turns::new().unwrap();
                    let task = Task { turns: Some(turns.port().unwrap()), ..task() };
                    for _ in 0..2 {
                        let task = task.clone();
                        scope.spawn(move || {
                            let mut turn = Turn::of(&task).unwrap();
                            for _ in 0..3 {
                                turn.take(|| {
                                    taken.fetch_add(1, SeqCst);
                                    Ok(())
                                })
                                .unwrap();
                            }
                        });
                    }
                    turns
                })
                .collect();
            for turns in &mut libraries {
                turns.meet(2, PATIENCE, || false).unwrap();
            }
            for (number, library) in [(1, 1), (2, 1), (1, 0), (3, 1), (2, 0), (3, 0)] {
                let before = taken[1 - library].load(SeqCst);
                libraries[library].give(PATIENCE).unwrap();
                assert_eq!(taken[library].load(SeqCst), 2 * number);
                assert_eq!(taken[1 - library].load(SeqCst), before);
            }
        });
    }

    #[test]
    fn a_library_that_ends_or_is_stuck_has_no_more_turns() {
        let mut turns = Turns::new().unwrap();
        let kind = |missed: io::Result<()>| missed.unwrap_err().kind();
        assert_eq!(kind(turns.meet(1, PATIENCE, || true)), ErrorKind::UnexpectedEof);
        assert_eq!(kind(turns.meet(1, Duration::ZERO, || false)), ErrorKind::TimedOut);
        let task = Task { turns: Some(turns.port().unwrap()), ..task() };
        let turn = Turn::of(&task).unwrap();
        turns.meet(1, PATIENCE, || false).unwrap();
        let late = kind(turns.give(Duration::from_millis(1)));
        assert!([ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&late), "{late}");
        drop(turn);
        let ended = kind(turns.give(PATIENCE));
        assert!(![ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&ended), "{ended}");
    }

    #[test]
    fn ranks_notice_that_nobody_gives_turns_any_more() {
        let mut turns = Turns::new().unwrap();
        let task = Task { turns: Some(turns.port().unwrap()), ..task() };
        let mut turn = Turn::of(&task).unwrap();
        turns.meet(1, PATIENCE, || false).unwrap();
        drop(turns);
        let error = turn.take(|| panic!("it is nobody's turn")).unwrap_err();
        assert!(error.to_string().contains("waiting for a turn"), "{error}");
    }
}
