//! What must be the same on all ranks: what else would make them choose differently.

use phalanx_rendezvous::Config;

/// One line a setting: the variable, and its value in words.
pub(crate) fn terms(config: &Config) -> String {
    let switch = |on| if on { "on" } else { "off" };
    let algorithms = config.algorithms.as_deref().unwrap_or("as recommended").replace('\n', " ");
    let heartbeat =
        config.heartbeat_timeout.map_or_else(|| "none".into(), |limit| format!("{} s", limit.as_secs_f64()));
    let lines = [
        ("PHALANX_BACKEND", config.backend.to_string()),
        ("PHALANX_ALGO", algorithms),
        ("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat),
        ("PHALANX_SELF_TEST", switch(config.self_test).into()),
        ("PHALANX_CHECKSUM", switch(config.checksum).into()),
    ];
    lines.map(|(name, value)| format!("{name}={value}")).join("\n")
}

/// Which settings differ, and how. Of texts that are no terms, both.
pub(crate) fn difference((rank, ours): (usize, &str), (other, theirs): (usize, &str)) -> String {
    let settings = |text: &'_ str| -> Option<Vec<(String, String)>> {
        text.lines().map(|line| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()))).collect()
    };
    let differ = |ours: Vec<(String, String)>, theirs: Vec<(String, String)>| -> Vec<String> {
        let pairs = ours.into_iter().zip(theirs);
        let differ = pairs.filter(|((ours, a), (theirs, b))| ours == theirs && a != b);
        differ
            .map(|((name, a), (_, b))| format!("{name} differs: {a} at rank {rank}, {b} at rank {other}"))
            .collect()
    };
    let found = settings(ours).zip(settings(theirs)).map(|(ours, theirs)| differ(ours, theirs));
    match found {
        Some(found) if !found.is_empty() => found.join("; "),
        _ => format!("rank {rank} runs with {ours:?}, rank {other} with {theirs:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_named() {
        let of = |seconds: &str, algorithms: &str| {
            let pairs = [("PHALANX_HEARTBEAT_TIMEOUT_S", seconds), ("PHALANX_ALGO", algorithms)];
            let lookup =
                |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
            terms(&Config::from_lookup(lookup).unwrap())
        };
        assert_eq!(
            difference((1, &of("6", "")), (0, &of("5", ""))),
            "PHALANX_HEARTBEAT_TIMEOUT_S differs: 6 s at rank 1, 5 s at rank 0"
        );
        assert_eq!(
            difference((1, &of("0", "all_reduce=ring")), (0, &of("5", ""))),
            "PHALANX_ALGO differs: all_reduce=ring at rank 1, as recommended at rank 0; \
             PHALANX_HEARTBEAT_TIMEOUT_S differs: none at rank 1, 5 s at rank 0"
        );
        assert_eq!(difference((0, "a"), (1, "b")), "rank 0 runs with \"a\", rank 1 with \"b\"");
    }
}
