//! Judging silence: a process that is stopped, a host that is cut off, or a network that is cut. Without a clock or a socket.
//!
//! A rank that hears nothing of another can't tell by that which of the two is cut off. The others can: a host that reaches nobody is cut off
//! itself, and one that reaches some but not the silent one is not. Where there are only two hosts neither can know, and says so.

use std::net::IpAddr;

/// The end that is in trouble when a peer is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// The silent process is stopped, or its host is cut off.
    Peer,
    /// This host is cut off from all others.
    Itself,
    /// The network between the two is cut, and there is nobody else to ask.
    Between,
}

/// Judges the silence of a process at `peer`. `answers` says of each host of the job, this one or not, whether its system, or a rank
/// there, has answered lately.
pub fn judge(own: IpAddr, peer: IpAddr, answers: &[(IpAddr, bool)]) -> Silence {
    let answered = |ip: IpAddr| answers.iter().any(|(host, answers)| *host == ip && *answers);
    if own == peer || answered(peer) {
        return Silence::Peer; // the network is not to blame
    }
    let others: Vec<bool> = answers
        .iter()
        .filter(|(host, _)| *host != own && *host != peer)
        .map(|(_, answers)| *answers)
        .collect();
    match others.as_slice() {
        [] => Silence::Between,
        some if some.contains(&true) => Silence::Peer,
        _ => Silence::Itself,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn of(own: u8, peer: u8, answers: &[(u8, bool)]) -> Silence {
        let answers: Vec<_> = answers.iter().map(|&(n, answers)| (host(n), answers)).collect();
        judge(host(own), host(peer), &answers)
    }

    #[test]
    fn who_reaches_nobody_is_cut_off_and_who_reaches_others_is_not() {
        assert_eq!(of(0, 2, &[(0, true), (1, true), (2, false)]), Silence::Peer);
        assert_eq!(of(2, 0, &[(0, false), (1, false), (2, true)]), Silence::Itself);
        assert_eq!(of(0, 1, &[(1, false), (2, false)]), Silence::Itself);
        assert_eq!(of(0, 1, &[(1, false), (2, false), (3, true)]), Silence::Peer);
    }

    #[test]
    fn two_hosts_cannot_know() {
        assert_eq!(of(0, 1, &[(0, true), (1, false)]), Silence::Between);
        assert_eq!(of(1, 0, &[(0, false)]), Silence::Between);
    }

    #[test]
    fn a_process_whose_system_answers_is_stopped() {
        assert_eq!(of(0, 1, &[(1, true)]), Silence::Peer);
        assert_eq!(of(0, 1, &[(1, true), (2, false)]), Silence::Peer);
        assert_eq!(of(0, 0, &[]), Silence::Peer, "of one host");
    }
}
