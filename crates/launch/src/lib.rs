//! Starts the ranks of a phalanx job, watches them, and cleans up.
