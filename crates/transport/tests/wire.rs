//! Frames over byte pipes: order, interleaving, things that arrive early, things that should not arrive.

use phalanx_core::{CallSite, DType, Method, OpKind, Signature};
use phalanx_transport::thread::{Pipes, ThreadTransport};
use phalanx_transport::{
    AtOnce, Channel, FRAME_LEN, Key, LinkFault, Outbound, Transport, Wire, WireFault, encode_signature,
};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn collective(seq: u64) -> Key {
    Key { channel: Channel::Collective, id: seq }
}

fn tag(tag: u64) -> Key {
    Key { channel: Channel::Message, id: tag }
}

fn signature() -> Signature {
    let site = CallSite { file: "train.rs".into(), line: 7 };
    Signature {
        op: OpKind::Send,
        dtype: Some(DType::U8),
        count: 3,
        reduce: None,
        root: None,
        detail: 0,
        method: Method::UNSAID,
        site,
    }
}

fn pair() -> (Wire, Wire) {
    joined(false)
}

fn joined(checked: bool) -> (Wire, Wire) {
    let pipes = Pipes::new(2);
    let end = |rank| Wire::with_checksums(Box::new(pipes.end(rank)), checked);
    (end(0), end(1))
}

/// With and without checksums.
fn pairs() -> [(Wire, Wire); 2] {
    [false, true].map(joined)
}

/// Sends what can be sent of `payload` now; returns how much that was.
fn send(wire: &mut Wire, key: Key, signature: &[u8], payload: &[u8]) -> usize {
    let message =
        Outbound { peer: 1, key, ordinal: 0, fingerprint: 42, signature, message_len: payload.len() as u64 };
    let mut done = 0;
    loop {
        let sent = wire.send(&message, &payload[done..]).expect("the link is up");
        done += sent.payload;
        if !sent.complete || done == payload.len() {
            return done;
        }
    }
}

/// Receives a whole message that has arrived.
fn recv(wire: &mut Wire, key: Key) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        let arrival = wire.arrival(0, key).expect("the link is up")?;
        let mut left = arrival.left;
        while left > 0 {
            let mut part = vec![0; left];
            let n = wire.read(0, key, &mut part).expect("the link is up");
            assert!(n > 0, "all of it was sent");
            message.extend_from_slice(&part[..n]);
            left -= n;
        }
        wire.finish(0, key);
        if message.len() as u64 == arrival.header.message_len {
            return Some(message);
        }
    }
}

#[test]
fn messages_arrive_whole_and_in_order() {
    for (mut a, mut b) in pairs() {
        assert_eq!(recv(&mut b, tag(1)), None);
        for text in [&b"one"[..], b"", b"three"] {
            assert_eq!(send(&mut a, tag(1), &[], text), text.len());
        }
        for text in [&b"one"[..], b"", b"three"] {
            assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(text));
        }
        assert_eq!(recv(&mut b, tag(1)), None);
    }
}

#[test]
fn what_is_wanted_later_waits_aside() {
    for (mut a, mut b) in pairs() {
        for (key, text) in [(tag(1), "a"), (collective(9), "b"), (tag(2), "c"), (tag(1), "d")] {
            send(&mut a, key, &[], text.as_bytes());
        }
        assert_eq!(recv(&mut b, tag(2)).as_deref(), Some(&b"c"[..]));
        assert_eq!(recv(&mut b, collective(9)).as_deref(), Some(&b"b"[..]));
        assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"a"[..]));
        assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"d"[..]));
    }
}

#[test]
fn a_long_message_set_aside_in_the_middle_is_still_whole() {
    for (mut a, mut b) in pairs() {
        let long: Vec<u8> = (0..3 * FRAME_LEN + 17).map(|i| (i * 7 % 251) as u8).collect();
        let message = |left: usize| Outbound {
            peer: 1,
            key: tag(1),
            ordinal: 0,
            fingerprint: 42,
            signature: &[],
            message_len: (long.len() + left) as u64,
        };
        let mut done = 0;
        let mut received = Vec::new();
        // The pipe is shorter than the message: both sides take turns, and the reader wants something else half of the time.
        for turn in 0.. {
            if done < long.len() {
                let sent = a.send(&message(0), &long[done..]).expect("the link is up");
                done += sent.payload;
            }
            if turn % 2 == 0 {
                assert_eq!(b.arrival(0, tag(2)), Ok(None));
                continue;
            }
            while let Some(arrival) = b.arrival(0, tag(1)).expect("the link is up") {
                let mut part = vec![0; arrival.left.clamp(1, 100_000)];
                let n = b.read(0, tag(1), &mut part).expect("the link is up");
                received.extend_from_slice(&part[..n]);
                if n == arrival.left {
                    b.finish(0, tag(1));
                } else if n == 0 {
                    break;
                }
            }
            if received.len() == long.len() {
                break;
            }
            assert!(turn < 1000, "{} of {} bytes arrived", received.len(), long.len());
        }
        assert!(received == long);
    }
}

