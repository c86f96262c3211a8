//! Process groups: every collective, blocking and asynchronous, over any transport.
