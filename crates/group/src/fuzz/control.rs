//! A job whose ranks tell the arbiter whatever they like, and a rank whose arbiter does: all who are there hear the same
//! in one order, and nobody can make the arbiter hold more and more.

use crate::control::arbiter::Arbiter;
use crate::control::failure_latch::FailureLatch;
use crate::control::heartbeat::Heartbeat;
use crate::control::membership::Membership;
use crate::control::notice::{Notice, Verdict};
use crate::runtime;
use arbitrary::{Result, Unstructured};
use phalanx_core::{CallSite, Cause, Deadline, GroupId, Loss, Method, OpKind, Peer, Signature, WORLD};
use phalanx_transport::MESSAGE_LEN_MAX;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the arbiter may hold for one rank that says whatever it likes.
const HELD_MAX: usize = 3 << 20;

/// A rank as the arbiter's process sees it.
struct Rank {
    /// It has a line.
    connected: bool,
    joined: bool,
    membership: Arc<Membership>,
    world: Arc<FailureLatch>,
    verdicts: Vec<Verdict>,
}

struct Job {
    arbiter: Arbiter,
    now: Instant,
    ranks: Vec<Rank>,
}

/// Ranks and an arbiter that lie.
pub fn control(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let world_size = 1 + usize::from(input.arbitrary::<u8>().unwrap_or(0) % 5);
    let now = Instant::now();
    let ranks = (0..world_size).map(|rank| Rank::new(rank, world_size)).collect();
    let mut job = Job {
        arbiter: Arbiter::new(world_size, Some(Heartbeat::new(Duration::from_secs(1), now))),
        now,
        ranks,
    };
    // Its arbiter lies.
    let misled = Rank::new(0, world_size);
    while !input.is_empty() {
        if job.step(&mut input, &misled).is_err() {
            break;
        }
        for rank in 0..world_size {
            let held = job.arbiter.held(rank);
            assert!(held <= HELD_MAX, "the arbiter holds {held} bytes for rank {rank}");
        }
    }
    job.check();
    misled.membership.lost_arbiter(Loss::Died);
    let _ = misled.membership.trace("fuzz");
}

impl Rank {
    fn new(rank: usize, world_size: usize) -> Self {
        let membership = runtime::membership(peer(rank), world_size, Duration::from_secs(1));
        let world = membership.latch(WORLD, (0..world_size).collect());
        Self { connected: false, joined: false, membership, world, verdicts: Vec::new() }
    }

    /// It was told that it is lost itself, and is told no more.
    fn was_condemned(&self) -> bool {
        let me = &self.membership.me();
        let own = |v: &Verdict| matches!(v, Verdict::Lost { rank, is_gone: true, .. } if *rank == me.rank);
        self.verdicts.iter().any(own)
    }
}

fn peer(rank: usize) -> Peer {
    Peer { rank, host: "h".into() }
}

fn bytes<'i>(input: &mut Unstructured<'i>) -> Result<&'i [u8]> {
    let len = usize::from(input.arbitrary::<u8>()?);
    input.bytes(len.min(input.len()))
}

fn join(settings: &str) -> Notice {
    Notice::Join {
        host: "h".into(),
        addr: ([127, 0, 0, 1], 1).into(),
        local: None,
        settings: settings.into(),
    }
}

/// A call of its own for each number.
fn call(number: u8) -> Signature {
    let site = CallSite { file: "f".into(), line: number.into() };
    Signature {
        op: OpKind::Barrier,
        dtype: None,
        count: number.into(),
        reduce: None,
        root: None,
        detail: 0,
        method: Method::UNSAID,
        site,
    }
}