#[test]
fn a_frame_under_way_keeps_its_link() {
    let (mut a, mut b) = pair();
    let long = vec![5; FRAME_LEN];
    let done = send(&mut a, tag(1), &[], &long);
    assert!(done < long.len(), "the pipe is too short for frame and header");
    let other = Outbound { peer: 1, key: tag(2), ordinal: 0, fingerprint: 1, signature: &[], message_len: 1 };
    assert_eq!(a.send(&other, b"x").map(|s| (s.payload, s.complete)), Ok((0, false)));
    assert_eq!(b.arrival(0, tag(2)), Ok(None), "which reads the link");
    let rest = Outbound { key: tag(1), message_len: long.len() as u64, ..other };
    assert!(a.send(&rest, &long[done..]).expect("the link is up").complete);
    assert!(a.send(&other, b"x").expect("the link is up").complete);
    assert_eq!(recv(&mut b, tag(2)).as_deref(), Some(&b"x"[..]));
    assert_eq!(recv(&mut b, tag(1)), Some(long));
}

#[test]
fn empty_messages_do_not_fill_the_memory() {
    let (mut a, mut b) = pair();
    let (mut sent, mut refused) = (0, 0);
    while refused < 100 {
        let message = Outbound {
            peer: 1,
            key: tag(sent + 1),
            ordinal: 0,
            fingerprint: 0,
            signature: &[],
            message_len: 0,
        };
        let taken = a.send(&message, &[]).expect("the link is up").complete;
        (sent, refused) = if taken { (sent + 1, 0) } else { (sent, refused + 1) };
        // Nothing for tag 0 ever comes; what comes before it is set aside.
        assert_eq!(b.arrival(0, tag(0)), Ok(None));
        assert!(sent < 1 << 20, "a million messages that nobody wants were taken");
    }
    assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b""[..]), "they are there");
}

#[test]
fn signatures_travel_with_the_first_frame() {
    for (mut a, mut b) in pairs() {
        send(&mut a, collective(1), &encode_signature(&signature()), b"abc");
        send(&mut a, tag(4), &encode_signature(&signature()), b"abc");
        let arrival = b.arrival(0, collective(1)).expect("the link is up").expect("it was sent");
        assert_eq!((arrival.left, arrival.header.fingerprint), (3, 42));
        assert_eq!(b.signature(0, collective(1)).as_deref(), Some(&signature()));
        recv(&mut b, collective(1));
        assert_eq!(b.arrival(0, tag(5)), Ok(None));
        b.arrival(0, tag(4)).expect("the link is up").expect("it was set aside");
        assert_eq!(b.signature(0, tag(4)).as_deref(), Some(&signature()), "also for what was set aside");
    }
}

#[test]
fn a_signature_that_went_before_is_known() {
    let of_line = |line| Signature { site: CallSite { file: "train.rs".into(), line }, ..signature() };
    for (mut a, mut b) in pairs() {
        for line in [7, 8, 7, 9, 10, 11, 12, 7, 8, 12] {
            send(&mut a, tag(4), &encode_signature(&of_line(line)), b"abc");
            b.arrival(0, tag(4)).expect("the link is up").expect("it was sent");
            assert_eq!(b.signature(0, tag(4)).as_deref(), Some(&of_line(line)));
            recv(&mut b, tag(4));
        }
    }
}

