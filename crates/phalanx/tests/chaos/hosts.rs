//! Hosts made of network namespaces: each has one cable to a switch, which can be cut.

use crate::plan::RANKS;
use crate::support::{self, Output, ip};
use phalanx::store::Secret;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;

/// Where the store of the first job listens; each has the next.
const PORTS: u16 = 29500;

/// Namespaces, gone with this. Nobody else is on their network.
pub(crate) struct Hosts {
    switch: String,
    hosts: Vec<String>,
}

impl Hosts {
    /// `Err` says why this machine, or this user, can't have them.
    pub(crate) fn connect(number: usize) -> Result<Self, String> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let id = format!("phalanx-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let hosts = (0..number).map(|host| format!("{id}-{host}")).collect();
        let net = Self { switch: format!("{id}-switch"), hosts };
        let switch = &net.switch;
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add bridge type bridge"))?;
        ip(&format!("-n {switch} link set bridge up"))?;
        for (number, host) in net.hosts.iter().enumerate() {
            ip(&format!("netns add {host}"))?;
            ip(&format!("link add cable netns {host} type veth peer name port{number} netns {switch}"))?;
            ip(&format!("-n {host} addr add {}/24 dev cable", addr(number)))?;
            ip(&format!("-n {host} link set cable up"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {switch} link set port{number} master bridge up"))?;
        }
        Ok(net)
    }

    /// From now on nothing passes. With `silently` the host's own end of the cable still stands.
    pub(crate) fn cut(&self, host: usize, silently: bool) {
        let how = if silently { "nomaster" } else { "down" };
        ip(&format!("-n {} link set port{host} {how}", self.switch)).expect("the cable was there before");
    }

    /// Starts the ranks of a job, equally many on each host. What they write goes to `output`, as from a launcher; all of it when the
    /// threads that come back have ended.
    pub(crate) fn start(&self, env: &[(&str, String)], output: &Output) -> (Vec<Child>, Vec<JoinHandle<()>>) {
        static PORT: AtomicU16 = AtomicU16::new(0);
        let port = PORTS + PORT.fetch_add(1, Ordering::Relaxed) % 1000;
        let secret = Secret::generate().expect("there is randomness").to_hex();
        let per_host = RANKS / self.hosts.len();
        let start = |rank: usize| {
            let mut child = support::again_in(&self.hosts[rank / per_host], "worker")
                .envs(env.iter().cloned())
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", RANKS.to_string())
                .env("LOCAL_RANK", (rank % per_host).to_string())
                .env("LOCAL_WORLD_SIZE", per_host.to_string())
                .env("MASTER_ADDR", addr(0))
                .env("MASTER_PORT", port.to_string())
                .env("PHALANX_SECRET", &secret)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("ip was there before");
            let (lines, mut output) =
                (BufReader::new(child.stdout.take().expect("it is piped")), output.clone());
            let reader = std::thread::spawn(move || {
                for line in lines.lines().map_while(Result::ok) {
                    // In one piece: others write there too.
                    let _ = output.write_all(format!("[{rank}] {line}\n").as_bytes());
                }
            });
            (child, reader)
        };
        (0..RANKS).map(start).unzip()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in self.hosts.iter().chain([&self.switch]) {
            // It may never have been there.
            let _ = ip(&format!("netns del {host}"));
        }
    }
}

fn addr(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}
