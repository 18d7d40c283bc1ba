//! One file, all or nothing: `counter FILE` adds 1 to the number in it; `counter FILE crash` ends before the commit.

use untorn::File;

fn number(file: &File) -> untorn::Result<u64> {
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0))
}

fn main() -> untorn::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or("counter".into());
    let file = File::open_or_create(path)?;
    let was = number(&file)?;
    println!("committed: {was}");

    // The program itself sees the change at once. Nobody else does, and no crash keeps it.
    file.set_len(0)?;
    file.write_all_at(format!("{}\n", was + 1).as_bytes(), 0)?;
    println!("written: {}", number(&file)?);
    if arguments.next().is_some() {
        println!("crash");
        std::process::abort();
    }
    file.commit()?;
    println!("committed: {}", number(&file)?);
    file.close()
}