#[test]
fn a_short_message_is_sent_and_received_at_once() {
    let to_one = |key, payload: &[u8]| Outbound {
        peer: 1,
        key,
        ordinal: 0,
        fingerprint: 42,
        signature: &[],
        message_len: payload.len() as u64,
    };
    for (mut a, mut b) in pairs() {
        let mut three = [0; 3];
        assert_eq!(b.recv_at_once(0, 1, 42, &mut three), Ok(AtOnce::NotYet), "nothing is here");
        assert_eq!(a.send_at_once(&to_one(tag(1), b"abc"), b"abc"), Ok(true));
        assert_eq!(a.send_at_once(&to_one(tag(2), b""), b""), Ok(true));
        assert_eq!(b.recv_at_once(0, 1, 41, &mut three), Ok(AtOnce::Impossible), "another fingerprint");
        assert_eq!(b.recv_at_once(0, 1, 42, &mut [0; 2]), Ok(AtOnce::Impossible), "another length");
        assert_eq!((b.recv_at_once(0, 1, 42, &mut three), &three), (Ok(AtOnce::Done), b"abc"));
        assert_eq!(b.recv_at_once(0, 2, 42, &mut []), Ok(AtOnce::Done));
        // What was set aside is left to who takes it in pieces.
        send(&mut a, tag(1), &[], b"abc");
        assert_eq!(b.arrival(0, tag(2)), Ok(None));
        assert_eq!(b.recv_at_once(0, 1, 42, &mut three), Ok(AtOnce::Impossible));
        assert_eq!(a.send_at_once(&to_one(tag(2), b"def"), b"def"), Ok(true));
        assert_eq!((b.recv_at_once(0, 2, 42, &mut three), &three), (Ok(AtOnce::Done), b"def"));
        assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"abc"[..]));
        // A frame under way keeps its link, and a full link takes nothing.
        let long = vec![5; FRAME_LEN];
        let mut done = a.send(&to_one(tag(3), &long), &long).expect("the link is up");
        while done.complete {
            done = a.send(&to_one(tag(3), &long), &long).expect("the link is up");
        }
        assert_eq!(a.send_at_once(&to_one(tag(1), b"abc"), b"abc"), Ok(false));
    }
}

#[test]
fn a_collective_that_is_over_here_is_noticed() {
    let (mut a, mut b) = pair();
    send(&mut a, collective(3), &encode_signature(&signature()), b"abc");
    assert_eq!(b.arrival(0, collective(4)), Err(WireFault::Stale(3, Some(Box::new(signature())))));
}

#[test]
fn a_message_has_no_frame_of_another_in_its_middle() {
    for (mut left, mut right) in pairs() {
        let half = |key, payload| {
            let message =
                Outbound { peer: 1, key, ordinal: 0, fingerprint: 42, signature: &[], message_len: 6 };
            (message, payload)
        };
        // Messages between two ranks go beside collectives.
        for (message, payload) in
            [half(collective(4), b"one"), half(tag(1), b"tag"), half(collective(4), b"two")]
        {
            assert!(left.send(&message, payload).unwrap().complete);
        }
        assert_eq!(recv(&mut right, collective(4)).unwrap(), b"onetwo");
        for (message, payload) in [half(collective(6), b"one"), half(collective(5), b"two")] {
            assert!(left.send(&message, payload).unwrap().complete);
        }
        let end = loop {
            match right.arrival(0, collective(5)) {
                Ok(None) => {}
                Ok(Some(arrival)) => panic!("{arrival:?} was taken for the beginning"),
                Err(end) => break end,
            }
        };
        assert!(matches!(&end, WireFault::Nonsense(why) if why.contains("operation #6 were due")), "{end:?}");
    }
}

#[test]
fn the_end_of_a_link_comes_after_its_last_message_and_says_how_it_ended() {
    let (mut a, mut b) = pair();
    send(&mut a, tag(1), &[], b"last");
    a.farewell(1);
    drop(a);
    assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"last"[..]));
    assert_eq!(b.arrival(0, tag(1)), Err(WireFault::Gone(LinkFault::Closed, true)));

    let (mut a, mut b) = pair();
    send(&mut a, tag(1), &[], b"last");
    drop(a);
    assert_eq!(b.arrival(0, tag(2)), Err(WireFault::Gone(LinkFault::Closed, false)));
    assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"last"[..]), "what was set aside is still there");
}

#[test]
fn nothing_follows_a_farewell() {
    let (mut a, mut b) = pair();
    a.farewell(1);
    a.farewell(1);
    send(&mut a, tag(1), &[], b"and another thing");
    let after = Err(WireFault::Nonsense("a frame after its farewell".into()));
    assert_eq!(b.arrival(0, tag(1)), after);
}

