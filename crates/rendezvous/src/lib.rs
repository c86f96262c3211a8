//! How ranks find each other: stores in memory, in a file, over TCP; configuration from the environment.
