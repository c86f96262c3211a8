//! The thread that looks after a rank's links while nobody else does.
//!
//! UCX moves nothing by itself: what a program has sent and left may need more calls, peers want answers, and so do those who call a group that has ended.
//! A thread of the program that performs an operation does all that on its way, and this one leaves it alone.

use crate::hub::Hub;
use crate::shared::Shared;
use phalanx_transport::{Direction, Wait};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How often it is looked whether others still drive the worker, or whether what UCX has to send is out.
const TICK: Duration = Duration::from_millis(1);
/// How often calls are looked after that nobody has answered.
const CALL_TICK: Duration = Duration::from_millis(20);
/// How long peers may take to say that they know of the last ends.
const FAREWELL_TIME: Duration = Duration::from_secs(1);
/// Most calls in a row before others have their turn.
const CALLS_MAX: usize = 256;

/// What this thread does next.
enum Next {
    /// Others drive the worker: looks again later.
    Pause,
    /// Sleeps until something comes, or so long.
    Listen(Duration),
    /// Nobody has links any more.
    Stop(Box<Hub>),
}

/// Drives the worker until nobody has links any more, then ends it and says so.
pub(crate) fn attend(shared: &Arc<Shared>, mut wait: Wait, done: &SyncSender<()>) {
    let mut seen = shared.uses();
    let mut farewell_since = None;
    loop {
        let next = look(shared, &mut seen, &mut farewell_since, &mut wait);
        match next {
            Next::Pause => {
                wait.clear();
                wait.sleep(TICK);
            }
            Next::Listen(limit) => wait.sleep(limit),
            Next::Stop(hub) => {
                drop(hub);
                let _ = done.try_send(());
                return;
            }
        }
        shared.attendant_is_awake();
    }
}

fn look(shared: &Arc<Shared>, seen: &mut u64, farewell_since: &mut Option<Instant>, wait: &mut Wait) -> Next {
    let is_over = shared.is_over();
    let uses = shared.uses();
    if uses != *seen && !is_over {
        *seen = uses;
        return Next::Pause;
    }
    let mut slot = shared.lock();
    let Some(hub) = slot.as_deref_mut() else { unreachable!("only this thread takes it") };
    let mut calls = 0;
    while hub.progress() && calls < CALLS_MAX {
        calls += 1;
    }
    let now = Instant::now();
    let are_calls_open = hub.is_calling() && hub.look_after_calls(now);
    if is_over {
        let since = *farewell_since.get_or_insert(now);
        if !hub.is_ending() || now.saturating_duration_since(since) >= FAREWELL_TIME {
            return Next::Stop(slot.take().expect("it is there"));
        }
    }
    if calls == CALLS_MAX {
        return Next::Pause;
    }
    if !hub.arm() {
        // More has come, or UCX waits for room in a peer's memory, of which there is no event.
        return Next::Pause;
    }
    wait.clear();
    wait.add(hub.event_fd(), Direction::Recv);
    let limit = if hub.is_sending() || is_over {
        TICK
    } else if are_calls_open {
        CALL_TICK
    } else {
        shared.attendant_sleeps();
        Duration::MAX
    };
    Next::Listen(limit)
}
