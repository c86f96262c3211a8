//! Element-wise reduction kernels of phalanx.
