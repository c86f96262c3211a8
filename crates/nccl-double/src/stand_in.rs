//! The double in place of both libraries, for the examples of `phalanx-nccl`.

/// What this process looks for NCCL and the CUDA driver by is the double from now on. cargo lets the examples that it runs find the file.
pub fn stand_in() {
    for variable in ["PHALANX_NCCL_LIBRARY", "PHALANX_CUDA_LIBRARY"] {
        // SAFETY: an example calls this first, and has no other thread yet.
        unsafe { std::env::set_var(variable, "libphalanx_nccl_double.so") };
    }
}
