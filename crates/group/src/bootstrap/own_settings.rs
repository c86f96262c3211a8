//! This rank's settings, on which all ranks agree at `init`: with others they would choose differently, or misread each other's bytes.
//!
//! Text, so that a process of any build and byte order can read what another says of itself. The arbiter compares it with that of the others:
//! `control/settings_agreement.rs`.

use super::build::Build;
use phalanx_rendezvous::Config;

/// The settings as text, one line for each: its name (of a setting, its variable), and its value in words.
pub(crate) fn own_settings(config: &Config, build: Build) -> String {
    let switch = |on| if on { "on" } else { "off" };
    let algorithms = config.algorithms.as_deref().unwrap_or("as recommended").replace('\n', " ");
    let heartbeat =
        config.heartbeat_timeout.map_or_else(|| "none".into(), |limit| format!("{} s", limit.as_secs_f64()));
    let settings = [
        ("PHALANX_BACKEND", config.backend.to_string()),
        ("PHALANX_ALGO", algorithms),
        ("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat),
        ("PHALANX_STAGING", or_measured(config.staging)),
        ("PHALANX_LIBRARY_COPY", or_measured(config.library_copy)),
        ("PHALANX_KERNEL_COPY", or_measured(config.kernel_copy.map(switch))),
        ("PHALANX_REPRODUCIBLE", switch(config.reproducible).into()),
        ("PHALANX_SELF_TEST", switch(config.self_test).into()),
        ("PHALANX_CHECKSUM", switch(config.checksum).into()),
    ];
    let lines = build.settings().into_iter().chain(settings);
    lines.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("\n")
}

/// A choice that the ranks make by a measurement, unless it is forced.
fn or_measured(forced: Option<impl ToString>) -> String {
    forced.map_or_else(|| "as measured".into(), |choice| choice.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::settings_agreement::settings_difference;

    #[test]
    fn only_what_differs_is_named() {
        let of = |seconds: &str, algorithms: &str| {
            let pairs = [("PHALANX_HEARTBEAT_TIMEOUT_S", seconds), ("PHALANX_ALGO", algorithms)];
            let lookup =
                |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
            own_settings(&Config::from_lookup(lookup).unwrap(), Build::here())
        };
        assert_eq!(
            settings_difference((1, &of("6", "")), (0, &of("5", ""))),
            "PHALANX_HEARTBEAT_TIMEOUT_S differs: 6 s at rank 1, 5 s at rank 0"
        );
        assert_eq!(
            settings_difference((1, &of("0", "all_reduce=ring")), (0, &of("5", ""))),
            "PHALANX_ALGO differs: all_reduce=ring at rank 1, as recommended at rank 0; \
             PHALANX_HEARTBEAT_TIMEOUT_S differs: none at rank 1, 5 s at rank 0"
        );
        let older = of("5", "")
            .replace("build=phalanx", "build=phalanx 0.0.1, not")
            .replace("byte order=little-endian\n", "");
        let words = settings_difference((1, &older), (0, &of("5", "")));
        assert!(
            words.starts_with("build differs: phalanx 0.0.1, not ") && words.matches("differs").count() == 1,
            "{words}"
        );
        assert_eq!(settings_difference((0, "a"), (1, "b")), "rank 0 runs with \"a\", rank 1 with \"b\"");
    }
}
