//! The updates inside a machine that loses its power or its kernel: each keeper's files are verified at the start, and
//! updated until the machine ends.

use crate::build;
use crate::records::{self, Records};
use crate::texts;
use crate::updater::Keeper;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use untorn_terminal::{Failure, say};

/// Commits after which it is known whether the journal is in memory.
const LOOKS: u32 = 10;

/// Verifies the files of every keeper in a directory, then updates all of them for ever, each keeper in a thread. Lines
/// on standard output end with a point, so that a line that was cut off is noticed:
///
/// ```text
/// FOUND untorn 17.       the files hold this update, whole        (BUILT: there were none)
/// TORN plain why.        the files are torn, and are built anew
/// READY.
/// ACK untorn 18.         this update is durable
/// MEDIUM untorn memory.  the journal is on byte-addressable memory     (or `disk`)
/// ```
pub fn update_until_the_end(dir: &Path, texts: &Path, seed: u64) -> Result<Infallible, Failure> {
    let (_, texts) = texts::find(Some(texts))?;
    for keeper in Keeper::ALL {
        prepare(keeper, &dir.join(keeper.name()), &texts)?;
    }
    say!("READY.");
    std::thread::scope(|scope| {
        let work = |keeper: Keeper| update(keeper, &dir.join(keeper.name()), &texts, seed);
        let threads = Keeper::ALL.map(|keeper| scope.spawn(move || work(keeper)));
        let ends = threads.map(|thread| thread.join().expect("a thread that updates files"));
        ends.into_iter().next().expect("four keepers")
    })
}

fn prepare(keeper: Keeper, dir: &Path, texts: &[Vec<u8>]) -> Result<(), Failure> {
    let name = keeper.name();
    if !dir.exists() {
        fs::create_dir(dir).map_err(|e| Failure::io("make", dir, e))?;
        let parent = dir.parent().unwrap_or(dir);
        fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(|e| Failure::io("flush", parent, e))?;
        build(keeper, dir, texts)?;
        say!("BUILT {name} 1.");
        return Ok(());
    }
    let medium = keeper.open(dir)?;
    let found = records::verify(&*medium)?;
    medium.close()?;
    match found {
        Ok(generation) => say!("FOUND {name} {generation}."),
        Err(torn) => {
            say!("TORN {name} {torn}.");
            build(keeper, dir, texts)?;
        }
    }
    Ok(())
}

fn update(keeper: Keeper, dir: &Path, texts: &[Vec<u8>], seed: u64) -> Result<Infallible, Failure> {
    let mut medium = keeper.open(dir)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut records = Records::load(&*medium)?;
    // The first record of a new segment is written by calls.
    let mut looks = if keeper.is_atomic() { LOOKS } else { 0 };
    loop {
        let generation = records.update(&mut *medium, texts, &mut random)?;
        medium.commit()?;
        if looks > 0 {
            looks -= 1;
            let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
            let is_in_memory = has_lasting_memory(&maps, dir);
            if is_in_memory || looks == 0 {
                say!("MEDIUM {} {}.", keeper.name(), if is_in_memory { "memory" } else { "disk" });
                looks = 0;
            }
        }
        say!("ACK {} {generation}.", keeper.name());
    }
}

/// Whether a file in this directory is mapped with `MAP_SYNC`. A process's maps have that as the flag `sf`.
fn has_lasting_memory(maps: &str, dir: &Path) -> bool {
    let mut is_here = false;
    maps.lines().any(|line| {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !first.ends_with(':') {
            is_here = rest.split_whitespace().last().is_some_and(|path| Path::new(path).starts_with(dir));
        }
        is_here && first == "VmFlags:" && rest.split_whitespace().any(|flag| flag == "sf")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_memory_is_that_of_the_directory() {
        let maps = "7f1-7f2 rw-s 00000000 103:01 12    /disk/untorn/.untorn/1.seg\n\
                    Size:   64 kB\n\
                    VmFlags: rd wr sh mr mw me ms sf\n\
                    7f3-7f4 rw-s 00000000 103:01 13    /disk/plain/records\n\
                    VmFlags: rd wr sh mr mw me ms\n\
                    7f5-7f6 rw-p 00000000 00:00 0\n\
                    VmFlags: rd wr sf\n";
        assert!(has_lasting_memory(maps, Path::new("/disk/untorn")));
        assert!(has_lasting_memory(maps, Path::new("/disk")));
        assert!(!has_lasting_memory(maps, Path::new("/disk/plain")));
        assert!(!has_lasting_memory(maps, Path::new("/disk/un")));
    }
}
