//! A process that an agent has started on another host, as the leader has it: what [`Process`](crate::process::Process) is for one of this host.

use super::protocol::{Order, Stream, WINDOW};
use crate::exit_kind::ExitKind;
use crate::stream::{Output, PieceSender, Pieces, Source};
use std::io;
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
    out: Option<PieceSender>,
    err: Option<PieceSender>,
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
        let pieces = match stream {
            Stream::Out => &state.out,
            Stream::Err => &state.err,
        };
        pieces.as_ref().map_or(Ok(()), |pieces| pieces.push(bytes))
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
    output: Option<Output>,
}

impl RemoteProcess {
    /// The process with this number, which its agent is to start.
    pub(super) fn new(number: u64, line: Line) -> (Self, Task) {
        let pieces = |stream| {
            let line = line.clone();
            Pieces::new(WINDOW, move |len| {
                let bytes = u32::try_from(len).unwrap_or(u32::MAX);
                line(Order::Taken { task: number, stream, bytes });
            })
        };
        let ((out, stdout), (err, stderr)) = (pieces(Stream::Out), pieces(Stream::Err));
        let output = (Source::Pieces(stdout), Source::Pieces(stderr));
        let state =
            State { pid: 0, exit: None, host_fault: None, ended: None, out: Some(out), err: Some(err) };
        let task = Task(Arc::new(Mutex::new(state)));
        (Self { number, task: task.clone(), line, output: Some(output) }, task)
    }

    /// Its number on its own host; 0 before it is known.
    pub(crate) fn id(&self) -> u32 {
        self.task.pid()
    }

    /// Why its host is lost, if it is.
    pub(crate) fn host_fault(&self) -> Option<String> {
        self.task.lock().host_fault.clone()
    }

    pub(crate) fn take_output(&mut self) -> io::Result<Output> {
        self.output.take().ok_or_else(|| io::Error::other("it was taken before"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Taker;
    use std::sync::mpsc::channel;

    /// Takes three bytes.
    #[derive(Default)]
    struct Three(Vec<u8>);

    impl Taker for Three {
        fn room(&self) -> Option<usize> {
            Some(3 - self.0.len())
        }

        fn take(&mut self, bytes: &[u8]) {
            self.0.extend(bytes);
        }

        fn end(&mut self) {}
    }

    #[test]
    fn what_comes_is_read_and_what_is_read_is_asked_for_again() {
        let (orders, ordered) = channel();
        let line: Line = Arc::new(move |order| orders.send(order).unwrap());
        let (mut process, task) = RemoteProcess::new(7, line);
        let (Source::Pieces(out), _err) = process.take_output().unwrap() else { panic!("not in pieces") };
        task.output(Stream::Out, b"one".to_vec()).unwrap();
        task.output(Stream::Out, vec![0; WINDOW - 3]).unwrap();
        let mut taken = Three::default();
        assert!(out.hand_over(&mut taken), "there may be more");
        assert_eq!(taken.0, b"one");
        assert_eq!(
            ordered.try_iter().collect::<Vec<_>>(),
            [Order::Taken { task: 7, stream: Stream::Out, bytes: 3 }]
        );
        task.output(Stream::Out, vec![0; 3]).unwrap();
        assert!(task.output(Stream::Out, vec![0]).is_err(), "that was not asked for");
        task.closed(Stream::Out);
        let mut sum = 0;
        let mut may_be_more = true;
        while may_be_more {
            let mut taken = Three::default();
            may_be_more = out.hand_over(&mut taken);
            sum += taken.0.len();
        }
        assert_eq!(sum, WINDOW);
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
