//! Names and contents of the files of a store.

use crate::store::count;

/// Different keys have different, harmless names; a counter counts or leaves a reason, whatever stands in its file.
pub fn files(data: &[u8]) {
    let (delta, rest) = data.split_first_chunk::<8>().unwrap_or((&[1; 8], data));
    let half = rest.len() / 2;
    #[cfg(unix)]
    {
        let name = |bytes| {
            let key = String::from_utf8_lossy(bytes);
            let name = crate::file::file_name(&key);
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_%~".contains(c);
            assert!(!name.is_empty() && name.len() < 255 && name.chars().all(is_plain), "{name}");
            (key, name)
        };
        let (one, other) = (name(&rest[..half]), name(&rest[half..]));
        assert_eq!(one.0 == other.0, one.1 == other.1, "{one:?} {other:?}");
    }
    let delta = i64::from_le_bytes(*delta);
    if let Ok(sum) = count("key", Some(rest), delta) {
        let back = count("key", Some(sum.to_string().as_bytes()), delta.checked_neg().unwrap_or(0));
        let present: i64 = String::from_utf8_lossy(rest).parse().expect("it was counted");
        assert_eq!(sum, present.checked_add(delta).expect("it was counted"));
        assert!(delta == i64::MIN || back == Ok(present));
    }
}
