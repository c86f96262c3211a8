//! What the launcher gives an agent that it starts through ssh, on its standard input: all that the flags of a command on that host would say, and the
//! secret. So nothing of it is on a command line, which other users of the host can read.

use super::node::Node;
use crate::binding::Binding;
use crate::placement::Room;
use crate::program::Program;
use phalanx_core::{Error, Result};
use phalanx_transport::Secret;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{ErrorKind, Read};

/// Longest letter: more than systems take as arguments and variables of one program.
const LEN_MAX: u32 = 4 << 20;

/// A job for an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Letter {
    pub(crate) secret: String,
    pub(crate) encrypts: bool,
    pub(crate) rank: u32,
    pub(crate) count: u32,
    pub(crate) rendezvous: String,
    pub(crate) places: u32,
    pub(crate) folder: OsString,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(String, OsString)>,
    pub(crate) binding: Binding,
}

impl Letter {
    /// Its length in four bytes, and itself.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let letter = super::protocol::encode(self);
        match u32::try_from(letter.len()) {
            Ok(len) if len <= LEN_MAX => Ok([&len.to_le_bytes()[..], &letter].concat()),
            _ => Err(Error::config(format!(
                "the program's arguments and variables have {} bytes",
                letter.len()
            ))),
        }
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has made.
    pub(crate) fn read(mut from: impl Read) -> Result<Self> {
        let failed = |error| Error::io("reading what the launcher says on standard input", error);
        let mut len = [0; 4];
        from.read_exact(&mut len).map_err(failed)?;
        let len = u32::from_le_bytes(len);
        if len > LEN_MAX {
            return Err(failed(std::io::Error::new(ErrorKind::InvalidData, "that is no launcher's letter")));
        }
        let mut letter = Vec::new();
        from.take(u64::from(len)).read_to_end(&mut letter).map_err(failed)?;
        // The text may have the secret in it.
        postcard::from_bytes(&letter)
            .map_err(|_| failed(std::io::Error::new(ErrorKind::InvalidData, "that is no launcher's letter")))
    }

    /// The host, its room and the program of which it tells.
    pub(crate) fn open(
        self,
        cores: usize,
        not_inherited: Vec<&'static str>,
    ) -> Result<(Node, Room, Program)> {
        let secret = Secret::from_hex(&self.secret)?;
        let secret = if self.encrypts { secret.encrypting() } else { secret };
        let node = Node::new(self.rank as usize, self.count as usize, self.rendezvous, secret)?;
        let program = Program {
            program: self.program,
            args: self.args,
            env: self.env,
            not_inherited,
            // The agent is there.
            folder: None,
            binding: self.binding,
        };
        Ok((node, Room { places: self.places as usize, cores }, program))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn letter() -> Letter {
        Letter {
            secret: "5a".repeat(32),
            encrypts: true,
            rank: 1,
            count: 3,
            rendezvous: "10.0.0.7:29500".into(),
            places: 4,
            folder: "/home/x".into(),
            program: "train".into(),
            args: vec!["--epochs".into(), "3".into()],
            env: vec![("KEY".into(), "secret".into())],
            binding: Binding::Numa,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = letter().to_bytes().unwrap();
        assert_eq!(Letter::read(&bytes[..]).unwrap(), letter());
        let (node, room, program) = letter().open(8, vec![]).unwrap();
        assert_eq!((node.rank, node.count, room.places, room.cores), (1, 3, 4, 8));
        assert!(node.secret.encrypts() && program.args.len() == 2);
    }

    #[test]
    fn what_is_none_is_refused_without_repeating_it() {
        let mut bytes = letter().to_bytes().unwrap();
        bytes.truncate(bytes.len() - 5);
        let error = Letter::read(&bytes[..]).unwrap_err().to_string();
        assert!(error.contains("no launcher's letter") && !error.contains("5a5a"), "{error}");
        assert!(Letter::read(&[0xff; 100][..]).is_err() && Letter::read(&[][..]).is_err());
    }
}