#[test]
fn nonsense_is_called_that() {
    let pipes = Pipes::new(2);
    let (mut a, mut b): (ThreadTransport, Wire) = (pipes.end(0), Wire::new(Box::new(pipes.end(1))));
    a.send(1, &[IoSlice::new(b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n")])
        .expect("the link is up");
    assert!(matches!(b.arrival(0, tag(1)), Err(WireFault::Nonsense(_))));
}

#[test]
fn a_flipped_bit_is_noticed_before_the_frame_is_used_if_there_are_checksums() {
    let payload = vec![7; 100];
    let sent = |checked, at, signature: &[u8]| {
        let (left, right) = (Pipes::new(2), Pipes::new(2));
        let mut a = Wire::with_checksums(Box::new(left.end(0)), checked);
        send(&mut a, tag(9), &[], b"fine!");
        send(&mut a, tag(9), signature, &payload);
        let mut bytes = vec![0; 1000];
        let n = left.end(1).recv(0, &mut bytes).expect("the link is up");
        bytes[at] ^= 4;
        right.end(0).send(1, &[IoSlice::new(&bytes[..n])]).expect("the link is up");
        Wire::with_checksums(Box::new(right.end(1)), checked)
    };
    let encoded = encode_signature(&signature());
    // The first frame is right, every byte of the second is changed once.
    let (head, body) = (40 + 8, encoded.len() + payload.len());
    for at in 0..head + body {
        let mut b = sent(true, head + 5 + at, &encoded);
        assert_eq!(recv(&mut b, tag(9)).as_deref(), Some(&b"fine!"[..]));
        let Err(WireFault::Nonsense(what)) = b.arrival(0, tag(9)) else {
            panic!("byte {at} changed, and nobody noticed")
        };
        let expected = if at < 40 {
            "a header with a wrong checksum"
        } else {
            "a frame of the message with tag 9 changed on its way: its checksum is wrong (100 bytes of the 100 of message 0)"
        };
        assert_eq!(what, expected, "byte {at}");
    }
    // Without them it is believed.
    let mut b = sent(false, 40 + 5 + 40 + 50, &[]);
    assert_eq!(recv(&mut b, tag(9)).as_deref(), Some(&b"fine!"[..]));
    let mut changed = payload.clone();
    changed[50] ^= 4;
    assert_eq!(recv(&mut b, tag(9)), Some(changed));
}

#[test]
fn what_was_not_sent_at_once_is_sent_with_all_that_belongs_to_it() {
    let pipes = Pipes::new(2);
    let (mut a, mut b) =
        (Wire::new(Box::new(Trickle::new(pipes.end(0), usize::MAX))), Wire::new(Box::new(pipes.end(1))));
    let encoded = encode_signature(&signature());
    let message =
        Outbound { peer: 1, key: tag(1), ordinal: 0, fingerprint: 42, signature: &encoded, message_len: 3 };
    assert_eq!(a.send_at_once(&message, b"abc"), Ok(false));
    assert!(a.send(&message, b"abc").expect("the link is up").complete);
    b.arrival(0, tag(1)).expect("the link is up").expect("it was sent");
    assert_eq!(b.signature(0, tag(1)).as_deref(), Some(&signature()));
    assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"abc"[..]));
}

/// The second time the header is the one that is expected, and is not taken apart.
#[test]
fn a_message_is_received_at_once_again_and_again() {
    for (mut a, mut b) in pairs() {
        let encoded = encode_signature(&signature());
        let of = |payload: &[u8], fingerprint| Outbound {
            peer: 1,
            key: tag(1),
            ordinal: 0,
            fingerprint,
            signature: &encoded,
            message_len: payload.len() as u64,
        };
        for payload in [b"abc", b"def", b"ghi"] {
            assert_eq!(a.send_at_once(&of(payload, 42), payload), Ok(true));
            assert_eq!(a.send_at_once(&of(payload, 42), payload), Ok(true));
            for _ in 0..2 {
                let mut three = [0; 3];
                assert_eq!((b.recv_at_once(0, 1, 42, &mut three), &three), (Ok(AtOnce::Done), payload));
            }
        }
        assert_eq!(b.tally().arrived(0), 6);
        assert_eq!(a.send_at_once(&of(b"abc", 41), b"abc"), Ok(true));
        for (id, fingerprint, len) in [(1, 42, 3), (2, 41, 3), (1, 41, 2), (1, 41, 4)] {
            assert_eq!(b.recv_at_once(0, id, fingerprint, &mut vec![0; len]), Ok(AtOnce::Impossible));
        }
        assert_eq!(b.signature(0, tag(1)).as_deref(), Some(&signature()));
        assert_eq!(recv(&mut b, tag(1)).as_deref(), Some(&b"abc"[..]));
        assert_eq!(b.tally().arrived(0), 7);
    }
}

/// Links that take nothing at once, and give at most so many bytes at a time.
struct Trickle {
    end: ThreadTransport,
    most: usize,
    /// How long the message is to which the bytes belong that were asked for last.
    whole: Arc<AtomicUsize>,
}

impl Trickle {
    fn new(end: ThreadTransport, most: usize) -> Self {
        Self { end, most, whole: Arc::default() }
    }
}

impl Transport for Trickle {
    fn name(&self) -> &'static str {
        self.end.name()
    }

    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn world_size(&self) -> usize {
        self.end.world_size()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        self.end.send(peer, bytes)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let len = buffer.len().min(self.most);
        self.end.recv(peer, &mut buffer[..len])
    }

    fn recv_part(&mut self, peer: usize, buffer: &mut [u8], whole: usize) -> Result<usize, LinkFault> {
        self.whole.store(whole, Ordering::Relaxed);
        self.recv(peer, buffer)
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        self.end.is_linked(peer)
    }
}

