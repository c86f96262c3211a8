//! What has happened to a job and was not handled yet, in order; except that what a rank has said comes before its end.

use crate::event::Event;
use std::collections::VecDeque;
use std::sync::mpsc::Receiver;

/// The events that were taken from the channel.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    events: VecDeque<Event>,
    /// How many of them, the first ones, came before the lifelines were last caught up with: what these ranks have said was heard. One more if
    /// that is so of the event that was taken last.
    caught_up: usize,
}

impl Inbox {
    /// Takes the next event, if there is one.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.caught_up = self.caught_up.saturating_sub(1);
        self.events.pop_front()
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Returns what ranks have said before the end that was taken last: `wait` until all of that has come. Many ranks that have ended are waited for
    /// once.
    pub(crate) fn catch_up(&mut self, events: &Receiver<Event>, wait: impl FnOnce()) -> Vec<Event> {
        if self.caught_up > 0 {
            return Vec::new();
        }
        let is_word = |event: &Event| matches!(event, Event::Heard { .. });
        let mut heard = Vec::new();
        let mut sort = |come: Vec<Event>| {
            let (words, others): (Vec<_>, Vec<_>) = come.into_iter().partition(is_word);
            heard.extend(words);
            others
        };
        let before = sort(self.events.drain(..).chain(events.try_iter()).collect());
        wait();
        let since = sort(events.try_iter().collect());
        self.caught_up = 1 + before.len();
        self.events = before.into_iter().chain(since).collect();
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_kind::ExitKind;
    use phalanx_rendezvous::lifeline::Heard;
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    fn ended(rank: usize) -> Event {
        Event::Exited { rank, exit: ExitKind::Code(0) }
    }

    fn said(worker: u64) -> Event {
        Event::Heard { attempt: 0, heard: Heard::Here { worker, pid: 1 } }
    }

    #[test]
    fn what_a_rank_has_said_comes_before_its_end_and_many_ends_are_waited_for_once() {
        let (sender, events) = channel();
        let mut inbox = Inbox::default();
        let waits = Cell::new(0);
        // How many words come before the end of a rank; and what comes while it is waited for them.
        let end = |inbox: &mut Inbox, rank: usize, meanwhile: Vec<Event>| {
            let event = inbox.pop().unwrap_or_else(|| events.try_recv().unwrap());
            assert!(matches!(event, Event::Exited { rank: ended, .. } if ended == rank), "{event:?}");
            let heard = inbox.catch_up(&events, || {
                waits.set(waits.get() + 1);
                meanwhile.into_iter().for_each(|event| sender.send(event).unwrap());
            });
            (heard.len(), waits.get())
        };
        for event in [ended(0), said(7), ended(1), ended(2)] {
            sender.send(event).unwrap();
        }
        assert_eq!(end(&mut inbox, 0, vec![said(1), said(2), ended(3)]), (3, 1));
        assert_eq!(end(&mut inbox, 1, Vec::new()), (0, 1));
        assert_eq!(end(&mut inbox, 2, Vec::new()), (0, 1));
        // This one has ended since: what it has said may have come later than what was waited for.
        assert_eq!(end(&mut inbox, 3, vec![said(3)]), (1, 2));
        sender.send(ended(4)).unwrap();
        assert_eq!(end(&mut inbox, 4, Vec::new()), (0, 3));
        assert_eq!(inbox.iter().count(), 0);
    }
}
