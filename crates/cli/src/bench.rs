//! `phalanx bench`.

use crate::complaint::complain;
use phalanx_bench::{Flags, Verdict};
use phalanx_core::Result;

/// Measures and returns the code to exit with: 1 if any data came out wrong, or a case is slower than the record says.
pub(crate) fn run(flags: &Flags) -> Result<i32> {
    let Verdict { wrong, slower } = phalanx_bench::run(flags, &mut std::io::stdout())?;
    if wrong > 0 {
        complain(&format_args!("{wrong} elements came out wrong"));
    }
    if slower > 0 {
        complain(&format_args!("{slower} cells are over 10 % slower than in the record"));
    }
    Ok(i32::from(wrong > 0 || slower > 0))
}
