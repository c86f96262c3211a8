//! A target for a fuzzer: what launchers of several hosts promise about what others say to them. It takes any input and panics where a promise is broken.

use crate::event::Event;
use crate::hosts::letter::Letter;
use crate::hosts::protocol::{encode, order, word};
use crate::hosts::reception::{Board, Reception};
use phalanx_transport::handshake::Hello;
use phalanx_transport::{Admission, Outbox, Service};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

const NODES: usize = 3;

/// Messages of agents and of leaders, and letters: the first byte chooses which. What is read is what was written, and what an agent
/// says never ends the leader.
pub fn hosts(data: &[u8]) {
    let Some((what, rest)) = data.split_first() else { return };
    match what % 4 {
        0 => {
            if let Ok(word) = word(rest) {
                assert_eq!(crate::hosts::protocol::word(&encode(&word)), Ok(word));
            }
        }
        1 => {
            if let Ok(order) = order(rest) {
                assert_eq!(crate::hosts::protocol::order(&encode(&order)), Ok(order));
            }
        }
        2 => {
            if let Ok(letter) = Letter::read(rest) {
                let again = letter.to_bytes().expect("it was one");
                assert_eq!(Letter::read(&again[..]).expect("it was written"), letter);
                let _ = letter.open(1, Vec::new());
            }
        }
        _ => reception(rest),
    }
}

/// Agents come, go, and say anything: two bytes say who and what, and how long a message is.
fn reception(mut rest: &[u8]) {
    let (events, heard) = channel();
    let board = Arc::<Board>::default();
    let mut reception = Reception::new(NODES, None, events, Arc::clone(&board));
    let mut outbox = Outbox::default();
    let mut open = Vec::new();
    let mut next = 0;
    while let [who, what, more @ ..] = rest {
        let hello = Hello::agent(usize::from(who % 4), NODES);
        match what % 4 {
            0 => {
                if Service::<std::net::TcpStream>::admit(&mut reception, &hello) == Admission::Serve {
                    next += 1;
                    open.push(next);
                    Service::<std::net::TcpStream>::opened(&mut reception, next, &hello, &mut outbox);
                }
                rest = more;
            }
            1 => {
                if let Some(session) = open.pop() {
                    Service::<std::net::TcpStream>::closed(&mut reception, session, &mut outbox);
                }
                rest = more;
            }
            _ => {
                let (message, after) = more.split_at(usize::from(what / 4).min(more.len()));
                let session = open.get(usize::from(*who) % open.len().max(1)).copied().unwrap_or(0);
                Service::<std::net::TcpStream>::message(&mut reception, session, message, &mut outbox);
                rest = after;
            }
        }
        Service::<std::net::TcpStream>::poll(&mut reception, Instant::now(), &mut outbox);
        let present = board.lock();
        assert!(present.keys().all(|node| (1..NODES).contains(node)), "nobody has that number: {present:?}");
    }
    drop(reception);
    // No agent can say that a rank of this job has ended, which was told to start none.
    assert!(heard.iter().all(|event| matches!(event, Event::Host(_) | Event::Signal(_))));
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_few_inputs_are_survived() {
        for input in [&[][..], &[0], &[3, 1, 0, 1, 8, 0], &[3, 1, 0, 0, 2, 9, 9], &[2, 255, 255, 255, 255]] {
            super::hosts(input);
        }
    }
}
