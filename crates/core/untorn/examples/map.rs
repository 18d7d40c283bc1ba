//! A counter in a mapped file: ordinary stores, then `msync`.

fn main() -> untorn::Result<()> {
    let path = std::env::args().nth(1).unwrap_or("counter".into());
    let file = untorn::File::open_or_create(path)?;
    if file.len()? == 0 {
        file.set_len(4096)?;
    }
    let map = file.map()?;
    // SAFETY: this thread alone uses the map, and the file keeps its size.
    let bytes = unsafe { map.as_mut_slice() };
    bytes[0] = bytes[0].wrapping_add(1);
    map.msync()?;
    println!("run {}", bytes[0]);
    drop(map);
    file.close()
}
