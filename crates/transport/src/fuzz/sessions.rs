//! The stream of a session, cut anywhere.

use super::stream::Stream;
use crate::Connection;
use crate::endpoint::{Inbox, MESSAGE_LEN_MAX, Message, ServerSession};

/// Little, so that it is soon too much.
const LEN_MAX: usize = 200;

/// The same messages come out however the stream is cut, up to the same error; and what is held is what has arrived, and no more
/// than one message.
pub fn sessions(data: &[u8]) {
    let Some((&grain, stream)) = data.split_first() else { return };
    let grain = usize::from(grain) + 1;
    let whole = read(stream, stream.len().max(1), MESSAGE_LEN_MAX);
    assert_eq!(read(stream, grain, MESSAGE_LEN_MAX), whole, "a cut changed the messages");
    let again = framed_all(&whole.0);
    assert!(stream.starts_with(&again), "messages are not what was sent");
    read(stream, grain, LEN_MAX);
    assert_eq!(serve(stream, grain), whole, "a server hears other messages");
}

fn framed_all(messages: &[Vec<u8>]) -> Vec<u8> {
    messages.iter().flat_map(|message| Message::new(message).framed().to_vec()).collect()
}

fn read(stream: &[u8], grain: usize, len_max: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut inbox, mut messages) = (Inbox::of_at_most(len_max), Vec::new());
    for part in stream.chunks(grain) {
        inbox.push(part);
        loop {
            match inbox.pop() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return (messages, false),
            }
        }
        let (held, memory) = inbox.held();
        assert!(held < 4 + len_max, "{held} bytes are held of a message of at most {len_max}");
        assert!(memory <= 64 + 2 * stream.len(), "memory for {memory} of {} bytes", stream.len());
    }
    (messages, true)
}

/// As the endpoint does, with a client that gives and takes few bytes at a time, and gets back what it says.
fn serve(stream: &[u8], grain: usize) -> (Vec<Vec<u8>>, bool) {
    let client = Stream::default();
    let mut server_session = ServerSession::new(Connection::new(client.clone(), None));
    let (mut later, mut messages) = (stream, Vec::new());
    while !later.is_empty() {
        later = client.moves(later, grain);
        let (heard, state) = server_session.receive();
        heard.iter().for_each(|message| server_session.queue(Message::new(message)).expect("it is little"));
        messages.extend(heard);
        server_session.flush();
        if state.is_err() {
            return (messages, false);
        }
    }
    client.state().room = usize::MAX;
    server_session.flush();
    assert!(
        !server_session.is_writing() && client.state().outgoing == framed_all(&messages),
        "it hears something else"
    );
    (messages, true)
}
