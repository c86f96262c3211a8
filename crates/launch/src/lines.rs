//! Bytes in, whole lines out; and the memory of the last few. Pure.

use crate::outcome::TAIL_LINES;
use std::collections::VecDeque;

/// Longest piece of output kept back while its end is awaited. A longer line is passed on in pieces of this size.
const LINE_LEN_MAX: usize = 64 * 1024;

/// Longest line that a [`Tail`] quotes, in characters.
const QUOTE_LEN_MAX: usize = 500;

/// The end of a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A line feed; or the end of the output, or the longest length there is, where one was missing.
    Line,
    /// A carriage return alone: a progress bar that will be drawn over.
    Redraw,
}

/// Cuts a stream of bytes, which need not be UTF-8, into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    partial: Vec<u8>,
    /// The last byte was a carriage return, and what follows decides what it meant.
    returned: bool,
}

impl Lines {
    /// Takes the next bytes and hands each piece that they complete to `emit`, without its terminator.
    pub(crate) fn push(&mut self, bytes: &[u8], mut emit: impl FnMut(&[u8], End)) {
        for &byte in bytes {
            if self.returned {
                self.returned = false;
                let end = if byte == b'\n' { End::Line } else { End::Redraw };
                self.flush(end, &mut emit);
                if end == End::Line {
                    continue;
                }
            }
            match byte {
                b'\r' => self.returned = true,
                b'\n' => self.flush(End::Line, &mut emit),
                _ => {
                    self.partial.push(byte);
                    if self.partial.len() == LINE_LEN_MAX {
                        self.flush(End::Line, &mut emit);
                    }
                }
            }
        }
    }

    /// The stream is at its end: hands out what is left.
    pub(crate) fn finish(mut self, mut emit: impl FnMut(&[u8], End)) {
        if self.returned || !self.partial.is_empty() {
            self.flush(End::Line, &mut emit);
        }
    }

    fn flush(&mut self, end: End, emit: &mut impl FnMut(&[u8], End)) {
        emit(&self.partial, end);
        self.partial.clear();
    }
}

/// The parts of a process's stderr that the report quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Quote {
    /// The last [`TAIL_LINES`] lines.
    pub(crate) lines: Vec<String>,
    /// Its latest panics, without backtraces.
    pub(crate) panic: Vec<String>,
}

/// The last [`TAIL_LINES`] lines, and what panics have said: their backtraces are longer.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    /// The last line will be drawn over by the next.
    redraw: bool,
    panics: Panics,
}

impl Tail {
    pub(crate) fn push(&mut self, line: &[u8], end: End) {
        if self.redraw || self.lines.len() == TAIL_LINES {
            if self.redraw {
                self.lines.pop_back()
            } else {
                self.lines.pop_front()
            };
        }
        let text = String::from_utf8_lossy(line);
        let text = match text.char_indices().nth(QUOTE_LEN_MAX) {
            Some((cut, _)) => format!("{}…", &text[..cut]),
            None => text.into_owned(),
        };
        self.panics.push(&text);
        self.lines.push_back(text);
        self.redraw = end == End::Redraw;
    }

    pub(crate) fn quote(&self) -> Quote {
        Quote {
            lines: self.lines.iter().cloned().collect(),
            panic: self.panics.latest.iter().flatten().cloned().collect(),
        }
    }
}

/// The messages of the latest panics: one is often followed by another that only passes it on.
#[derive(Debug, Default)]
struct Panics {
    latest: VecDeque<Vec<String>>,
    /// Whether the last one may have more lines.
    is_open: bool,
}

impl Panics {
    const MOST: usize = 2;
    const LINES_MAX: usize = 8;

