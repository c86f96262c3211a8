//! Warnings that the user of a program must see: on stderr where the program has no `tracing` subscriber.

use std::io::Write;

/// Warns in the name of `who`. It returns when that is written, so the process may end then; a stderr that nobody reads holds it up.
pub fn warn(who: &str, words: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{who}: {words}");
    } else {
        // There is nobody else to tell that stderr is closed.
        let _ = std::io::stderr().write_all(format!("phalanx: {who}: {words}\n").as_bytes());
    }
}

/// Warns in the name of `who`. A stderr that nobody reads holds up only a thread of its own.
pub(crate) fn warn_aside(who: &str, words: &str) {
    if tracing::dispatcher::has_been_set() {
        return warn(who, words);
    }
    let (who, words) = (who.to_owned(), words.to_owned());
    drop(std::thread::Builder::new().name("phalanx-stderr".into()).spawn(move || warn(&who, &words)));
}
