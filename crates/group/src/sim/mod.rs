//! Whole jobs in one thread, under a simulated network and clock, from one seed.
//!
//! What runs is the real thing wherever it depends on events: the handshake, the arbiter, the membership, the meeting, the engine with
//! its wire and frames, and how the first cause is settled. What is simulated is below and around: connections, time, the
//! program, and everything that goes wrong.

mod account;
mod beats;
mod check;
mod check_generations;
mod connections;
mod division;
mod doing;
mod era;
mod faults;
mod job;
mod launcher;
mod life;
mod log;
mod network;
mod process;
mod program;
mod random;
mod run;
mod runtime;
mod store;
mod strangers;
mod stream;
mod tally;
mod tests;
mod transport;
