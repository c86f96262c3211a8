//! What a simulated process calls: the lines of its program one after the other, unless it is led astray.

use super::{Life, OpenGroup, Stage};
use crate::control::failure_report::SETTLE_TIME;
use crate::engine::attempt::{Attempt, Outcome};
use crate::engine::operation::Operation;
use crate::group::split;
use crate::sim::account::Record;
use crate::sim::division::{Division, Group};
use crate::sim::doing::Doing;
use crate::sim::faults::Misdeed;
use phalanx_core::{Cause, Error, GroupId, Loss, OpKind};
use std::time::{Duration, Instant};

impl Life {
    /// The group that this rank is to be in after the split that it is at.
    fn divided(&self) -> Option<(usize, i64, GroupId)> {
        // One that is led astray may call something else there.
        let splits = self.account.records.last().is_some_and(|record| record.signature.op == OpKind::Split);
        let made = self.program.lines[self.at].makes.filter(|_| splits)?;
        let Division { said, number, .. } = &self.program.divisions[made];
        let color = said[self.seat.rank].0?;
        Some((made, color.into(), split::name(self.group().id, *number, color)))
    }

    /// Makes the group that members make at this line, if they do, as far as that needs nobody else.
    fn meet(&mut self) -> Result<(), Error> {
        let line = &self.program.lines[self.at];
        let (op, division) = (line.op, line.division);
        let (OpKind::NewGroup, Some(world)) = (op, &self.groups[0]) else { return Ok(()) };
        let Group { id, members } = self.program.divisions[division].groups[0].clone();
        if let Some(cause) = world.health.latch.cause() {
            let error = Error::Poisoned { op, cause: Box::new(cause.clone()) };
            world.health.forgo(id, &error);
            return Err(error);
        }
        self.open(division, id, members);
        Ok(())
    }

    pub(super) fn strays(&self, how: Misdeed) -> bool {
        self.astray.is_some_and(|astray| astray.call == self.at && astray.how == how)
    }

    /// Computes before the next call.
    pub(super) fn pause(&mut self, now: Instant) -> Stage {
        if self.part > 0 && self.part < self.program.parts(self.at, self.seat.rank) {
            return Stage::Pausing(now);
        }
        self.at += usize::from(self.part > 0);
        self.part = 0;
        loop {
            let Some(line) = self.program.lines.get(self.at) else {
                self.account.is_done = true;
                return self.leave(now, self.program.limit + SETTLE_TIME);
            };
            // A rank that left out a split has no group of it.
            let is_in = line.op == OpKind::NewGroup || self.groups[line.division].is_some();
            if is_in && self.program.parts(self.at, self.seat.rank) > 0 && !self.strays(Misdeed::Skips) {
                return Stage::Pausing(now + line.pauses[self.seat.rank]);
            }
            self.at += 1;
        }
    }

    /// Makes the next call.
    pub(super) fn begin(&mut self, now: Instant) -> Stage {
        if self.strays(Misdeed::Leaves) {
            return self.leave(now, Duration::ZERO);
        }
        if let Err(error) = self.meet() {
            let (at, written) = (self.at, &self.program.lines[self.at]);
            let signature = self.program.call(at, self.seat.rank, written).0;
            self.account.records.push(Record {
                at,
                seq: 0,
                signature,
                called: now,
                ended: Some((now, Err(error))),
            });
            return self.failed(now);
        }
        let health = self.group().health.clone();
        if self.strays(Misdeed::Panics) {
            let cause = Cause::Lost { peer: self.seat.peer(self.seat.rank), how: Loss::Panicked };
            return if health.begin_to_give_up(cause) { Stage::GivingUp } else { self.failed(now) };
        }
        if self.strays(Misdeed::Aborts) {
            let cause =
                Cause::Aborted { peer: self.seat.peer(self.seat.rank), reason: "the seed says so".into() };
            return if health.begin_to_give_up(cause) { Stage::GivingUp } else { self.failed(now) };
        }
        let program = self.program.clone();
        let written = &program.lines[self.at];
        // In a group of one, nothing is another call than that of the others.
        let is_alone = self.group().health.members().len() == 1;
        let astray = self.astray.filter(|astray| astray.call == self.at && !is_alone);
        let line = match astray.map(|astray| astray.how) {
            Some(Misdeed::OtherOp) => written.other_op(),
            Some(Misdeed::OtherCount) => written.other_count(program.world_size),
            _ => written.clone(),
        };
        let (at, part) = (self.at, self.part);
        let backend = &self.group().backend;
        let mut record = Record {
            at,
            seq: 0,
            signature: program.call(at, self.seat.rank, &line).0,
            called: now,
            ended: None,
        };
        self.net
            .lock()
            .say(self.seat.me as u64, || format!("{} calls #{at} {}", self.seat.me, record.signature));
        match Doing::begin(backend, &program, (at, part), self.seat.rank, &line) {
            Ok(doing) => {
                record.seq = doing.seq();
                self.account.records.push(record);
                Stage::Doing(Box::new(doing), Attempt::new(now, program.limit))
            }
            Err(error) => {
                record.ended = Some((now, Err(error)));
                self.account.records.push(record);
                self.failed(now)
            }
        }
    }

    /// Drives the call on; whether anything moved.
    pub(super) fn drive(&mut self, now: Instant) -> bool {
        let divided = self.divided();
        let Stage::Doing(doing, attempt) = &mut self.stage else { return false };
        let division = self.program.lines[self.at].division;
        let OpenGroup { backend, health, .. } = self.groups[division].as_ref().expect("it calls there");
        let outcome = attempt.poll(&mut backend.engine.lock(), &mut **doing, || now);
        let record = self.account.records.last_mut().expect("the call was recorded");
        self.stage = match outcome {
            Outcome::Idle => return false,
            Outcome::Moved => return true,
            Outcome::Finished => {
                let from = doing.sender().map(|from| health.members()[from]);
                let (range, expected) = match from {
                    Some(from) => self.program.sent_to_any(self.at, from),
                    None => self.program.expected(self.at, self.part, self.seat.rank),
                };
                let mut right = doing.result().get(range) == Some(&expected[..]);
                if let Some(from) = from {
                    // Each sends one.
                    right &= self.part == 0 || !self.heard.contains(&from);
                    self.heard.truncate(self.part);
                    self.heard.push(from);
                }
                doing.ended(backend);
                record.ended = Some((now, Ok(right)));
                self.net.lock().say(self.at as u64, || format!("{} is done with #{}", self.seat.me, self.at));
                if let Some((made, color, id)) = divided {
                    let members = health.members();
                    let of_job = split::of_color(doing.result(), color).into_iter();
                    let new = of_job.map(|rank| members[rank]).collect();
                    self.open(made, id, new);
                }
                self.part += 1;
                self.pause(now)
            }
            Outcome::Failed(error) => {
                self.net.lock().say(self.at as u64, || format!("{} fails: {error}", self.seat.me));
                doing.failed(backend);
                // The others may have all they need, and wait in a new group for this rank.
                if let Some((_, _, id)) = divided {
                    health.forgo(id, &error);
                } else if let (Some(world), OpKind::NewGroup) = (&self.groups[0], record.signature.op) {
                    world.health.forgo(health.latch.group(), &error);
                }
                record.ended = Some((now, Err(error)));
                self.failed(now)
            }
        };
        true
    }
}
