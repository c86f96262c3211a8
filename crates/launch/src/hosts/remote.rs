//! A process that an agent has started on another host, as the leader has it: what [`Process`](crate::process::Process) is for one of this host.

use super::protocol::{Order, Stream, WINDOW};
use crate::exit_kind::ExitKind;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sends an order to the agent of one host. Nothing happens if that is gone.
pub(crate) type Line = Arc<dyn Fn(Order) + Send + Sync>;

type Listener = Box<dyn FnOnce(ExitKind) + Send>;

/// What is known of a process on another host.
#[derive(Clone)]
pub(super) struct Task(Arc<Mutex<State>>);

struct State {
    pid: u32,
    exit: Option<ExitKind>,
    /// Why its host is lost.
    host_fault: Option<String>,
    ended: Option<Listener>,
    out: Option<Pipe>,
    err: Option<Pipe>,
}

/// The writing end of a stream.
struct Pipe {
    pieces: Sender<Vec<u8>>,
    /// Bytes that came and were not taken yet.
    waiting: Arc<Mutex<usize>>,
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pid(&self) -> u32 {
        self.lock().pid
    }

    pub(super) fn started(&self, pid: u32) {
        self.lock().pid = pid;
    }

    /// A piece of its output has come. An error if more came than was asked for.
    pub(super) fn output(&self, stream: Stream, bytes: Vec<u8>) -> Result<(), String> {
        let state = self.lock();
        let pipe = match stream {
            Stream::Out => &state.out,
            Stream::Err => &state.err,
        };
        let Some(pipe) = pipe else { return Ok(()) };
        let mut waiting = pipe.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting += bytes.len();
        if *waiting > WINDOW {
            return Err("it sends more output than may be on its way".into());
        }
        drop(waiting);
        // Nobody reads any more when the job is over.
        let _ = pipe.pieces.send(bytes);
        Ok(())
    }

    pub(super) fn closed(&self, stream: Stream) {
        let mut state = self.lock();
        match stream {
            Stream::Out => state.out = None,
            Stream::Err => state.err = None,
        }
    }

    /// It has ended. The first word counts.
    pub(super) fn ended(&self, exit: ExitKind) {
        let mut state = self.lock();
        if state.exit.is_none() {
            state.exit = Some(exit);
            if let Some(ended) = state.ended.take() {
                drop(state);
                ended(exit);
            }
        }
    }

    /// Its host is lost, for this reason: nothing more is heard of it.
    pub(super) fn lost(&self, why: &str) {
        self.lock().host_fault = Some(why.to_owned());
        self.closed(Stream::Out);
        self.closed(Stream::Err);
        self.ended(ExitKind::HostLost);
    }
}

/// A process on another host.
pub(crate) struct RemoteProcess {
    number: u64,
    task: Task,
    line: Line,
    output: Option<(RemoteOutput, RemoteOutput)>,
}

impl RemoteProcess {
    /// The process with this number, which its agent is to start.
    pub(super) fn new(number: u64, line: Line) -> (Self, Task) {
        let pipe = |stream| {
            let (pieces, received) = channel();
            let waiting = Arc::default();
            let output = RemoteOutput {
                number,
                stream,
                pieces: received,
                waiting: Arc::clone(&waiting),
                rest: VecDeque::new(),
                line: line.clone(),
            };
            (Pipe { pieces, waiting }, output)
        };
        let ((out, stdout), (err, stderr)) = (pipe(Stream::Out), pipe(Stream::Err));
        let state =
            State { pid: 0, exit: None, host_fault: None, ended: None, out: Some(out), err: Some(err) };
        let task = Task(Arc::new(Mutex::new(state)));
        (Self { number, task: task.clone(), line, output: Some((stdout, stderr)) }, task)
    }

    /// Its number on its own host; 0 before it is known.
    pub(crate) fn id(&self) -> u32 {
        self.task.pid()
    }

    /// Why its host is lost, if it is.
    pub(crate) fn host_fault(&self) -> Option<String> {
        self.task.lock().host_fault.clone()
    }

    pub(crate) fn take_output(&mut self) -> Option<(RemoteOutput, RemoteOutput)> {
        self.output.take()
    }

    /// Calls `ended` when the process has ended, or its host is lost; on another thread, or on this one if that is known.
    pub(crate) fn watch(&self, ended: impl FnOnce(ExitKind) + Send + 'static) {
        let mut state = self.task.lock();
        match state.exit {
            None => state.ended = Some(Box::new(ended)),
            Some(exit) => {
                drop(state);
                ended(exit);
            }
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        (self.line)(Order::Signal { task: self.number, signal });
    }

    /// The agent says if it is not passed on.
    pub(crate) fn tell(&self, signal: i32, behind: Option<u32>) {
        (self.line)(Order::Tell { task: self.number, signal, behind });
    }

    pub(crate) fn reap(&self) {
        (self.line)(Order::Reap { task: self.number });
    }
}

/// What a process on another host writes: the reading end.
pub(crate) struct RemoteOutput {
    number: u64,
    stream: Stream,
    pieces: Receiver<Vec<u8>>,
    waiting: Arc<Mutex<usize>>,
    rest: VecDeque<u8>,
    line: Line,
}

impl Read for RemoteOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) -= piece.len();
            let bytes = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            (self.line)(Order::Taken { task: self.number, stream: self.stream, bytes });
            self.rest = piece.into();
        }
        self.rest.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_read_and_what_is_read_is_asked_for_again() {
        let (orders, ordered) = channel();
        let line: Line = Arc::new(move |order| orders.send(order).unwrap());
        let (mut process, task) = RemoteProcess::new(7, line);
        let (mut out, _err) = process.take_output().unwrap();
        task.output(Stream::Out, b"one".to_vec()).unwrap();
        let mut bytes = [0; 2];
        assert_eq!((out.read(&mut bytes).unwrap(), &bytes), (2, b"on"));
        assert_eq!(
            ordered.try_iter().collect::<Vec<_>>(),
            [Order::Taken { task: 7, stream: Stream::Out, bytes: 3 }]
        );
        assert_eq!(out.read(&mut bytes).unwrap(), 1);
        task.output(Stream::Out, vec![0; WINDOW]).unwrap();
        assert!(task.output(Stream::Out, vec![0]).is_err(), "that was not asked for");
        task.closed(Stream::Out);
        assert_eq!(io::copy(&mut out, &mut io::sink()).unwrap() as usize, WINDOW);
    }

    #[test]
    fn its_end_is_heard_once_whenever_it_comes() {
        for early in [true, false] {
            let (process, task) = RemoteProcess::new(7, Arc::new(|_| {}));
            let (ends, ended) = channel();
            if early {
                task.ended(ExitKind::Code(3));
            }
            process.watch(move |exit| ends.send(exit).unwrap());
            task.ended(ExitKind::Code(3));
            task.lost("it went down");
            assert_eq!(ended.try_iter().collect::<Vec<_>>(), [ExitKind::Code(3)]);
        }
    }
}
