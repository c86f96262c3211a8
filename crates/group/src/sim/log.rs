//! What happened in a run: a hash that two runs of one seed must share, and lines for people if they are wanted.

use super::random::mix;
use std::time::Instant;

/// Lines of what happened in a run.
#[derive(Debug, Clone)]
pub(super) struct Log {
    start: Instant,
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Log {
    /// `told`: lines are kept.
    pub(super) fn new(start: Instant, told: bool) -> Self {
        Self { start, hash: 0, lines: told.then(Vec::new) }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    pub(super) fn note(&mut self, now: Instant, what: &str, numbers: [usize; 3]) {
        self.add((now - self.start).as_nanos() as u64);
        self.add(what.len() as u64);
        numbers.into_iter().for_each(|n| self.add(n as u64));
        if self.lines.is_some() {
            self.tell(now, format!("{what} {numbers:?}"));
        }
    }

    pub(super) fn bytes(&mut self, now: Instant, numbers: [usize; 3], bytes: &[u8]) {
        self.note(now, "write", numbers);
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
        if self.lines.is_some() {
            self.tell(now, format!("  {} bytes", bytes.len()));
        }
    }

    /// A line that is made only where lines are kept; part of the hash in any case through `key`.
    pub(super) fn say(&mut self, now: Instant, key: u64, line: impl FnOnce() -> String) {
        self.add((now - self.start).as_nanos() as u64);
        self.add(key);
        if self.lines.is_some() {
            self.tell(now, line());
        }
    }

    fn tell(&mut self, now: Instant, line: String) {
        let at = (now - self.start).as_secs_f64();
        self.lines.get_or_insert_default().push(format!("{at:10.6} {line}"));
    }

    fn add(&mut self, word: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ word);
    }
}
