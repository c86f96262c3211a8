//! The address book: who all ranks are, and where. The arbiter sends it to each of them, so it is made once and is short on the wire.
//!
//! Ranks of one host stand one after another, and their names, addresses and keys begin alike. So each text is told by how much of it equals
//! that of the rank before, and the rest (front coding, as in dictionaries and in the names of `locate`): about 17 bytes a rank instead of 130.

use crate::member::{Local, Member, TEXT_LEN_MAX};
use phalanx_core::Peer;
use serde::{Deserialize, Serialize, Serializer};
use std::net::{IpAddr, SocketAddr};

/// Bytes of all texts in a book: those of 100,000 ranks are 20 MB. More than that was not made by an arbiter.
const TEXTS_LEN_MAX: usize = 256 << 20;

/// All members of a job, in the order of their ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Entry>")]
pub struct AddressBook {
    members: Vec<Member>,
}

impl AddressBook {
    /// Of these, the first of which is rank 0.
    pub fn new(members: Vec<Member>) -> Self {
        Self { members }
    }

    /// All members, in the order of their ranks.
    pub fn members(&self) -> &[Member] {
        &self.members
    }
}

/// How a member differs from the one before.
#[derive(Serialize, Deserialize)]
struct Entry {
    name: Difference,
    /// `None`: as before.
    place: Option<Place>,
    /// As two bytes: most ports take three as a number of varying length.
    port: [u8; 2],
    /// The name under which it takes memory; empty where it shares none.
    memory: Difference,
}

/// What the ranks of one host have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Place {
    ip: IpAddr,
    /// The key of the host, and the longest memory; `None` where none is shared.
    sharing: Option<(String, u64)>,
}

impl Place {
    fn of(member: &Member) -> Self {
        let sharing = member.local.as_ref().map(|local| (local.host.clone(), local.longest));
        Self { ip: member.addr.ip(), sharing }
    }
}

/// A text that begins as the one before.
#[derive(Serialize, Deserialize)]
struct Difference {
    /// Bytes that are the same.
    same: usize,
    rest: String,
}

impl Difference {
    fn new(before: &str, text: &str) -> Self {
        let equal = before.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        let same = text.floor_char_boundary(equal);
        Self { same, rest: text[same..].to_owned() }
    }

    fn applied_to(&self, before: &str) -> Result<String, String> {
        match before.get(..self.same) {
            Some(same) if same.len() + self.rest.len() <= TEXT_LEN_MAX => Ok(same.to_owned() + &self.rest),
            Some(_) => Err(format!("a text of more than {TEXT_LEN_MAX} bytes")),
            None => Err(format!("it begins as the first {} of {} bytes", self.same, before.len())),
        }
    }
}

impl Serialize for AddressBook {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut name, mut place, mut memory) = ("", None, "");
        serializer.collect_seq(self.members.iter().map(|member| {
            let here = Place::of(member);
            let own = member.local.as_ref().map_or("", |local| &local.name);
            let entry = Entry {
                name: Difference::new(name, &member.peer.host),
                place: (place.as_ref() != Some(&here)).then(|| here.clone()),
                port: member.addr.port().to_be_bytes(),
                memory: Difference::new(memory, own),
            };
            (name, place, memory) = (&member.peer.host, Some(here), own);
            entry
        }))
    }
}

impl TryFrom<Vec<Entry>> for AddressBook {
    type Error = String;

    fn try_from(entries: Vec<Entry>) -> Result<Self, String> {
        let (mut name, mut place, mut memory, mut len) = (String::new(), None, String::new(), 0);
        let mut members = Vec::new();
        for (rank, entry) in entries.into_iter().enumerate() {
            name = entry.name.applied_to(&name)?;
            memory = entry.memory.applied_to(&memory)?;
            place = entry.place.or(place);
            let Some(Place { ip, sharing }) = &place else { return Err("the first rank is nowhere".into()) };
            let host = sharing.as_ref().map_or(0, |(host, _)| host.len());
            len += name.len() + memory.len() + host;
            if host > TEXT_LEN_MAX || len > TEXTS_LEN_MAX {
                return Err(format!("{len} bytes of texts up to rank {rank}"));
            }
            let local = sharing.clone().map(|(host, longest)| Local { host, name: memory.clone(), longest });
            let addr = SocketAddr::new(*ip, u16::from_be_bytes(entry.port));
            members.push(Member { peer: Peer { rank, host: name.clone() }, addr, local });
        }
        Ok(Self { members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: usize, host: &str, local: Option<&str>) -> Member {
        let local =
            local.map(|key| Local { host: key.into(), name: format!("phalanx-{rank:05}"), longest: 1 << 40 });
        let addr = SocketAddr::from(([10, 0, 0, host.len() as u8], 40_000 + rank as u16));
        Member { peer: Peer { rank, host: format!("{host}:{}", 3000 + rank) }, addr, local }
    }

    fn round_trip(members: Vec<Member>) -> usize {
        let book = AddressBook::new(members);
        let bytes = postcard::to_stdvec(&book).unwrap();
        assert_eq!(postcard::from_bytes::<AddressBook>(&bytes).unwrap(), book);
        bytes.len()
    }

    #[test]
    fn every_book_comes_back_as_it_was() {
        round_trip(Vec::new());
        round_trip(vec![member(0, "", None)]);
        // Hosts that alternate, texts that begin alike within a character, and ranks between others that share no memory.
        let hosts = ["node1", "knöten", "knåten", "node1", "", "node10"];
        let of = |rank: usize| {
            let key =
                (rank % 3 != 1).then_some(if rank.is_multiple_of(2) { "boot-ä/1" } else { "boot-å/2" });
            member(rank, hosts[rank % hosts.len()], key)
        };
        round_trip((0..100).map(of).collect());
    }

    #[test]
    fn a_book_of_many_ranks_is_short() {
        let of = |rank: usize| {
            member(rank, &format!("node{:04}.cluster", rank / 8), Some("6a0b4c52-8f1e/4026531840"))
        };
        let len = round_trip((0..8000).map(of).collect());
        assert!(len < 8000 * 19, "{len} bytes");
    }

    #[test]
    fn a_book_that_nobody_has_made_is_refused() {
        let difference = |same, rest: &str| Difference { same, rest: rest.into() };
        let entry = |name| {
            let place = Some(Place { ip: IpAddr::from([10, 0, 0, 1]), sharing: None });
            Entry { name, place, port: [0, 1], memory: difference(0, "") }
        };
        let read = |entries: Vec<Entry>| {
            postcard::from_bytes::<AddressBook>(&postcard::to_stdvec(&entries).unwrap()).is_ok()
        };
        assert!(read(vec![entry(difference(0, "a")), entry(difference(1, "b"))]));
        assert!(!read(vec![entry(difference(1, "a"))]), "of nothing");
        assert!(!read(vec![Entry { place: None, ..entry(difference(0, "a")) }]), "nowhere");
        assert!(!read(vec![entry(difference(0, "ä")), entry(difference(1, "b"))]), "a part of a character");
        let long = "l".repeat(TEXT_LEN_MAX);
        assert!(read(vec![entry(difference(0, &long))]));
        assert!(!read(vec![entry(difference(0, &long)), entry(difference(TEXT_LEN_MAX, "b"))]));
        // Three bytes for a text of 4 KiB, often.
        let repeated = (0..=TEXTS_LEN_MAX / TEXT_LEN_MAX)
            .map(|i| entry(difference(i.min(1) * TEXT_LEN_MAX, if i == 0 { &long } else { "" })));
        assert!(!read(repeated.collect()), "more than fits");
    }
}
