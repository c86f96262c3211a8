//! The stream of a session, cut anywhere.

use crate::reception::{Inbox, MESSAGE_LEN_MAX, framed};

/// The same messages come out however the stream is cut, up to the same error; and what is held is what has arrived.
pub fn sessions(data: &[u8]) {
    let Some((&grain, stream)) = data.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    assert_eq!(read(stream, usize::from(grain) + 1), whole, "a cut changed the messages");
    let again: Vec<u8> = whole.0.iter().flat_map(|message| framed(message)).collect();
    assert!(stream.starts_with(&again), "messages are not what was sent");
}

fn read(stream: &[u8], grain: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut inbox, mut messages) = (Inbox::default(), Vec::new());
    for part in stream.chunks(grain) {
        inbox.push(part);
        loop {
            match inbox.pop() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return (messages, false),
            }
        }
        assert!(inbox.len() <= 4 + MESSAGE_LEN_MAX + grain, "more is held than one message");
    }
    (messages, true)
}
