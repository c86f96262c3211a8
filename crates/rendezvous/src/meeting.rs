//! What rank 0 says through a launcher's channel: the job's secret, and where its store is.

use phalanx_transport::Secret;
use std::fmt::Write;

/// At most so many addresses are said and heard.
pub(crate) const HOSTS_MAX: usize = 8;
const HOST_LEN_MAX: usize = 80;
/// First word of the text. Another release may say something else.
const VERSION: &str = "1";
/// Instead of a secret: each process has it already.
const NO_SECRET: &str = "-";

/// The job's secret, and where its store is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meeting {
    /// `None`: each process has it from its own environment.
    pub(crate) secret: Option<Secret>,
    /// The port of the store's server.
    pub(crate) port: u16,
    /// Names and addresses of its host, those that the others will most likely reach first.
    pub(crate) hosts: Vec<String>,
}

impl Meeting {
    /// One word: `1,<secret>,<port>,<host>,…`.
    pub(crate) fn to_text(&self) -> String {
        let secret =
            self.secret.as_ref().map_or_else(|| NO_SECRET.to_owned(), |secret| secret.to_hex().to_string());
        let mut text = format!("{VERSION},{secret},{}", self.port);
        for host in self.hosts.iter().filter(|host| is_host(host)).take(HOSTS_MAX) {
            // Writing to a text does not fail.
            let _ = write!(text, ",{host}");
        }
        text
    }

    /// Reads what [`to_text`](Self::to_text) writes. The error says nothing of the text, which may have a secret in it.
    pub(crate) fn from_text(text: &str) -> Result<Self, &'static str> {
        let mut words = text.split(',');
        if words.next() != Some(VERSION) {
            return Err(
                "rank 0 said something that this build does not understand: do all run the same one?",
            );
        }
        let secret = match words.next() {
            Some(NO_SECRET) => None,
            Some(hex) => Some(Secret::from_hex(hex).map_err(|_| "rank 0 said what is no secret")?),
            None => return Err("rank 0 said no secret"),
        };
        let port = words.next().and_then(|port| port.parse().ok()).filter(|port| *port > 0);
        let port = port.ok_or("rank 0 said no port")?;
        let hosts: Vec<String> = words.take(HOSTS_MAX + 1).map(str::to_owned).collect();
        let right = (1..=HOSTS_MAX).contains(&hosts.len()) && hosts.iter().all(|host| is_host(host));
        if right { Ok(Self { secret, port, hosts }) } else { Err("rank 0 said no address, or what is none") }
    }
}

fn is_host(host: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b".:-_%".contains(&b);
    (1..=HOST_LEN_MAX).contains(&host.len()) && host.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_said_is_heard() {
        for secret in [None, Some(Secret::generate().unwrap())] {
            let hosts = vec!["10.0.0.7".to_owned(), "fe80::1%eth0".into(), "node-7.cluster_a".into()];
            let meeting = Meeting { secret, port: 41_234, hosts };
            let text = meeting.to_text();
            assert!(text.bytes().all(|b| b.is_ascii_graphic()) && text.len() < 1000, "{text}");
            assert_eq!(Meeting::from_text(&text).unwrap(), meeting);
        }
    }

    #[test]
    fn what_is_something_else_is_refused() {
        let hex = "7".repeat(64);
        for (text, said) in [
            (String::new(), "understand"),
            (format!("2,{hex},1,a"), "understand"),
            ("1".into(), "no secret"),
            (format!("1,{},1,a", &hex[1..]), "is no secret"),
            (format!("1,{hex}"), "no port"),
            (format!("1,{hex},0,a"), "no port"),
            (format!("1,{hex},65536,a"), "no port"),
            (format!("1,{hex},1"), "no address"),
            (format!("1,{hex},1,"), "no address"),
            (format!("1,{hex},1,a b"), "no address"),
            (format!("1,-,1,{}", "a".repeat(81)), "no address"),
            (format!("1,-,1{}", ",a".repeat(9)), "no address"),
        ] {
            let error = Meeting::from_text(&text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_as_it_would_be_written(text in "(1,-,[0-9]{1,5}(,[a-z:.%]{0,5}){0,9})|(.{0,80})") {
            if let Ok(meeting) = Meeting::from_text(&text) {
                prop_assert_eq!(Meeting::from_text(&meeting.to_text()).unwrap(), meeting);
            }
        }
    }
}
