//! The target `hosts` under libFuzzer; without that, it runs the files it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| phalanx_fuzz::hosts(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for file in std::env::args_os().skip(1) {
        phalanx_fuzz::hosts(&std::fs::read(file)?);
    }
    Ok(())
}
