//! Bytes in, whole lines out; and the memory of the last few. Pure.

use crate::outcome::TAIL_LINES;
use std::collections::VecDeque;

/// Longest piece of output kept back while its end is awaited. A longer line is passed on in pieces of this size.
const LINE_LEN_MAX: usize = 64 * 1024;

/// Longest line that a [`Tail`] quotes, in characters.
const QUOTE_LEN_MAX: usize = 500;

/// What ended a piece of output.
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

/// The last [`TAIL_LINES`] lines.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    /// The last line will be drawn over by the next.
    redraw: bool,
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
        self.lines.push_back(text);
        self.redraw = end == End::Redraw;
    }

    pub(crate) fn to_vec(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
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
        let lines = tail.to_vec();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines[0], format!("line {}", 100 - TAIL_LINES + 1));
        assert_eq!(lines[TAIL_LINES - 2..], ["line 99", "100%"]);
    }

    #[test]
    fn the_tail_shortens_what_nobody_could_read() {
        let mut tail = Tail::default();
        tail.push("é".repeat(QUOTE_LEN_MAX + 1).as_bytes(), End::Line);
        assert_eq!(tail.to_vec(), ["é".repeat(QUOTE_LEN_MAX) + "…"]);
    }
}
