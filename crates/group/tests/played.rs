//! A large job on one machine: rank 0 is a process, and this program plays all others on their lines to the arbiter.
//!
//! `cargo xtask played --ranks 10000` prints what the control plane costs rank 0, and how long it takes to tell what all must hear.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use phalanx_control::notice::{Local, Notice, Verdict};
use phalanx_core::{Deadline, WORLD};
use phalanx_rendezvous::{Config, PrefixStore, Store, TcpStore};
use phalanx_transport::handshake::{Hello, Purpose};
use phalanx_transport::{Secret, SessionReceiver, SessionSender, open_session};
use rustix::event::epoll;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long anything here may take.
const HANG: Duration = Duration::from_secs(300);
/// A tenth of the time after which silence is a loss, as real ranks do.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
const RANKS_PER_HOST: usize = 8;
const STRANGERS: u32 = 2000;

/// Rank 0: says when all are there, and stays until its input ends.
fn rank_0() -> Result<()> {
    let group = phalanx_group::init()?;
    println!("complete");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    std::mem::forget(group);
    std::process::exit(0);
}

fn within() -> Deadline {
    Deadline::after(Instant::now(), HANG)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A process whose costs are looked at.
struct Process(Child);

impl Process {
    /// In KiB.
    fn status(&self, field: &str) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = text.lines().find(|line| line.starts_with(field)).ok_or("no such field")?;
        Ok(line.split_whitespace().nth(1).ok_or("no value")?.parse()?)
    }

    /// The processor time of all its threads.
    fn cpu(&self) -> Result<Duration> {
        let mut sum = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            sum += text.split_whitespace().next().ok_or("no value")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(sum))
    }

    fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.0.id()))?.count())
    }
}