impl Job {
    fn step(&mut self, input: &mut Unstructured<'_>, misled: &Rank) -> Result<()> {
        let what: u8 = input.arbitrary()?;
        let rank = usize::from(what >> 4) % self.ranks.len();
        match what % 16 {
            0 | 1 => self.tell(rank, join(if what.is_multiple_of(16) { "a" } else { "b" })),
            2 => self.tell(rank, Notice::Leave { finished: 0 }),
            3 if what >> 7 == 0 => self.hang_up(rank),
            3 => {
                self.now += Duration::from_millis(8 * u64::from(input.arbitrary::<u8>()?));
                let mail = self.arbiter.poll(self.now);
                self.deliver(mail);
            }
            4 | 5 => {
                let group = GroupId(input.arbitrary::<u8>()?.into());
                let calls = bytes(input)?.chunks(2);
                let calls = calls.map(|c| (u64::from(c[0]), call(c[c.len() - 1]))).collect();
                self.tell(rank, Notice::Calls { group, calls });
            }
            6 | 7 => {
                let (group, members) = (GroupId(input.arbitrary::<u8>()?.into()), bytes(input)?);
                let members: Vec<usize> = members.iter().map(|&rank| rank.into()).collect();
                let cause = self.cause(rank, input)?;
                self.tell(rank, Notice::Failed { group, members, cause });
            }
            8 => {
                // Without end, as far as an input can say that.
                let (first, times) = (input.arbitrary::<u16>()?, input.arbitrary::<u8>()?);
                let cause = self.cause(rank, input)?;
                // Rarely more than a few: it takes its time.
                for i in 0..if times == 0xff { 5000 } else { u64::from(times) / 8 } {
                    let group = GroupId(u64::from(first) << 16 | i);
                    let notice = match what >> 7 {
                        0 => Notice::Calls { group, calls: vec![(i, call(1))] },
                        _ => Notice::Failed { group, members: vec![0, i as usize], cause: cause.clone() },
                    };
                    self.tell(rank, notice);
                }
            }
            9..=11 => {
                if let Ok(verdict) = postcard::from_bytes::<Verdict>(bytes(input)?) {
                    misled.membership.hear(verdict, self.now);
                    let _ = misled.membership.wait_complete(&Deadline::after(Instant::now(), Duration::ZERO));
                }
            }
            _ => {
                if let Ok(notice) = postcard::from_bytes(bytes(input)?) {
                    self.tell(rank, notice);
                }
            }
        }
        Ok(())
    }

    fn cause(&self, rank: usize, input: &mut Unstructured<'_>) -> Result<Cause> {
        let byte: u8 = input.arbitrary()?;
        let other = peer(usize::from(byte >> 4));
        Ok(match byte % 4 {
            0 => Cause::Lost { peer: other, how: Loss::Died },
            1 => Cause::Lost { peer: other, how: Loss::Unreachable { from: rank } },
            2 => {
                let (op, waited) = (OpKind::Barrier, Duration::from_secs(1));
                Cause::TimedOut {
                    reporter: peer(rank),
                    op,
                    seq: 1,
                    site: None,
                    envelope: None,
                    waited,
                    awaited: vec![other.clone()],
                    missing: vec![other],
                    meanwhile: Vec::new(),
                }
            }
            _ => Cause::Aborted { peer: peer(rank), reason: "r".repeat(usize::from(byte) << 8) },
        })
    }

    /// As the service does, a rank has a line before it says anything.
    fn tell(&mut self, rank: usize, notice: Notice) {
        if !self.ranks[rank].connected {
            if !self.arbiter.admits(rank) {
                return;
            }
            self.ranks[rank].connected = true;
        }
        self.ranks[rank].joined |= matches!(notice, Notice::Join { .. });
        let message = postcard::to_stdvec(&notice).expect("notices are plain data");
        assert_eq!(postcard::from_bytes::<Notice>(&message).as_ref(), Ok(&notice));
        let mail = self.arbiter.handle(rank, notice);
        self.arbiter.heard(rank, self.now);
        self.deliver(mail);
    }

    fn hang_up(&mut self, rank: usize) {
        if std::mem::take(&mut self.ranks[rank].connected) && !self.arbiter.admits(rank) {
            let mail = self.arbiter.disconnected(rank, Loss::Died);
            self.deliver(mail);
        }
    }

    fn deliver(&mut self, mail: Vec<(usize, Verdict)>) {
        for (to, verdict) in mail {
            let message = postcard::to_stdvec(&verdict).expect("verdicts are plain data");
            assert!(message.len() <= MESSAGE_LEN_MAX, "a verdict of {} bytes can't be sent", message.len());
            let rank = &mut self.ranks[to];
            if rank.connected {
                rank.membership.hear(verdict.clone(), self.now);
                rank.verdicts.push(verdict);
            }
        }
    }

    /// Ranks that have joined and not gone have heard of every failure, once, in one order.
    fn check(&self) {
        let here = || self.ranks.iter().filter(|rank| rank.connected && rank.joined && !rank.was_condemned());
        let is_fate = |verdict: &&Verdict| matches!(verdict, Verdict::Group { .. } | Verdict::Lost { .. });
        let healths = |rank: &Rank| rank.verdicts.iter().filter(is_fate).cloned().collect::<Vec<_>>();
        let Some(first) = here().next() else { return };
        for rank in here() {
            assert_eq!(healths(first), healths(rank), "ranks were told different things");
            assert_eq!(first.world.first_cause(), rank.world.first_cause());
        }
        let mut heard = HashSet::new();
        for verdict in &first.verdicts {
            let what = match verdict {
                Verdict::Group { group, .. } => Some(Some(*group)),
                Verdict::Complete { .. } => Some(None),
                _ => None,
            };
            assert!(what.is_none_or(|what| heard.insert(what)), "{verdict:?} came twice");
        }
    }
}
