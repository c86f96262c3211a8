//! Packages that stand only in a test.

use super::imports::{self, Arrows};
use std::path::Path;

/// The arrows of a library whose files have these paths and this text.
pub(super) fn arrows(files: &[(&str, &str)]) -> Arrows {
    let folder = Path::new("planted");
    let read = |file: &Path| {
        let file = file.strip_prefix(folder).ok()?;
        files.iter().find(|(path, _)| Path::new(path) == file).map(|(_, text)| (*text).to_owned())
    };
    let mut arrows = Arrows::new();
    imports::add(folder, &folder.join("src/lib.rs"), &read, &mut arrows).expect("planted files can be read");
    arrows
}
