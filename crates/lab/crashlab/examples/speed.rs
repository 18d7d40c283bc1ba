//! Measures the speed of the simulated disk: a small store, ten files, a commit, an apply.

use std::path::Path;
use std::time::Instant;
use untorn::__private::sync_point;
use untorn_crashlab::{Options, PROFILES, SimDisk};
use untorn_os::{AlignedBuf, Open};

fn main() {
    for profile in PROFILES {
        let disk = SimDisk::new(Options { profile, ..Options::default() });
        disk.make_directory(".untorn", 0o700, 1000).unwrap();
        disk.put(".untorn/segment", &vec![0; 256 << 10]).unwrap();
        for i in 0..9 {
            disk.put(format!("file{i}"), &[i; 6000]).unwrap();
        }
        disk.settle();
        let process = disk.process();
        disk.record();
        let start = Instant::now();
        let journal = process.open(Path::new(".untorn/segment"), Open::WRITE.direct()).unwrap();
        let mut block = AlignedBuf::zeroed(8192);
        block.fill(7);
        for round in 0..10 {
            journal.write_at(&block, round * 8192).unwrap();
            journal.sync_data(sync_point::COMMIT).unwrap();
            for i in 0..3 {
                let file = process.open(Path::new(&format!("file{i}")), Open::WRITE).unwrap();
                file.write_at(&[round as u8; 100], 64 * round).unwrap();
                file.write_at(&[round as u8; 3000], 3000).unwrap();
                if round % 2 == 1 {
                    file.sync_data(sync_point::CHECKPOINT_DATA).unwrap();
                }
            }
        }
        let calls = disk.calls();
        let run_ns = start.elapsed().as_nanos() as u64 / calls;
        let snapshots = disk.recorded();
        let pending = snapshots.iter().map(|s| s.pending_count()).sum::<usize>() / snapshots.len();

        let start = Instant::now();
        for _ in 0..100_000 {
            std::hint::black_box(disk.snapshot());
        }
        let snapshot_ns = start.elapsed().as_nanos() / 100_000;

        let start = Instant::now();
        let (mut cuts, mut lost) = (0u64, 0u64);
        let mut hashes = std::collections::HashSet::new();
        for snapshot in &snapshots {
            for cut in snapshot.cuts(5000, 1) {
                let outcome = snapshot.power_cut(cut);
                cuts += 1;
                lost += outcome.something_lost as u64;
                hashes.insert(outcome.image_hash);
            }
        }
        let ns = start.elapsed().as_nanos() as u64 / cuts;
        println!(
            "{profile:?}: {run_ns} ns per recorded call, {snapshot_ns} ns per snapshot, {ns} ns per power cut ({pending} units pending on average), \
             {cuts} cuts, {} distinct images, {lost} with something lost",
            hashes.len()
        );
    }
}
