//! The store's server under any requests, beside a table that is obviously right; and its client under any replies.

use crate::client::Mail;
use crate::protocol::{Answer, Operation, Reply, Request, StoreCore, encode};
use crate::{KEY_LEN_MAX, VALUE_LEN_MAX};
use arbitrary::{Result, Unstructured};
use phalanx_transport::SessionId;
use std::collections::HashMap;

const SESSIONS: u64 = 4;

/// What the server should do.
#[derive(Default)]
struct Model {
    table: HashMap<String, Vec<u8>>,
    /// Sessions that wait, and for what, in the order in which they came.
    waiters: Vec<(String, SessionId, u64)>,
}

/// Calls of clients, against a model of the table.
pub fn store(data: &[u8]) {
    let (mut core, mut model, mut mail) = (StoreCore::default(), Model::default(), Mail::new(None));
    let mut input = Unstructured::new(data);
    while !input.is_empty() {
        if step(&mut input, &mut core, &mut model, &mut mail).is_err() {
            break;
        }
        assert_eq!(core.waiting(), model.waiters.len());
    }
    (0..SESSIONS).for_each(|session| core.closed(session));
    assert_eq!(core.waiting(), 0, "who is gone still waits");
}

fn step(
    input: &mut Unstructured<'_>,
    core: &mut StoreCore,
    model: &mut Model,
    mail: &mut Mail,
) -> Result<()> {
    let what: u8 = input.arbitrary()?;
    let session = u64::from(what >> 6) % SESSIONS;
    match what % 16 {
        0 => {
            core.closed(session);
            model.waiters.retain(|(_, from, _)| *from != session);
        }
        1 | 2 => {
            let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
            ask(core, model, session, input.bytes(len)?);
        }
        3 => {
            let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
            reply(mail, input.bytes(len)?);
        }
        _ => {
            let (id, key) = (u64::from(input.arbitrary::<u8>()?), key(input)?);
            let (value, expected) = (value(input)?, value(input)?);
            let (key, value) = (key.as_str(), value.as_slice());
            let op = match what % 16 {
                4 | 5 => Operation::Set { key, value },
                6..=8 => Operation::Get { key },
                9 => Operation::Forget { key },
                10 => Operation::TryGet { key },
                11 | 12 => Operation::Add { key, delta: input.arbitrary()? },
                13 => Operation::CompareSet { key, expected: None, new: value },
                14 => Operation::CompareSet { key, expected: Some(&expected), new: value },
                _ => Operation::Delete { key },
            };
            ask(core, model, session, &encode(&Request { id, op }));
        }
    }
    Ok(())
}

fn key(input: &mut Unstructured<'_>) -> Result<String> {
    Ok(match input.arbitrary::<u8>()? {
        byte @ 0..=250 => char::from(b'a' + byte % 4).to_string(),
        251 => String::new(),
        byte => "k".repeat(KEY_LEN_MAX + usize::from(byte) - 253),
    })
}

fn value(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    Ok(match input.arbitrary::<u8>()? {
        len @ 0..=24 => input.bytes(usize::from(len).min(input.len()))?.to_vec(),
        255 if input.arbitrary::<u16>()? == 0x1234 => vec![7; VALUE_LEN_MAX + 1],
        small => small.to_string().into_bytes(),
    })
}

fn ask(core: &mut StoreCore, model: &mut Model, from: SessionId, message: &[u8]) {
    let replies = core.handle(from, message);
    let Ok(request) = postcard::from_bytes::<Request<'_>>(message) else {
        return assert!(replies.is_err(), "what is no request was answered");
    };
    let mut replies = replies.expect("a request is answered").into_iter();
    let mut expected = model.perform(from, &request).into_iter();
    loop {
        match (replies.next(), expected.next()) {
            (None, None) => return,
            (Some((to, bytes)), Some((whom, id, said))) => {
                let reply: Reply<'_> = postcard::from_bytes(&bytes).expect("a reply can be read");
                assert_eq!((to, reply.id), (whom, id));
                match said {
                    Some(said) => assert_eq!(bytes, said, "{reply:?}"),
                    None => assert!(matches!(reply.answer, Answer::Refused(_)), "{reply:?}"),
                }
            }
            other => panic!("{request:?}: {other:?}"),
        }
    }
}

impl Model {
    /// The replies that are due: session, number of the request, encoded reply or `None` for any refusal.
    fn perform(&mut self, from: SessionId, request: &Request<'_>) -> Vec<(SessionId, u64, Option<Vec<u8>>)> {
        let Request { id, ref op } = *request;
        let say = |answer| vec![(from, id, Some(encode(&Reply { id, answer })))];
        let refuse = vec![(from, id, None)];
        let (key, values): (&str, [&[u8]; 2]) = match *op {
            Operation::Set { key, value } => (key, [value, &[]]),
            Operation::CompareSet { key, expected, new } => (key, [new, expected.unwrap_or_default()]),
            Operation::Get { key }
            | Operation::Forget { key }
            | Operation::TryGet { key }
            | Operation::Add { key, .. }
            | Operation::Delete { key } => (key, [&[]; 2]),
        };
        let forgets = matches!(op, Operation::Forget { .. });
        let too_long = key.len() > KEY_LEN_MAX || values.iter().any(|value| value.len() > VALUE_LEN_MAX);
        if too_long && !forgets {
            return refuse;
        }
        let present = self.table.get(key).cloned();
        let (mut replies, new) = match *op {
            Operation::Set { value, .. } => (say(Answer::Done), Some(value.to_vec())),
            Operation::TryGet { .. } => return say(Answer::Value(present.as_deref())),
            Operation::Get { .. } => match present {
                Some(value) => return say(Answer::Value(Some(&value))),
                None => {
                    self.waiters.push((key.to_owned(), from, id));
                    return Vec::new();
                }
            },
            Operation::Forget { .. } => {
                self.waiters.retain(|waiter| *waiter != (key.to_owned(), from, id));
                return Vec::new();
            }
            Operation::Add { delta, .. } => {
                let number =
                    present.map_or(Some(0), |text| std::str::from_utf8(&text).ok()?.parse::<i64>().ok());
                let Some(sum) = number.and_then(|number| number.checked_add(delta)) else { return refuse };
                (say(Answer::Number(sum)), Some(sum.to_string().into_bytes()))
            }
            Operation::CompareSet { expected, new, .. } => {
                let same = present.as_deref() == expected;
                (say(Answer::Flag(same)), same.then(|| new.to_vec()))
            }
            Operation::Delete { .. } => return say(Answer::Flag(self.table.remove(key).is_some())),
        };
        if let Some(new) = new {
            self.table.insert(key.to_owned(), new);
        }
        // Only who waits for a key without a value waits, so all of them hear it now.
        if let Some(value) = self.table.get(key) {
            self.waiters.retain(|(waits_for, to, id)| {
                if waits_for == key {
                    let answer = Answer::Value(Some(value));
                    replies.push((*to, *id, Some(encode(&Reply { id: *id, answer }))));
                }
                waits_for != key
            });
        }
        replies
    }
}

/// The client keeps replies to what it asked, and nothing else.
fn reply(mail: &mut Mail, bytes: &[u8]) {
    let id = mail.open();
    let known = mail.sort(bytes.to_vec());
    assert_eq!(known, postcard::from_bytes::<Reply<'_>>(bytes).is_ok());
    if let Some(reply) = mail.close(id) {
        let reply: Reply<'_> = postcard::from_bytes(&reply).expect("it was sorted");
        assert_eq!(reply.id, id, "the reply to another request");
    }
}