impl Drop for Process {
    /// It ends when its input does; before that it may have something to say of an error.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines of ranks that are here, which beat as those of real ranks do.
#[derive(Default)]
struct Lines {
    senders: Mutex<Vec<SessionSender>>,
    /// The place of one that is dead.
    dead: AtomicUsize,
    over: AtomicBool,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<SessionSender>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beat(&self) -> Result<()> {
        let beat = postcard::to_stdvec(&Notice::Beat)?;
        while !self.over.load(Ordering::Relaxed) {
            let next = Instant::now() + BEAT_INTERVAL;
            let dead = self.dead.load(Ordering::Relaxed);
            for (place, sender) in self.lock().iter().enumerate() {
                if place + 1 != dead {
                    let _ = sender.send(&beat);
                }
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

/// All ranks but rank 0.
struct Played {
    receivers: Vec<Option<SessionReceiver>>,
    epoll: rustix::fd::OwnedFd,
    received: usize,
}

impl Played {
    fn join(lines: &Lines, ranks: usize, addr: &str, secret: &Secret, settings: &str) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut played = Self { receivers: Vec::new(), epoll, received: 0 };
        for rank in 1..ranks {
            let hello = Hello {
                purpose: Purpose::Control,
                rank: rank as u32,
                called: 0,
                world_size: ranks as u32,
                group: WORLD,
            };
            let (sender, receiver) = open_session(addr, secret, &hello, &within())?.split();
            let host = rank / RANKS_PER_HOST;
            let local = Local {
                host: format!("6a0b4c52-8f1e-4f43-9f60-2c1f1e{host:06x}/4026531840"),
                name: format!("phalanx-{:06x}", rank * 7_919_003 % (1 << 24)),
                longest: 64 << 30,
            };
            let ip = [10, (host >> 16) as u8, (host >> 8) as u8, host as u8];
            let join = Notice::Join {
                host: format!("node{host:04}.cluster:{}", 100_000 + rank * 13),
                addr: (ip, 30_000 + (rank % 30_000) as u16).into(),
                local: Some(local),
                settings: settings.to_owned(),
            };
            sender.send(&postcard::to_stdvec(&join)?)?;
            let data = epoll::EventData::new_u64(rank as u64 - 1);
            epoll::add(&played.epoll, &receiver, data, epoll::EventFlags::IN)?;
            lines.lock().push(sender);
            played.receivers.push(Some(receiver));
        }
        Ok(played)
    }

    /// Hears verdicts until all of so many ranks have heard one like this.
    fn hear(&mut self, all: usize, is_it: impl Fn(&[u8]) -> bool) -> Result<Instant> {
        let (mut has, mut count) = (vec![false; self.receivers.len()], 0);
        let mut events = Vec::with_capacity(256);
        let deadline = within();
        while count < all {
            if deadline.has_passed(Instant::now()) {
                return Err(format!("only {count} of {all} ranks have heard it").into());
            }
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in events.drain(..) {
                let place = event.data.u64() as usize;
                let Some(receiver) = &mut self.receivers[place] else { continue };
                // Of a message that has come in part, the rest is not waited for: others have come.
                while let Some(message) = receiver.recv(&Deadline::after(Instant::now(), Duration::ZERO))? {
                    self.received += message.len();
                    if !has[place] && is_it(&message) {
                        has[place] = true;
                        count += 1;
                    }
                }
            }
        }
        Ok(Instant::now())
    }
}

/// Whether a verdict is of this kind; the kind is its first byte.
fn like(verdict: &Verdict) -> Result<u8> {
    Ok(postcard::to_stdvec(verdict)?[0])
}

fn strangers(addr: &str) -> Result<()> {
    for _ in 0..STRANGERS {
        let mut stream = TcpStream::connect(addr)?;
        stream.write_all(
            b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n and more than a handshake's first message is long",
        )?;
        // Until it is sent away.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    Ok(())
}

fn play(ranks: usize) -> Result<()> {
    let (store, port, secret) = (free_port()?, free_port()?, Secret::generate()?);
    let variables = [
        ("RANK", "0".to_string()),
        ("WORLD_SIZE", ranks.to_string()),
        ("LOCAL_RANK", "0".into()),
        ("LOCAL_WORLD_SIZE", "1".into()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", store.to_string()),
        ("PHALANX_SECRET", secret.to_hex().to_string()),
        ("PHALANX_PORT", port.to_string()),
        ("PHALANX_HOST", "127.0.0.1".into()),
        ("PHALANX_BACKEND", "tcp".into()),
        ("PHALANX_SELF_TEST", "0".into()),
    ];
    let config = Config::from_lookup(|name| {
        variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone())
    })?;
    let child = Command::new(std::env::current_exe()?)
        .arg("--rank-0")
        .envs(variables)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut rank_0 = Process(child);
    let mut said = BufReader::new(rank_0.0.stdout.take().ok_or("no output")?);

    let client = TcpStore::connect(&format!("127.0.0.1:{store}"), &secret, &within())?;
    let client = PrefixStore::new(config.job_id.as_str(), client);
    let start = u64::from_le_bytes(client.get("start", &within())?.as_slice().try_into()?);
    let secret = secret.of_start(start).of_generation(0);
    let addr = format!("127.0.0.1:{port}");
    let settings = phalanx_group::played_settings(&config);

    let lines = Arc::new(Lines::default());
    let beating = lines.clone();
    std::thread::spawn(move || beating.beat().map_err(|e| eprintln!("{e}")));
    let begun = Instant::now();
    let mut played = Played::join(&lines, ranks, &addr, &secret, &settings)?;
    let joined = Instant::now();
    println!("{ranks} ranks: lines and handshakes took {:.2} s", (joined - begun).as_secs_f64());

    let complete = like(&Verdict::Complete { members: Default::default() })?;
    let heard = played.hear(ranks - 1, |message| message.first() == Some(&complete))?;
    let mut line = String::new();
    said.read_line(&mut line)?;
    assert_eq!(line.trim(), "complete", "rank 0 has failed");
    println!(
        "all have heard that all are there {:.2} s after the last had joined, rank 0's init returned after {:.2} s; {:.1} MB were sent",
        (heard - joined).as_secs_f64(),
        joined.elapsed().as_secs_f64(),
        played.received as f64 / 1e6,
    );
    println!(
        "rank 0: {:.1} MB at most, {:.1} MB now, {} threads, {} descriptors",
        rank_0.status("VmHWM")? as f64 / 1e3,
        rank_0.status("VmRSS")? as f64 / 1e3,
        rank_0.status("Threads")?,
        rank_0.descriptors()?,
    );

    let reading = AtomicBool::new(true);
    std::thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| -> std::result::Result<(), String> {
            // Beats are read so that nobody is taken for one who does not read.
            let beat = like(&Verdict::Beat).map_err(|e| e.to_string())?;
            while reading.load(Ordering::Relaxed) {
                played
                    .hear(ranks - 1, |message| message.first() == Some(&beat))
                    .map_err(|e| e.to_string())?;
            }
            Ok(())
        });
        let (at, cpu) = (Instant::now(), rank_0.cpu()?);
        std::thread::sleep(Duration::from_secs(5));
        let idle = (rank_0.cpu()? - cpu).as_secs_f64() / at.elapsed().as_secs_f64();
        println!("beats: rank 0 takes {:.1} % of a core", 100.0 * idle);
        let (at, cpu) = (Instant::now(), rank_0.cpu()?);
        strangers(&addr)?;
        let spent = (rank_0.cpu()? - cpu).as_secs_f64() - idle * at.elapsed().as_secs_f64();
        println!("a stranger: {:.0} us of rank 0's time", 1e6 * spent / f64::from(STRANGERS));
        reading.store(false, Ordering::Relaxed);
        Ok(reader.join().map_err(|_| "the reader panicked")??)
    })?;

    // The last rank dies.
    let lost = like(&Verdict::Left { rank: 0, after: None, finished: 0 })? - 1;
    let dead = ranks - 2;
    lines.dead.store(dead + 1, Ordering::Relaxed);
    played.receivers[dead] = None;
    let at = Instant::now();
    lines.lock()[dead].close();
    let told = played.hear(ranks - 2, |message| message.first() == Some(&lost))?;
    println!("all others hear of a death after {:.3} s", (told - at).as_secs_f64());
    lines.over.store(true, Ordering::Relaxed);
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("--rank-0") => rank_0(),
        Some(ranks) => play(ranks.parse()?),
        None => Err("how many ranks?".into()),
    }
}
