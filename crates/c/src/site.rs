//! Where a C program calls: the file and the line that errors and traces name. The header's macros give `__FILE__` and `__LINE__`.

use phalanx::CallSite;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint};
use std::sync::{Mutex, PoisonError};

/// Files whose names are kept, so that a call copies none. Programs have fewer.
const KEPT_MAX: usize = 4096;

/// The place of a call. A null `file` is one that is not known.
///
/// # Safety
/// `file` is null, or text that a null byte ends.
pub(crate) unsafe fn site(file: *const c_char, line: c_uint) -> CallSite {
    if file.is_null() {
        return CallSite { file: Cow::Borrowed("<c>"), line };
    }
    // SAFETY: it is not null, and the caller sees to it that a null byte ends it.
    let file = unsafe { CStr::from_ptr(file) };
    CallSite { file: kept(file.to_bytes()), line }
}

fn kept(file: &[u8]) -> Cow<'static, str> {
    static FILES: Mutex<Option<HashMap<Vec<u8>, &'static str>>> = Mutex::new(None);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let files = files.get_or_insert_default();
    if let Some(kept) = files.get(file) {
        return Cow::Borrowed(kept);
    }
    let text = end_of(&String::from_utf8_lossy(file)).to_owned();
    if files.len() >= KEPT_MAX {
        return Cow::Owned(text);
    }
    let kept: &'static str = text.leak();
    files.insert(file.to_owned(), kept);
    Cow::Borrowed(kept)
}

/// The end of a file name, as much of it as travels to other ranks.
fn end_of(file: &str) -> &str {
    let cut = file.len().saturating_sub(CallSite::FILE_LEN_MAX);
    let cut = (cut..=file.len()).find(|&i| file.is_char_boundary(i)).unwrap_or(0);
    &file[cut..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_once_and_a_long_name_is_cut() {
        // SAFETY: a literal ends with a null byte.
        let site = || unsafe { site(c"train.c".as_ptr(), 41) };
        assert_eq!(site().to_string(), "train.c:41");
        assert!(
            matches!((site().file, site().file), (Cow::Borrowed(one), Cow::Borrowed(two)) if std::ptr::eq(one, two))
        );
        assert_eq!(end_of(&"ä".repeat(300)), "ä".repeat(100));
    }

    #[test]
    fn no_file_and_strange_bytes_are_places_too() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { site(std::ptr::null(), 3) }.to_string(), "<c>:3");
        // SAFETY: a literal ends with a null byte.
        assert_eq!(unsafe { site(c"\xff.c".as_ptr(), 3) }.to_string(), "\u{fffd}.c:3");
    }
}
