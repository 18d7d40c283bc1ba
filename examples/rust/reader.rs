//! A second process reads while the first one writes: `reader DIR` starts a writer that moves coins between two files,
//! looks at a hundred snapshots, and kills the writer. Each snapshot has 100 coins.

use std::process::{Command, Stdio};
use std::time::Duration;
use untorn::{Reader, Store};

fn write_for_ever(dir: &str) -> untorn::Result<()> {
    let store = Store::open_or_create(dir)?;
    let (ann, bob) = (store.open_or_create_file("ann")?, store.open_or_create_file("bob")?);
    for n in (0..=100u64).cycle() {
        ann.write_all_at(format!("{n:3}").as_bytes(), 0)?;
        bob.write_all_at(format!("{:3}", 100 - n).as_bytes(), 0)?;
        store.syncv(&[&ann, &bob])?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let dir = arguments.get(1).map_or("bank", String::as_str);
    if arguments.len() > 2 {
        return Ok(write_for_ever(dir)?);
    }
    let mut writer = Command::new(std::env::current_exe()?).args([dir, "write"]).stdout(Stdio::null()).spawn()?;
    while !std::path::Path::new(dir).join("bob").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let reader = Reader::open(dir)?;
    let number = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().parse::<u64>();
    let mut last = 3; // two files were made, and the first commit has their contents
    for _ in 0..100 {
        reader.wait_for(last + 1, Duration::from_secs(60))?;
        let (lsn, coins) = reader.with_snapshot(|snapshot| {
            let read = |name| {
                let mut bytes = vec![0; 3];
                snapshot.open(name)?.read_at(&mut bytes, 0)?;
                Ok::<_, untorn::Error>(bytes)
            };
            Ok((snapshot.lsn(), (read("ann")?, read("bob")?)))
        })?;
        let sum = number(coins.0)? + number(coins.1)?;
        assert_eq!(sum, 100, "commit {lsn}");
        last = lsn;
    }
    writer.kill()?;
    writer.wait()?;
    println!("100 snapshots up to commit {last}: 100 coins in each");
    println!("after the kill: {} + {}", number(reader.read("ann")?)?, number(reader.read("bob")?)?);
    Ok(())
}
