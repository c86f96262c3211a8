//! The launcher of a simulated job that is elastic: it says in the store which processes there are, and replaces those that fail.

use super::network::{Event, Net};
use phalanx_rendezvous::Workers;
use std::time::Duration;

/// The launcher.
#[derive(Debug)]
pub(super) struct Launcher {
    workers: Workers,
    /// How long each replacement takes to come as far as `init`; `MAX`: for ever.
    spares: Vec<Duration>,
}

impl Launcher {
    /// Of a job of so many processes.
    pub(super) fn start(processes: usize, spares: &[Duration], net: &Net) -> Self {
        let workers = Workers { started: processes as u64, ..Workers::default() };
        let launcher = Self { workers, spares: spares.iter().rev().copied().collect() };
        launcher.publish(net);
        launcher
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, process: usize, succeeded: bool, net: &Net) {
        self.workers.ended.push(process as u64);
        self.workers.succeeded |= succeeded;
        // What has been done is not done again.
        if !self.workers.succeeded
            && let Some(by) = self.spares.pop()
        {
            let spare = self.workers.started as usize;
            self.workers.started += 1;
            let mut network = net.lock();
            if by < Duration::MAX {
                let at = network.now + by;
                network.at(at, Event::Start(spare));
            }
        }
        self.publish(net);
    }

    fn publish(&self, net: &Net) {
        self.workers.publish(&net.lock().store().table).expect("it is in memory");
    }
}
