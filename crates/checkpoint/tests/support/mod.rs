//! What the ranks of a job write, for tests that read it while the job runs.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub(crate) struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// What any rank said after `word`, line by line.
    pub(crate) fn said(&self, word: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| Some(line.split_once("] ")?.1));
        lines.filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect()
    }
}
