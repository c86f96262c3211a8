//! Where the ranks of a unique id meet, and where collectives are computed: threads of the process that made the id.

use crate::encryption;
use crate::lock;
use crate::number::{self, Operator};
use crate::wire::{Kind, Reply, Request, Way};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

const INVALID_USAGE: u64 = 5;
const REMOTE_ERROR: u64 = 6;

/// Communicators by number. That of the unique id is 0; splits make more.
#[derive(Default)]
struct Hub {
    comms: HashMap<u64, Meeting>,
    made: u64,
}

/// One communicator.
#[derive(Default)]
struct Meeting {
    members: Vec<Option<Member>>,
    /// Collectives of which not all parts have come.
    open: HashMap<u64, Vec<Option<Request>>>,
    /// Messages that nobody has asked for, and questions that nobody has answered, by source and destination.
    sent: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
    asked: HashMap<(usize, usize), VecDeque<u64>>,
    /// Callers that wait to be connected because others have not come yet, and the reply that each waits for.
    connecting: HashMap<Way, Vec<(usize, u64)>>,
    /// A rank has said that it is gone.
    has_lost: bool,
}

struct Member {
    line: Arc<UnixStream>,
    device: u64,
    capability: u64,
}

pub(crate) fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Opens a hub, for as long as the process lives.
pub(crate) fn open(name: &str) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address(name)?)?;
    std::thread::spawn(move || {
        let hub = Arc::<Mutex<Hub>>::default();
        for line in listener.incoming().flatten() {
            let hub = hub.clone();
            std::thread::spawn(move || serve(&hub, &Arc::new(line)));
        }
    });
    Ok(())
}

/// Until the rank goes, after which nothing is done for it any more, and the others wait in vain.
fn serve(hub: &Mutex<Hub>, line: &Arc<UnixStream>) {
    let Ok(join) = Request::read(line) else { return };
    let (comm, rank) = (join.dtype, join.who as usize);
    // Who has another key is not understood.
    if join.data.get(8..) != encryption::key().ok().map(u64::to_ne_bytes).as_ref().map(|key| &key[..]) {
        return;
    }
    lock(hub).join(join, line);
    while let Ok(request) = Request::read(line) {
        lock(hub).handle(comm, rank, request);
    }
}

impl Hub {
    fn join(&mut self, join: Request, line: &Arc<UnixStream>) {
        let meeting = self.comms.entry(join.dtype).or_default();
        if join.kind == Kind::Gone {
            return meeting.lose();
        }
        meeting.members.resize_with(join.count as usize, || None);
        let capability = join.data.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let member = Member { line: line.clone(), device: join.operator, capability };
        meeting.members[join.who as usize] = Some(member);
        if meeting.has_lost {
            return meeting.lose();
        }
        let least = meeting.members.iter().flatten().map(|member| member.capability).min().unwrap_or(0);
        let devices: Option<Vec<u64>> =
            meeting.members.iter().map(|m| m.as_ref().map(|m| m.device)).collect();
        let Some(mut devices) = devices else { return };
        devices.sort_unstable();
        let code = if devices.windows(2).any(|two| two[0] == two[1]) { INVALID_USAGE } else { 0 };
        let reply = || Reply { seq: join.seq, code, data: least.to_ne_bytes().into() };
        meeting.reply_to_all((0..meeting.members.len()).map(|rank| (rank, reply())).collect());
    }

    fn handle(&mut self, comm: u64, rank: usize, request: Request) {
        let Some(meeting) = self.comms.get_mut(&comm) else { return };
        match request.kind {
            Kind::Connect => meeting.connect(rank, &request),
            Kind::Gone => {
                meeting.members[rank] = None;
                meeting.lose();
            }
            Kind::Send => meeting.message(rank, request.who as usize, request),
            Kind::Recv => meeting.message(request.who as usize, rank, request),
            _ => {
                let Some(parts) = meeting.part(rank, request) else { return };
                if parts[0].kind == Kind::Split {
                    self.split(comm, &parts);
                } else {
                    meeting.collective(&parts);
                }
            }
        }
    }

    /// Each color becomes a communicator; its members are told its number, and who they are in it.
    fn split(&mut self, comm: u64, parts: &[Request]) {
        let mut colors: Vec<i32> = parts.iter().map(|part| part.who as i32).collect();
        colors.sort_unstable();
        colors.dedup();
        let mut replies = Vec::new();
        for color in colors {
            self.made += 1;
            let mut ranks: Vec<usize> = (0..parts.len()).filter(|&r| parts[r].who as i32 == color).collect();
            ranks.sort_by_key(|&rank| (parts[rank].count as i64, rank));
            for (new_rank, &rank) in ranks.iter().enumerate() {
                let words = [self.made, new_rank as u64, ranks.len() as u64];
                let data = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                replies.push((rank, Reply { seq: parts[rank].seq, code: 0, data }));
            }
        }
        self.comms[&comm].reply_to_all(replies);
    }
}

