//! Table 1 of paper 000: durable writes of 4 KiB to each device, in order and at random places.

use crate::measuring::disk_model::Disk;
use crate::measuring::fs::{Device, libc_o_direct};
use crate::measuring::harness::{Contender, Plan, interleave, timed};
use crate::paper::measured::{Cell, Panel, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;
use untorn_os::{AlignedBuf, BLOCK_BYTES};

const DEVICE_BYTES: u64 = 256 << 20;
/// The writes of each kind on a device, over all runs.
const WRITES: usize = 200;
const IN_ORDER: &str = "in order";
const RANDOM: &str = "random";

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let mut cells = Vec::new();
    for disk in [Disk::Hdd2013, Disk::Ssd1, Disk::Ssd2] {
        run.progress.cell(format!("{}: durable writes", disk.name()));
        let device = Device::on_disk(&run.dir, DEVICE_BYTES, disk.times())?;
        let direct = libc_o_direct() | rustix::fs::OFlags::DSYNC.bits() as i32;
        let file = OpenOptions::new().write(true).custom_flags(direct).open(&device.path)?;
        let mut at = 0;
        let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
        fastrand::fill(&mut bytes);
        let batch = if run.quick { 5 } else { WRITES / setting.runs };
        let mut contenders = [
            Contender::new(IN_ORDER, batch, || {
                at += BLOCK_BYTES as u64;
                write(&file, &bytes, at)
            }),
            Contender::new(RANDOM, batch, || {
                write(&file, &bytes, fastrand::u64(..DEVICE_BYTES / BLOCK_BYTES as u64) * BLOCK_BYTES as u64)
            }),
        ];
        let plan = Plan { rounds: setting.runs, batches: 1, think: Duration::ZERO };
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        cells.push(Cell::of(disk.name(), &measured, Statistic::Mean));
    }
    let setting = |name: &str, how: &str| [name.to_owned(), how.to_owned()];
    Ok(vec![Panel {
        name: "writes".to_owned(),
        title: "durable writes of 4 KiB".to_owned(),
        place: "models of disks".to_owned(),
        place_details: "loop devices on disks behind FUSE, without a file system".to_owned(),
        unit: Unit::Milliseconds,
        chart: Chart::Groups,
        settings: vec![
            setting(IN_ORDER, "O_DIRECT, O_DSYNC, each behind the one before"),
            setting(RANDOM, "O_DIRECT, O_DSYNC, anywhere in 256 MiB"),
        ],
        cells,
        notes: vec!["The disks are models that were given the paper's latencies, so that this table shows how well they keep them.".to_owned()],
    }])
}

fn write(file: &File, bytes: &[u8], at: u64) -> Result<Duration> {
    timed(|| file.write_all_at(bytes, at))
}
