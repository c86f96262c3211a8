//! The agreement of settings at `init`. They are text that must be the same on all ranks, one setting a line; the arbiter refuses a rank that has others.

use std::collections::HashMap;

/// What the ranks of a job run with.
#[derive(Debug, Default)]
pub(crate) struct SettingsAgreement {
    /// The settings of the first rank that came.
    first: Option<(usize, String)>,
}

impl SettingsAgreement {
    /// A rank comes with these settings.
    ///
    /// # Errors
    /// In what they differ from those of the first, in words.
    pub(crate) fn join(&mut self, rank: usize, settings: String) -> Result<(), String> {
        let (first, theirs) = self.first.get_or_insert_with(|| (rank, settings.clone()));
        if *theirs == settings {
            return Ok(());
        }
        Err(settings_difference((rank, &settings), (*first, theirs)))
    }
}

/// Names the settings that differ, with both values. Of texts that are no settings, both.
pub fn settings_difference((rank, ours): (usize, &str), (other, theirs): (usize, &str)) -> String {
    let settings = |text: &'_ str| -> Option<Vec<(String, String)>> {
        text.lines().map(|line| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()))).collect()
    };
    let differ = |ours: Vec<(String, String)>, theirs: Vec<(String, String)>| -> Vec<String> {
        // Another build may have other lines; what both have is compared.
        let theirs: HashMap<_, _> = theirs.into_iter().collect();
        let pairs = ours.into_iter().filter_map(|ours| Some((theirs.get_key_value(&ours.0)?, ours)));
        let differ = pairs.filter(|((_, b), (_, a))| a != *b);
        differ
            .map(|((name, b), (_, a))| format!("{name} differs: {a} at rank {rank}, {b} at rank {other}"))
            .collect()
    };
    let found = settings(ours).zip(settings(theirs)).map(|(ours, theirs)| differ(ours, theirs));
    match found {
        Some(found) if !found.is_empty() => found.join("; "),
        _ => format!("rank {rank} runs with {ours:?}, rank {other} with {theirs:?}"),
    }
}
