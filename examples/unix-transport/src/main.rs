//! Ranks that add up over unix-domain sockets: `PHALANX_BACKEND=unix phalanx run -n 4 target/debug/unix-ranks`.
fn main() -> phalanx::Result<()> {
    #[cfg(target_os = "linux")]
    phalanx::transport::register_transport("unix", std::sync::Arc::new(unix_transport::Unix))?;
    let group = phalanx::init()?;
    let mut sum = vec![group.rank() as f32; 100_000];
    group.all_reduce(&mut sum, phalanx::ReduceOp::Sum)?;
    let line = format!("{}; the sum is {}\n", group.describe(), sum[99_999]);
    std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes())
        .map_err(|error| phalanx::Error::io("writing", error))?;
    group.finalize()
}
