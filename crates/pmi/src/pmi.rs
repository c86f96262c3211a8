//! PMI-1 over the descriptor that the launcher left open: `PMI_FD`.

use crate::descriptor::inherited_socket;
use crate::fault::Fault;
use crate::talk::{Lines, Step, Talk};
use phalanx_core::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Where the system has it: a launcher that has gone causes an error and no signal.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const QUIET: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const QUIET: SendFlags = SendFlags::empty();

/// Says `value` to all processes of the launcher's job, or hears it: one of them has a value, and all get it. Collective: returns once all have
/// called it.
///
/// It is all that this process can say there: the launcher is told at the end that no more will come, so that MPI can't be started in this
/// process afterwards. `key` and `value` are words of printable ASCII characters.
///
/// # Errors
/// [`Fault::Unusable`]: the descriptor is no open socket, or the launcher refuses, or says what is no PMI-1. [`Fault::Late`]: the launcher,
/// or another process, did not come in time.
///
/// # Examples
/// ```
/// use phalanx_core::Deadline;
/// use std::time::{Duration, Instant};
///
/// let soon = Deadline::after(Instant::now(), Duration::from_secs(5));
/// let fault = phalanx_pmi::pmi::share(-1, "meeting", Some("here"), &soon).unwrap_err();
/// assert!(fault.to_string().starts_with("descriptor -1"));
/// ```
pub fn share(
    descriptor: RawFd,
    key: &str,
    value: Option<&str>,
    deadline: &Deadline,
) -> Result<String, Fault> {
    let socket = inherited_socket(descriptor)
        .map_err(|error| Fault::unusable(format!("descriptor {descriptor} can't be used: {error}")))?;
    share_over(&socket, key, value, deadline)
}

fn share_over(
    socket: &OwnedFd,
    key: &str,
    value: Option<&str>,
    deadline: &Deadline,
) -> Result<String, Fault> {
    let (mut talk, mut line) = Talk::begin(key, value)?;
    let mut lines = Lines::default();
    loop {
        say(socket, line.as_bytes(), talk.awaited(), deadline)?;
        match talk.answer(&hear(socket, &mut lines, talk.awaited(), deadline)?)? {
            Step::Ask(next) => line = next,
            Step::Heard(heard) => return Ok(heard),
        }
    }
}

fn say(socket: &OwnedFd, mut line: &[u8], awaited: &str, deadline: &Deadline) -> Result<(), Fault> {
    while !line.is_empty() {
        wait(socket, PollFlags::OUT, awaited, deadline)?;
        match send(socket, line, SendFlags::DONTWAIT | QUIET) {
            Ok(len) => line = &line[len..],
            Err(error) => is_passing(error)?,
        }
    }
    Ok(())
}

fn hear(socket: &OwnedFd, lines: &mut Lines, awaited: &str, deadline: &Deadline) -> Result<String, Fault> {
    let mut bytes = [0; 1 << 10];
    loop {
        if let Some(line) = lines.pop()? {
            return Ok(line);
        }
        wait(socket, PollFlags::IN, awaited, deadline)?;
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(closed()),
            Ok((len, _)) => lines.push(&bytes[..len])?,
            Err(error) => is_passing(error)?,
        }
    }
}

/// Waits until the socket can be used. Its own time limits and flags are left as they are, for it is the launcher's too.
fn wait(socket: &OwnedFd, what: PollFlags, awaited: &str, deadline: &Deadline) -> Result<(), Fault> {
    loop {
        let left = deadline.remaining(Instant::now());
        if left.is_zero() {
            return Err(Fault::Late(awaited.to_owned()));
        }
        let slice = Timespec::try_from(left.min(Duration::from_secs(60))).unwrap_or_default();
        match poll(&mut [PollFd::new(socket, what)], Some(&slice)) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(error) => is_passing(error)?,
        }
    }
}

fn is_passing(error: Errno) -> Result<(), Fault> {
    match error {
        Errno::AGAIN | Errno::INTR => Ok(()),
        Errno::PIPE | Errno::CONNRESET => Err(closed()),
        error => Err(Fault::unusable(format!("the channel to the launcher broke: {error}"))),
    }
}

fn closed() -> Fault {
    Fault::unusable("the launcher has closed the channel, as it does once a program has used it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::sockets;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn soon() -> Deadline {
        Deadline::after(Instant::now(), Duration::from_secs(20))
    }

    /// A launcher of one process: answers until `silent_at`, and says its answers in pieces.
    fn launcher(socket: UnixStream, silent_at: &str) {
        let (mut reader, mut value) = (BufReader::new(socket.try_clone().unwrap()), "none".to_owned());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line.contains(silent_at) {
                // Stays, and says nothing, until the process has gone.
                let _ = reader.read_line(&mut line);
                return;
            }
            let answer = match line.split_whitespace().next().unwrap() {
                "cmd=init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
                "cmd=get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
                "cmd=get_my_kvsname" => "cmd=my_kvsname kvsname=t".into(),
                "cmd=put" => {
                    value = line.trim_end().split_once(" value=").unwrap().1.to_owned();
                    "cmd=put_result rc=0".into()
                }
                "cmd=barrier_in" => "cmd=barrier_out".into(),
                "cmd=get" => format!("cmd=get_result rc=0 value={value}"),
                _ => "cmd=finalize_ack".into(),
            };
            let (one, other) = answer.split_at(answer.len() / 2);
            for piece in [one, other, "\n"] {
                (&socket).write_all(piece.as_bytes()).unwrap();
            }
        }
    }

    #[test]
    fn a_value_goes_to_the_launcher_and_back() {
        let (theirs, ours) = sockets();
        let launcher = std::thread::spawn(|| launcher(theirs, "never"));
        assert_eq!(share(ours.as_raw_fd(), "key", Some("a,b=c"), &soon()).unwrap(), "a,b=c");
        drop(ours);
        launcher.join().unwrap();
    }

    #[test]
    fn a_silent_launcher_is_given_up_in_time_and_one_that_leaves_at_once() {
        let (theirs, ours) = sockets();
        let launcher = std::thread::spawn(|| launcher(theirs, "barrier_in"));
        let short = Deadline::after(Instant::now(), Duration::from_millis(300));
        let fault = share(ours.as_raw_fd(), "key", Some("a"), &short).unwrap_err();
        assert!(matches!(&fault, Fault::Late(what) if what.contains("barrier")), "{fault:?}");
        drop(ours);
        launcher.join().unwrap();
        let (theirs, ours) = sockets();
        drop(theirs);
        let fault = share(ours.as_raw_fd(), "key", None, &soon()).unwrap_err();
        assert!(fault.to_string().contains("closed the channel"), "{fault:?}");
    }
}
