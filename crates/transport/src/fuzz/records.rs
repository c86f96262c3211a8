//! Sealed bytes in the hands of somebody on the way: he changes, repeats, leaves out, and swaps records, and adds his own.

use crate::keys::{self, Agreement};
use crate::seal::{Opening, Sealing};
use arbitrary::{Result, Unstructured};
use std::io::{ErrorKind, IoSlice, Read};

/// What comes out is the beginning of what was sent, and whatever he does ends it.
pub fn records(data: &[u8]) {
    let (psk, prologue) = ([7; 32], b"fuzz");
    let (agreement, message) = Agreement::begin(&psk, prologue).expect("there is randomness");
    let (theirs, answer) = keys::agree(&psk, prologue, &message).expect("both have the key");
    let ours = agreement.finish(&answer).expect("both have the key");
    let mut input = Unstructured::new(data);
    let (mut sealing, mut sent, mut records) = (Sealing::new(ours), Vec::new(), Vec::new());
    for i in 0..input.arbitrary::<u8>().unwrap_or(0) % 8 {
        let plain = vec![i; 1 + 37 * usize::from(input.arbitrary::<u8>().unwrap_or(0))];
        let mut record = Vec::new();
        let taken = sealing.write(&mut record, &[IoSlice::new(&plain)]).expect("memory takes everything");
        assert_eq!(taken, plain.len());
        sent.extend(plain);
        records.push(record);
    }
    let honest = records.concat();
    while !input.is_empty() && meddle(&mut input, &mut records).is_ok() {}
    let stream = records.concat();
    let mut opening = Opening::new(theirs);
    let (mut link, mut got, mut buffer) = (&stream[..], Vec::new(), [0; 999]);
    let end = loop {
        // A byte at a time tells as much as all at once.
        match opening.read((&mut link).take(1 + got.len() as u64 % 500), &mut buffer) {
            Ok(0) => break None,
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert!(sent.starts_with(&got), "bytes were taken that nobody sent");
    if honest.starts_with(&stream) {
        assert_eq!(end, None, "honest records were refused");
    } else {
        let same = honest.iter().zip(&stream).take_while(|(a, b)| a == b).count();
        assert!(got.len() <= same, "something behind a change was taken");
    }
}

fn meddle(input: &mut Unstructured<'_>, records: &mut Vec<Vec<u8>>) -> Result<()> {
    let (what, which, other) = (input.arbitrary::<u8>()?, input.arbitrary::<u8>()?, input.arbitrary::<u8>()?);
    let len = records.len().max(1);
    let (which, other) = (usize::from(which) % len, usize::from(other));
    let Some(record) = records.get_mut(which) else { return Ok(()) };
    match what % 6 {
        0 => {
            let at = other % record.len().max(1);
            record.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (what >> 5));
        }
        1 => record.truncate(other),
        2 => drop(records.remove(which)),
        3 => {
            let again = record.clone();
            records.insert(other % (len + 1), again);
        }
        4 => records.swap(which, other % len),
        _ => {
            let len = other.min(input.len());
            record.extend_from_slice(input.bytes(len)?);
        }
    }
    Ok(())
}
