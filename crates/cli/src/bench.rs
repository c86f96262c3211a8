//! `phalanx bench`.

use crate::complaint::complain;
use phalanx_bench::Flags;
use phalanx_core::Result;

/// Measures and returns the code to exit with: 1 if any data came out wrong.
pub(crate) fn run(flags: &Flags) -> Result<i32> {
    let wrong = phalanx_bench::run(flags, &mut std::io::stdout())?;
    if wrong > 0 {
        complain(&format_args!("{wrong} elements came out wrong"));
    }
    Ok(i32::from(wrong > 0))
}
