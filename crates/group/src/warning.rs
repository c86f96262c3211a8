//! Warnings that the user of a program must see: on stderr where the program has no `tracing` subscriber.

use std::convert::Infallible;
use std::io::Write;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

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
    drop(warn_on_a_thread(who, words));
}

/// As [`warn_aside`]; returns when it is written, unless that takes long: a program that ends soon has said it.
pub(crate) fn warn_first(who: &str, words: &str) {
    const LIMIT: Duration = Duration::from_millis(200);
    if tracing::dispatcher::has_been_set() {
        return warn(who, words);
    }
    // The other end is dropped when it is written, or no thread can be started.
    let _ = warn_on_a_thread(who, words).recv_timeout(LIMIT);
}

/// What comes of this ends with the thread.
fn warn_on_a_thread(who: &str, words: &str) -> Receiver<Infallible> {
    let (who, words) = (who.to_owned(), words.to_owned());
    let (written, is_written) = channel();
    let write = move || {
        warn(&who, &words);
        drop(written);
    };
    drop(std::thread::Builder::new().name("phalanx-stderr".into()).spawn(write));
    is_written
}
