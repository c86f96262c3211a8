//! A target for a fuzzer: what a launcher may say. It takes any input and panics where a promise is broken.

use crate::talk::{LINE_MAX, Lines, Step, Talk};

/// The first byte says who speaks, and how long the pieces are in which the rest comes. Whatever a launcher answers, the talk ends with a reason or
/// with what was heard, asks with one line at a time, and remembers no more than a few lines.
pub fn talk(data: &[u8]) {
    let Some((what, answers)) = data.split_first() else { return };
    let value = (what & 1 == 0).then_some("secret-word");
    let piece = usize::from(what >> 1) + 1;
    let (mut talk, first) = Talk::begin("key", value).expect("these are words");
    assert!(is_line(&first));
    let (mut lines, mut asked) = (Lines::default(), 0);
    for bytes in answers.chunks(piece) {
        if lines.push(bytes).is_err() {
            return;
        }
        loop {
            match lines.pop() {
                Ok(None) => break,
                Ok(Some(line)) => match talk.answer(&line) {
                    Ok(Step::Ask(next)) => {
                        asked += 1;
                        assert!(is_line(&next), "{next:?}");
                        assert!(asked <= 6, "the talk has no end");
                    }
                    Ok(Step::Heard(heard)) => return assert!(heard.len() <= 5 * LINE_MAX),
                    Err(fault) => {
                        let quoted = fault.to_string();
                        assert!(quoted.len() < 4 << 10, "{} bytes", quoted.len());
                        return;
                    }
                },
                Err(_) => return,
            }
        }
    }
}

fn is_line(text: &str) -> bool {
    text.starts_with("cmd=") && text.find('\n') == Some(text.len() - 1)
}
