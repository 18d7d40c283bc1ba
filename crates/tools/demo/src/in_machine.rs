//! The updates inside a machine that loses its power or its kernel: each keeper's files are verified at the start, and
//! updated until the machine ends.

use crate::build;
use crate::records::{self, Records};
use crate::texts;
use crate::updater::Keeper;
use std::convert::Infallible;
use std::path::Path;
use untorn_terminal::{Failure, say};

/// Verifies the files of every keeper in a directory, then updates all of them for ever, each keeper in a thread. Lines
/// on standard output end with a point, so that a line that was cut off is noticed:
///
/// ```text
/// FOUND untorn 17.       the files hold this update, whole        (BUILT: there were none)
/// TORN plain why.        the files are torn, and are built anew
/// READY.
/// ACK untorn 18.         this update is durable
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
        std::fs::create_dir(dir).map_err(|e| Failure::io("make", dir, e))?;
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
    loop {
        let generation = records.update(&mut *medium, texts, &mut random)?;
        medium.commit()?;
        say!("ACK {} {generation}.", keeper.name());
    }
}
