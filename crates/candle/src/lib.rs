//! Data-parallel training for candle over phalanx.
