//! The protocol between a store's client and server, and the server as a state machine.
//!
//! Messages are postcard; a length prefix and the proof of the job's secret come from the session beneath.
//! A client numbers its requests, and a reply bears the number of its request, so that several threads can share a
//! session and one that waits for a key does not keep the others from setting it.

use crate::table::Table;
use phalanx_transport::SessionId;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A request of a client. `id` is its own choice, different for all requests that are not answered yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request<'a> {
    pub(crate) id: u64,
    #[serde(borrow)]
    pub(crate) op: Operation<'a>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Operation<'a> {
    /// Answered by `Done`.
    Set { key: &'a str, value: &'a [u8] },
    /// Answered by `Value`, as soon as there is one.
    Get { key: &'a str },
    /// Ends the wait of the `Get` with this request's `id`. Not answered.
    Forget { key: &'a str },
    /// Answered by `Value`, at once.
    TryGet { key: &'a str },
    /// Answered by `Number`.
    Add { key: &'a str, delta: i64 },
    /// Answered by `Flag`.
    CompareSet { key: &'a str, expected: Option<&'a [u8]>, new: &'a [u8] },
    /// Answered by `Flag`.
    Delete { key: &'a str },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reply<'a> {
    pub(crate) id: u64,
    #[serde(borrow)]
    pub(crate) answer: Answer<'a>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer<'a> {
    Done,
    Value(Option<&'a [u8]>),
    Number(i64),
    Flag(bool),
    /// The request breaks a rule; nothing was done.
    Refused(&'a str),
}

pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("encoding into memory does not fail")
}

/// Requests of one client that may wait at once.
const WAITING_MAX: usize = 4096;

/// Which request waits, and whose it is.
type Waiter = (SessionId, u64);

/// The server: requests in, replies out.
#[derive(Debug, Default)]
pub(crate) struct StoreCore {
    table: Table,
    /// Sessions that wait for a key without a value. No list is empty.
    waiters: HashMap<String, Vec<Waiter>>,
    /// How many requests of each client do. No number is 0.
    waiting: HashMap<SessionId, usize>,
}

impl StoreCore {
    /// Serves one request; returns the replies and where they go. A message that is no request is an error.
    pub(crate) fn handle(
        &mut self,
        from: SessionId,
        message: &[u8],
    ) -> postcard::Result<Vec<(SessionId, Vec<u8>)>> {
        let Request { id, op } = postcard::from_bytes(message)?;
        let answer = match self.perform((from, id), &op) {
            Ok(answer) => answer,
            Err(what) => Some(encode(&Reply { id, answer: Answer::Refused(&what) })),
        };
        let mut replies: Vec<_> = answer.map(|answer| (from, answer)).into_iter().collect();
        match op {
            Operation::Set { key, .. } | Operation::Add { key, .. } | Operation::CompareSet { key, .. } => {
                self.wake(key, &mut replies);
            }
            _ => {}
        }
        Ok(replies)
    }

    fn perform(&mut self, waiter: Waiter, op: &Operation<'_>) -> Result<Option<Vec<u8>>, String> {
        let table = &mut self.table;
        let answer = match *op {
            Operation::Set { key, value } => table.set(key, value).map(|()| Answer::Done)?,
            Operation::TryGet { key } => Answer::Value(table.get(key)?),
            Operation::Add { key, delta } => Answer::Number(table.add(key, delta)?),
            Operation::CompareSet { key, expected, new } => {
                Answer::Flag(table.compare_set(key, expected, new)?)
            }
            Operation::Delete { key } => Answer::Flag(table.delete(key)?),
            Operation::Get { key } => match table.get(key)? {
                Some(value) => Answer::Value(Some(value)),
                None => {
                    let waiting = self.waiting.entry(waiter.0).or_default();
                    if *waiting == WAITING_MAX {
                        return Err(format!("{WAITING_MAX} requests of this client wait already"));
                    }
                    *waiting += 1;
                    self.waiters.entry(key.to_owned()).or_default().push(waiter);
                    return Ok(None);
                }
            },
            Operation::Forget { key } => {
                if let Some(waiters) = self.waiters.get_mut(key) {
                    let before = waiters.len();
                    waiters.retain(|w| *w != waiter);
                    let ended = before - waiters.len();
                    if waiters.is_empty() {
                        self.waiters.remove(key);
                    }
                    self.wait_no_more(waiter.0, ended);
                }
                return Ok(None);
            }
        };
        Ok(Some(encode(&Reply { id: waiter.1, answer })))
    }

    /// Answers those who waited for `key`, if it has a value now.
    fn wake(&mut self, key: &str, replies: &mut Vec<(SessionId, Vec<u8>)>) {
        if !matches!(self.table.get(key), Ok(Some(_))) {
            return;
        }
        for (session, id) in self.waiters.remove(key).unwrap_or_default() {
            self.wait_no_more(session, 1);
            let value = self.table.get(key).ok().flatten();
            replies.push((session, encode(&Reply { id, answer: Answer::Value(value) })));
        }
    }

    fn wait_no_more(&mut self, session: SessionId, requests: usize) {
        if let Some(waiting) = self.waiting.get_mut(&session) {
            *waiting -= requests;
            if *waiting == 0 {
                self.waiting.remove(&session);
            }
        }
    }

    /// Forgets a client that is gone. What it set stays.
    pub(crate) fn closed(&mut self, session: SessionId) {
        self.waiting.remove(&session);
        self.waiters.retain(|_, waiters| {
            waiters.retain(|(s, _)| *s != session);
            !waiters.is_empty()
        });
    }

    /// How many requests wait.
    #[cfg(any(test, feature = "__fuzz"))]
    pub(crate) fn waiting(&self) -> usize {
        let sum = self.waiters.values().map(Vec::len).sum();
        assert_eq!(self.waiting.values().sum::<usize>(), sum);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(core: &mut StoreCore, from: SessionId, id: u64, op: Operation<'_>) -> Vec<(SessionId, Vec<u8>)> {
        core.handle(from, &encode(&Request { id, op })).unwrap()
    }

    fn value(session: SessionId, id: u64, value: &[u8]) -> (SessionId, Vec<u8>) {
        (session, encode(&Reply { id, answer: Answer::Value(Some(value)) }))
    }

    #[test]
    fn a_set_answers_everyone_who_waits_for_that_key() {
        let mut core = StoreCore::default();
        assert_eq!(ask(&mut core, 1, 7, Operation::Get { key: "a" }), []);
        assert_eq!(ask(&mut core, 2, 7, Operation::Get { key: "a" }), []);
        assert_eq!(ask(&mut core, 2, 8, Operation::Get { key: "b" }), []);
        let replies = ask(&mut core, 3, 1, Operation::Set { key: "a", value: b"x" });
        let done = (3, encode(&Reply { id: 1, answer: Answer::Done }));
        assert_eq!(replies, [done, value(1, 7, b"x"), value(2, 7, b"x")]);
        assert_eq!(core.waiting(), 1, "b is still awaited");
    }

    #[test]
    fn who_left_or_gave_up_is_forgotten() {
        let mut core = StoreCore::default();
        ask(&mut core, 1, 1, Operation::Get { key: "a" });
        ask(&mut core, 1, 2, Operation::Get { key: "b" });
        ask(&mut core, 2, 1, Operation::Get { key: "a" });
        ask(&mut core, 3, 1, Operation::Get { key: "a" });
        core.closed(1);
        ask(&mut core, 2, 2, Operation::Get { key: "c" });
        ask(&mut core, 2, 1, Operation::Forget { key: "a" });
        ask(&mut core, 2, 2, Operation::Forget { key: "c" });
        let replies = ask(&mut core, 4, 1, Operation::Add { key: "a", delta: 5 });
        assert_eq!(replies[1..], [value(3, 1, b"5")]);
        assert!(core.waiters.is_empty());
    }

    #[test]
    fn no_client_waits_for_everything() {
        let mut core = StoreCore::default();
        let wait = |core: &mut StoreCore, id: u64| ask(core, 1, id, Operation::Get { key: &id.to_string() });
        for id in 0..WAITING_MAX as u64 {
            assert_eq!(wait(&mut core, id), []);
        }
        let replies = wait(&mut core, 1 << 20);
        let reply: Reply<'_> = postcard::from_bytes(&replies[0].1).unwrap();
        assert!(matches!(reply.answer, Answer::Refused(why) if why.contains("wait already")), "{reply:?}");
        ask(&mut core, 2, 1, Operation::Set { key: "7", value: b"x" });
        assert_eq!(wait(&mut core, 1 << 20), [], "there is room again");
        assert_eq!(core.waiting(), WAITING_MAX);
    }

    #[test]
    fn a_refused_request_is_answered_and_changes_nothing() {
        let mut core = StoreCore::default();
        ask(&mut core, 1, 1, Operation::Get { key: "a" });
        let long = vec![0; crate::VALUE_LEN_MAX + 1];
        let replies = ask(&mut core, 2, 1, Operation::Set { key: "a", value: &long });
        assert_eq!(replies.len(), 1);
        let reply: Reply<'_> = postcard::from_bytes(&replies[0].1).unwrap();
        assert!(matches!(reply.answer, Answer::Refused(why) if why.contains("at most")), "{reply:?}");
        assert_eq!(core.waiting(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            messages in prop::collection::vec((0..3u64, prop::collection::vec(any::<u8>(), 0..40)), 0..40),
        ) {
            let mut core = StoreCore::default();
            for (session, message) in messages {
                // The first bytes small, so that many of them are requests.
                let small = |(i, byte): (usize, &u8)| if i < 4 { byte % 8 } else { *byte };
                let message: Vec<u8> = message.iter().enumerate().map(small).collect();
                if let Ok(replies) = core.handle(session, &message) {
                    for (_, reply) in replies {
                        prop_assert!(postcard::from_bytes::<Reply<'_>>(&reply).is_ok());
                    }
                }
            }
            (0..3).for_each(|session| core.closed(session));
            prop_assert_eq!(core.waiting(), 0);
        }
    }
}
