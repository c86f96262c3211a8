//! Handshakes that come in pieces, and with whatever else.

use super::stream::Stream;
use crate::Secret;
use crate::endpoint::{Handshaking, Progress};
use crate::handshake::{Acceptor, AcceptorStep, Dialer, DialerStep, Hello, Purpose, Status};
use arbitrary::{Result, Unstructured};
use phalanx_core::WORLD;
use std::time::Instant;

/// How one end of a handshake found it.
#[derive(Debug, PartialEq)]
enum End {
    Unfinished,
    Done(Option<Hello>),
    Failed,
}

/// However what comes is cut, it has the same outcome, and no byte behind the handshake is taken.
pub fn pieces(data: &[u8]) {
    let _ = try_pieces(&mut Unstructured::new(data));
}

fn try_pieces(input: &mut Unstructured<'_>) -> Result<()> {
    let what: u8 = input.arbitrary()?;
    let secret = Secret::from_hex(&"5a".repeat(Secret::LEN)).expect("64 digits");
    let secret = if what & 1 == 1 { secret.encrypting() } else { secret };
    let hello = Hello { purpose: Purpose::Data, rank: 1, called: 0, world_size: 2, group: WORLD };
    let dial = || Dialer::new(secret.clone(), hello, [1; 32]);
    let acceptor = || Acceptor::new(secret.clone(), [2; 32]);
    // What honest ends say. Sealed ones make a key pair, so they say something else each time: only their first words are the same.
    let (mut dialer, opening) = dial();
    let mut called = acceptor();
    let Ok(AcceptorStep::Send(challenge)) = called.handle(&opening) else { panic!("a good opening") };
    let Ok(DialerStep::Send(proof)) = dialer.handle(&challenge) else { panic!("a good challenge") };
    called.handle(&proof).expect("a good proof");
    let is_called = what & 2 == 2;
    let mut said = if is_called {
        [opening, proof].concat()
    } else {
        [challenge, called.verdict(Status::Welcome)].concat()
    };
    let (honest, len) = (said.clone(), said.len());
    for _ in 0..what >> 2 & 3 {
        let (at, change): (u8, u8) = (input.arbitrary()?, input.arbitrary()?);
        said[usize::from(at) % len] ^= change;
    }
    said.truncate(if what & 16 == 16 { usize::from(input.arbitrary::<u8>()?) } else { len });
    let is_honest = said == honest;
    said.extend_from_slice(b"what follows");
    let cuts: Vec<usize> = input.bytes(input.len())?.iter().map(|&cut| 1 + usize::from(cut)).collect();
    let run = |cuts: &[usize]| {
        let stream = Stream::default();
        let half = if is_called {
            Handshaking::accepted(stream.clone(), acceptor(), Instant::now())
        } else {
            let (dialer, first) = dial();
            Handshaking::dialled(stream.clone(), dialer, first, Instant::now())
        };
        shake(half, &stream, &said, cuts)
    };
    let (whole, left) = run(&[]);
    let (cut, left_cut) = run(&cuts);
    assert_eq!(cut, whole, "a cut changed the outcome");
    if let End::Done(proved) = whole {
        assert_eq!(
            (left, left_cut),
            (said.len() - len, said.len() - len),
            "more was taken than the handshake"
        );
        assert!(is_honest && proved == is_called.then_some(hello), "{proved:?} was taken for honest");
    } else if is_honest && (is_called || !secret.encrypts()) {
        // The verdict for another key pair is none for this one.
        panic!("an honest handshake has failed");
    }
    Ok(())
}

/// Lets an end hear `said` in pieces of the lengths `cuts`, and then the rest; how it ends, and how much it has not taken.
fn shake(mut half: Handshaking<Stream>, stream: &Stream, said: &[u8], cuts: &[usize]) -> (End, usize) {
    let (mut later, mut proved) = (said, None);
    let mut cuts = cuts.iter().copied();
    loop {
        let next = cuts.next();
        later = stream.moves(later, next.unwrap_or(usize::MAX));
        loop {
            match half.advance() {
                Progress::Proved(hello) => {
                    proved = Some(hello);
                    half.answer(Status::Welcome);
                }
                Progress::Pending if next.is_some() => break,
                Progress::Pending => return (End::Unfinished, 0),
                Progress::Done => return (End::Done(proved), later.len() + stream.state().incoming.len()),
                Progress::Failed(_) => return (End::Failed, 0),
            }
        }
    }
}
