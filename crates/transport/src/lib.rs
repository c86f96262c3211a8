//! How phalanx moves bytes between two ranks: frames, handshake, threads, TCP.
