//! Whom the words of a first cause name.

/// The ranks that `words` name as those at fault; none, if they name nobody.
///
/// A cause begins with the rank that was lost; that of a timeout begins with the rank that waited, and the missing are at its end.
pub(crate) fn culprits(words: &str) -> Vec<usize> {
    let rank = |text: &str| -> Option<usize> { text.strip_prefix("rank ")?.split(' ').next()?.parse().ok() };
    if let Some((_, missing)) = words.split_once("; not arrived: ") {
        let missing = missing.split("; meanwhile").next().unwrap_or_default();
        return missing.split(", ").filter_map(rank).collect();
    }
    if words.starts_with("ranks ") || words.contains(" s in ") {
        return Vec::new();
    }
    rank(words).into_iter().collect()
}

#[test]
fn the_lost_and_the_missing_are_named_and_not_who_says_so() {
    assert_eq!(culprits("rank 4 (node:17) panicked"), [4]);
    let timeout =
        "rank 0 (n:1) waited 3.0 s in all_reduce #4 at a.rs:7; not arrived: rank 4 (n:5), rank 2 (n:3)";
    assert_eq!(culprits(timeout), [4, 2]);
    assert!(culprits("rank 0 (n:1) waited 3.0 s in barrier #4; what it waited for did not come").is_empty());
    assert!(
        culprits("ranks disagree at operation #3: rank 0 (n:1) called a, but rank 1 (n:2) called b")
            .is_empty()
    );
}
