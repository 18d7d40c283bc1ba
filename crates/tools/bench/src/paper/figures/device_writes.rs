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
        // A device each, as a write at a random place would move the end of the writes in order.
        let devices = [(); 2].map(|()| Device::on_disk(&run.dir, DEVICE_BYTES, disk.times()));
        let [ordered, random] = devices.map(|device| device.and_then(opened));
        let ([ordered, random], mut at) = ([ordered?, random?], 0);
        let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
        fastrand::fill(&mut bytes);
        // The first write of all is in order of nothing.
        write(&ordered.file, &bytes, at)?;
        let batch = if run.quick { 5 } else { WRITES / setting.runs };
        let mut contenders = [
            Contender::new(IN_ORDER, batch, || {
                at += BLOCK_BYTES as u64;
                write(&ordered.file, &bytes, at)
            }),
            Contender::new(RANDOM, batch, || {
                let block = fastrand::u64(..DEVICE_BYTES / BLOCK_BYTES as u64);
                write(&random.file, &bytes, block * BLOCK_BYTES as u64)
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

/// A device and its file, whose writes are durable.
struct Opened {
    file: File,
    _device: Device,
}

fn opened(device: Device) -> Result<Opened> {
    let direct = libc_o_direct() | rustix::fs::OFlags::DSYNC.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(direct).open(&device.path)?;
    Ok(Opened { file, _device: device })
}

fn write(file: &File, bytes: &[u8], at: u64) -> Result<Duration> {
    timed(|| file.write_all_at(bytes, at))
}