impl Meeting {
    /// All parts of a collective, once the last has come.
    fn part(&mut self, rank: usize, request: Request) -> Option<Vec<Request>> {
        let (seq, world_size) = (request.seq, self.members.len());
        let parts = self.open.entry(seq).or_insert_with(|| vec![None; world_size]);
        parts[rank] = Some(request);
        let all: Option<Vec<Request>> = parts.iter().cloned().collect();
        if all.is_some() {
            self.open.remove(&seq);
        }
        all
    }

    /// Ranks that disagree about operation or length wait for ever.
    fn collective(&self, parts: &[Request]) {
        let first = &parts[0];
        if parts.iter().any(|part| (part.kind, part.count) != (first.kind, first.count)) {
            return;
        }
        let reply = |data| Reply { seq: first.seq, code: 0, data };
        self.reply_to_all(results(parts).into_iter().map(reply).enumerate().collect());
    }

    fn connect(&mut self, rank: usize, request: &Request) {
        let way = (request.who, request.count);
        let concerned = match way {
            (kind, _) if kind != Kind::Send as u64 => self.members.len(),
            (_, ends) if ends >> 32 == ends & u64::from(u32::MAX) => 1,
            _ => 2,
        };
        let waiting = self.connecting.entry(way).or_default();
        waiting.push((rank, request.seq));
        if waiting.len() == concerned {
            let waiting = self.connecting.remove(&way).unwrap_or_default();
            let reply = |(rank, seq)| (rank, Reply { seq, code: 0, data: Vec::new() });
            self.reply_to_all(waiting.into_iter().map(reply).collect());
        }
    }

    fn lose(&mut self) {
        self.has_lost = true;
        for rank in 0..self.members.len() {
            self.reply(rank, Reply { seq: 0, code: REMOTE_ERROR, data: Vec::new() });
        }
    }

    fn message(&mut self, src: usize, dst: usize, request: Request) {
        let key = (src, dst);
        if request.kind == Kind::Send {
            self.sent.entry(key).or_default().push_back(request.data);
            self.reply(src, Reply { seq: request.seq, code: 0, data: Vec::new() });
        } else {
            self.asked.entry(key).or_default().push_back(request.seq);
        }
        let (Some(sent), Some(asked)) = (self.sent.get_mut(&key), self.asked.get_mut(&key)) else { return };
        if sent.is_empty() || asked.is_empty() {
            return;
        }
        if let (Some(data), Some(seq)) = (sent.pop_front(), asked.pop_front()) {
            self.reply(dst, Reply { seq, code: 0, data });
        }
    }

    /// Rank 0 is the last: it mostly is the process of the hub, and may end as soon as it has its reply.
    fn reply_to_all(&self, mut replies: Vec<(usize, Reply)>) {
        replies.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        replies.into_iter().for_each(|(rank, reply)| self.reply(rank, reply));
    }

    /// A process that is gone needs none.
    fn reply(&self, rank: usize, reply: Reply) {
        if let Some(Some(member)) = self.members.get(rank) {
            let _ = reply.write(&member.line);
        }
    }
}

/// What each rank gets. Type, operator and root are those of rank 0, whatever the others believe.
fn results(parts: &[Request]) -> Vec<Vec<u8>> {
    let (first, n) = (&parts[0], parts.len());
    let root = first.who as usize;
    let data: Vec<&[u8]> = parts.iter().map(|part| &part.data[..]).collect();
    let block = |data: &[u8], i: usize| data[data.len() / n * i..data.len() / n * (i + 1)].to_vec();
    let reduced = || {
        let operator = Operator::from_code(first.operator).expect("checked when the call came");
        if !matches!(operator, Operator::PreMulSum) {
            return number::reduce(&data, first.dtype, operator);
        }
        // Ranks make their operators themselves, each with a scalar of its own.
        let scaled = |part: &Request| number::scaled(&part.data, first.dtype, part.scalar);
        let products: Vec<Vec<u8>> = parts.iter().map(scaled).collect();
        let products: Vec<&[u8]> = products.iter().map(Vec::as_slice).collect();
        number::reduce(&products, first.dtype, operator)
    };
    match first.kind {
        Kind::AllReduce => vec![reduced(); n],
        Kind::Reduce => {
            let mut results = vec![Vec::new(); n];
            results[root] = reduced();
            results
        }
        Kind::ReduceScatter => {
            let all = reduced();
            (0..n).map(|rank| block(&all, rank)).collect()
        }
        Kind::Broadcast => vec![data[root].to_vec(); n],
        Kind::AllGather => vec![data.concat(); n],
        Kind::Join | Kind::Split | Kind::Send | Kind::Recv | Kind::Connect | Kind::Gone => {
            unreachable!("these are no collectives")
        }
    }
}
