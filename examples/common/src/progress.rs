//! How far a training is: a bar on a terminal, a line now and then elsewhere.
//!
//! A rank's output is a pipe, so it cannot draw. If the process that started the ranks has a terminal, rank 0 prints a marked line
//! each step, and a [`Relay`] in that process makes a bar of them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "showing progress is what this is for")]

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The environment variable that asks for marked lines.
pub const RELAY: &str = "EXAMPLE_RELAY_PROGRESS";
/// What marks them.
const MARK: &str = "@progress ";

/// Shows steps and what is to be said of them.
#[derive(Debug)]
pub struct Progress {
    view: View,
    steps: u64,
    started: Instant,
}

#[derive(Debug)]
enum View {
    Bar(ProgressBar),
    Marked,
    Lines,
}

impl Progress {
    /// Begins to show a run of `steps` steps.
    pub fn new(steps: u64) -> Self {
        let bar = bar();
        let view = if std::env::var_os(RELAY).is_some() {
            View::Marked
        } else if bar.is_hidden() {
            View::Lines
        } else {
            View::Bar(bar)
        };
        Self { view, steps, started: Instant::now() }
    }

    /// So many steps are done.
    pub fn step(&self, step: u64, message: &str) {
        let update = Update { step, steps: self.steps, message };
        match &self.view {
            View::Bar(bar) => update.show(bar),
            View::Marked => println!("{}", update.to_line()),
            View::Lines => {}
        }
    }

    /// Something to say where there is no bar.
    pub fn line(&self, message: &str) {
        if let View::Lines = self.view {
            println!("{message}");
        }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A bar on the standard error output; hidden if that is not a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {msg}, {eta} left").expect("the template is valid");
    ProgressBar::new(1).with_style(style)
}

/// Passes on what the ranks print, but turns marked lines into a bar.
#[derive(Debug)]
pub struct Relay<W> {
    bar: ProgressBar,
    output: W,
    /// The output has had the beginning of the next line, and is to have its end, whatever that looks like.
    is_within_line: bool,
    seen: Seen,
}

/// The latest step of which a relay has read, and how many there are.
pub type Seen = Arc<Mutex<(u64, u64)>>;

/// Relays for the standard output and the standard error output that know of each other's bar.
pub fn relays() -> (Relay<io::Stdout>, Relay<io::Stderr>) {
    let (bar, seen) = (bar(), Seen::default());
    (Relay::new(bar.clone(), io::stdout(), seen.clone()), Relay::new(bar, io::stderr(), seen))
}

impl<W> Relay<W> {
    fn new(bar: ProgressBar, output: W, seen: Seen) -> Self {
        Self { bar, output, is_within_line: false, seen }
    }

    /// Whether there is a terminal to draw the bar on.
    pub fn draws(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// How far the training is.
    pub fn seen(&self) -> Seen {
        self.seen.clone()
    }
}

impl<W: Write> Write for Relay<W> {
    /// Expects whole lines, and takes one at a time: an error means that nothing of what was given has been shown.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let line = lines.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
        let text = std::str::from_utf8(line).ok().filter(|_| !self.is_within_line);
        if let Some(update) = text.and_then(Update::from_line) {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = (update.step, update.steps);
            update.show(&self.bar);
            return Ok(line.len());
        }
        let written = if self.bar.is_finished() {
            self.output.write(line)?
        } else {
            self.bar.suspend(|| self.output.write(line))?
        };
        self.is_within_line = written < line.len();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// What a marked line says.
#[derive(Debug, PartialEq)]
struct Update<'a> {
    step: u64,
    steps: u64,
    message: &'a str,
}

impl<'a> Update<'a> {
    fn show(&self, bar: &ProgressBar) {
        bar.set_length(self.steps);
        bar.set_message(self.message.to_owned());
        bar.set_position(self.step);
        if self.step == self.steps {
            bar.finish();
            if !bar.is_hidden() {
                eprintln!(); // what comes next begins on a line of its own
            }
        }
    }

    fn to_line(&self) -> String {
        format!("{MARK}{} {} {}", self.step, self.steps, self.message)
    }

    /// The launcher may have put something before the mark.
    fn from_line(line: &'a str) -> Option<Self> {
        let mut words = line.split_once(MARK)?.1.trim_end().splitn(3, ' ');
        let mut number = || words.next()?.parse().ok();
        Some(Self { step: number()?, steps: number()?, message: words.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_survive_the_pipe_and_other_lines_pass() {
        let update = Update { step: 3, steps: 20, message: "epoch  1/2, loss 2.1" };
        assert_eq!(Update::from_line(&format!("[0] {}\n", update.to_line())), Some(update));

        let mut relay = Relay::new(ProgressBar::hidden(), Vec::new(), Seen::default());
        relay.write_all(b"[1] hello\n[0] @progress 2 3 on\n[0] @progress x\n").unwrap();
        assert_eq!(relay.output, b"[1] hello\n[0] @progress x\n");
        assert_eq!((relay.bar.position(), relay.bar.length()), (2, Some(3)));
        assert_eq!(*relay.seen().lock().unwrap(), (2, 3));
    }

    /// Takes 20 bytes every other time, and nothing in between.
    struct Nonblocking(Vec<u8>, bool);

    impl Write for Nonblocking {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                self.0.write(&bytes[..bytes.len().min(20)])
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_would_block_is_given_each_line_once() {
        let lines =
            b"[0] one\n[0] two\n[0] not a number: @progress x @progress 2 3 on\n[0] @progress 1 3 on\nend\n";
        let mut relay = Relay::new(ProgressBar::hidden(), Nonblocking(Vec::new(), false), Seen::default());
        let mut rest = &lines[..];
        while !rest.is_empty() {
            match relay.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        let shown = String::from_utf8(relay.output.0).unwrap();
        assert_eq!(shown, "[0] one\n[0] two\n[0] not a number: @progress x @progress 2 3 on\nend\n");
        assert_eq!(*relay.seen.lock().unwrap(), (1, 3));
    }
}