#[test]
fn links_are_told_how_long_the_message_is_whose_bytes_stay_where_they_are_put() {
    const LEN: usize = 100_000;
    const MESSAGE: usize = 123_456_789;
    let pipes = Pipes::new(2);
    let trickle = Trickle::new(pipes.end(1), LEN / 2);
    let whole = trickle.whole.clone();
    let (mut a, mut b) = (Wire::new(Box::new(pipes.end(0))), Wire::new(Box::new(trickle)));
    send(&mut a, tag(1), &encode_signature(&signature()), &vec![5; LEN]);
    assert_eq!(b.arrival(0, tag(1)).unwrap().unwrap().left, LEN);
    let mut place = vec![0; LEN];
    // The first bytes may have come with the head.
    let mut done = 0;
    while whole.load(Ordering::Relaxed) == 0 {
        let n = b.read_part(0, tag(1), &mut place[done..], MESSAGE).unwrap();
        assert!(n > 0, "the link has never been told");
        done += n;
    }
    assert_eq!(whole.load(Ordering::Relaxed), MESSAGE);
    let rest = b.read(0, tag(1), &mut place[done..]).unwrap();
    assert_eq!(whole.load(Ordering::Relaxed), LEN - done, "not said of which message they are");
    assert!(place[..done + rest].iter().all(|&byte| byte == 5) && rest > 0);
}

/// However often it is asked for at once before it is read in pieces.
#[test]
fn a_message_that_comes_in_pieces_is_received_at_once_when_the_last_has_come() {
    const LEN: usize = 20 << 10;
    let payload = |first: u8| (0..LEN).map(|i| first.wrapping_add((i % 251) as u8)).collect::<Vec<_>>();
    for piece in [7, 100, 1000, 4096, 16 << 10, 17 << 10, 2 * LEN, 3 * LEN] {
        for polls in [0, 1, 2, 3, 10, usize::MAX] {
            let pipes = Pipes::new(2);
            let (mut a, mut b) =
                (Wire::new(Box::new(pipes.end(0))), Wire::new(Box::new(Trickle::new(pipes.end(1), piece))));
            for (first, key) in [(1, 1), (2, 1), (3, 2)] {
                let (encoded, payload) = (encode_signature(&signature()), payload(first));
                send(&mut a, tag(key), &encoded, &payload);
            }
            let mut received = vec![0; LEN];
            for (first, key) in [(1, 1), (2, 1), (3, 2)] {
                let mut asked = 0;
                let is_received = loop {
                    if asked == polls {
                        break false;
                    }
                    asked += 1;
                    match b.recv_at_once(0, key, 42, &mut received).expect("the link is up") {
                        AtOnce::Done => break true,
                        AtOnce::NotYet => {}
                        AtOnce::Impossible => panic!("it is first on its link"),
                    }
                };
                if !is_received {
                    received = recv(&mut b, tag(key)).expect("it was sent");
                }
                assert!(
                    received == payload(first),
                    "message {first} in pieces of {piece}, asked {polls} times"
                );
                assert!(is_received || polls < usize::MAX);
            }
        }
    }
}