    fn push(&mut self, line: &str) {
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            if self.latest.len() == Self::MOST {
                self.latest.pop_front();
            }
            self.latest.push_back(vec![line.to_owned()]);
            self.is_open = true;
        } else if let Some(panic) = self.latest.back_mut().filter(|_| self.is_open) {
            let is_over = line.starts_with("stack backtrace:") || line.starts_with("note: ");
            if is_over || panic.len() == Self::LINES_MAX {
                self.is_open = false;
            } else {
                panic.push(line.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines shown as text, a redraw as `~`, after pushing `chunks` one by one.
    fn cut(chunks: &[&[u8]]) -> Vec<String> {
        let mut out = Vec::new();
        let mut emit = |line: &[u8], end| {
            let mark = if end == End::Redraw { "~" } else { "" };
            out.push(format!("{}{mark}", String::from_utf8_lossy(line)));
        };
        let mut lines = Lines::default();
        chunks.iter().for_each(|chunk| lines.push(chunk, &mut emit));
        lines.finish(&mut emit);
        out
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(cut(&[b"on", b"e\ntw", b"o\n"]), ["one", "two"]);
        assert_eq!(cut(&[b"\n\n"]), ["", ""]);
        assert_eq!(cut(&[b"no end"]), ["no end"]);
        assert_eq!(cut(&[]), [""; 0]);
        assert_eq!(cut(&[b"\xff\xfe\n"]), ["\u{fffd}\u{fffd}"]);
    }

    #[test]
    fn carriage_returns_redraw_unless_a_line_feed_follows() {
        assert_eq!(cut(&[b"10%\r20%\r", b"30%\ndone\r\n"]), ["10%~", "20%~", "30%", "done"]);
        assert_eq!(cut(&[b"split\r", b"\nnext\n"]), ["split", "next"]);
        assert_eq!(cut(&[b"last\r"]), ["last"]);
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        let pieces = cut(&[&vec![b'x'; 2 * LINE_LEN_MAX + 3]]);
        assert_eq!(pieces.iter().map(String::len).collect::<Vec<_>>(), [LINE_LEN_MAX, LINE_LEN_MAX, 3]);
    }

    proptest! {
        #[test]
        fn where_chunks_are_cut_makes_no_difference(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..60),
            at in 0usize..60,
        ) {
            let (left, right) = bytes.split_at(at.min(bytes.len()));
            prop_assert_eq!(cut(&[left, right]), cut(&[&bytes]));
        }
    }

    #[test]
    fn the_tail_keeps_the_last_lines_and_of_a_progress_bar_only_the_last_state() {
        let mut tail = Tail::default();
        for i in 0..100 {
            tail.push(format!("line {i}").as_bytes(), End::Line);
        }
        for i in 0..100 {
            tail.push(format!("{i}%").as_bytes(), End::Redraw);
        }
        tail.push(b"100%", End::Line);
        let lines = tail.quote().lines;
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines[0], format!("line {}", 100 - TAIL_LINES + 1));
        assert_eq!(lines[TAIL_LINES - 2..], ["line 99", "100%"]);
    }

    #[test]
    fn the_tail_shortens_what_nobody_could_read() {
        let mut tail = Tail::default();
        tail.push("é".repeat(QUOTE_LEN_MAX + 1).as_bytes(), End::Line);
        assert_eq!(tail.quote().lines, ["é".repeat(QUOTE_LEN_MAX) + "…"]);
    }

    #[test]
    fn what_a_panic_says_is_kept_whatever_follows() {
        let mut tail = Tail::default();
        let mut push = |line: &str| tail.push(line.as_bytes(), End::Line);
        push("epoch 3");
        for (thread, words) in
            [("old", "forgotten"), ("loader", "no such file"), ("main", "a thread panicked")]
        {
            push("");
            push(&format!("thread '{thread}' (77) panicked at src/main.rs:7:5:"));
            push(words);
            push("stack backtrace:");
            (0..100).for_each(|i| push(&format!("  {i}: main")));
            push("note: Some details are omitted");
        }
        let expected = [
            "thread 'loader' (77) panicked at src/main.rs:7:5:",
            "no such file",
            "thread 'main' (77) panicked at src/main.rs:7:5:",
            "a thread panicked",
        ];
        assert_eq!(tail.quote().panic, expected);
    }

    #[test]
    fn a_panic_without_an_end_is_cut() {
        let mut tail = Tail::default();
        tail.push(b"thread 'main' panicked at src/main.rs:7:5:", End::Line);
        (0..100).for_each(|_| tail.push(b"more", End::Line));
        assert_eq!(tail.quote().panic.len(), Panics::LINES_MAX);
    }
}
