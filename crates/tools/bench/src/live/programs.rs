//! The C++ programs with live heaps and their peers: compiled here, and each measurement a process of its own.

use crate::kv::library_of_untorn;
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::scratch::Scratch;
use crate::measuring::unavailable::need;
use anyhow::{Context, Result, ensure};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [(&str, &str); 18] = [
    ("untorn.h", include_str!("../../../../../include/untorn.h")),
    ("untorn.hpp", include_str!("../../../../../include/untorn.hpp")),
    ("untorn_heap.hpp", include_str!("../../../../../include/untorn_heap.hpp")),
    ("untorn_section.hpp", include_str!("../../../../../include/untorn_section.hpp")),
    ("untorn_containers.hpp", include_str!("../../../../../include/untorn_containers.hpp")),
    ("untorn_types.hpp", include_str!("../../../../../include/untorn_types.hpp")),
    ("untorn_members.hpp", include_str!("../../../../../include/untorn_members.hpp")),
    ("hooks.c", include_str!("../../../../bindings/c/live/hooks.c")),
    ("libstdcxx.cpp", include_str!("../../../../bindings/c/live/libstdcxx.cpp")),
    ("live_flags.sh", include_str!("../../../../bindings/c/package/live_flags.sh")),
    ("build_live.sh", include_str!("build_live.sh")),
    ("flushing_hooks.sh", include_str!("flushing_hooks.sh")),
    ("live_memory.hpp", include_str!("live_memory.hpp")),
    ("paper_iteration.hpp", include_str!("paper_iteration.hpp")),
    ("live_map.cpp", include_str!("live_map.cpp")),
    ("live_list.cpp", include_str!("live_list.cpp")),
    ("live_kernels.cpp", include_str!("live_kernels.cpp")),
    ("skip_list.hpp", include_str!("../../../../../examples/heap/skip_list/skip_list.hpp")),
];

/// The directory of the programs, and the compilers that built them.
pub(super) struct Built {
    pub(super) scratch: Scratch,
    pub(super) compilers: Vec<String>,
}

/// Compiles the programs with each compiler that is here, at most with `most`.
pub(super) fn build(run: &Run, place: &Place, most: u8) -> Result<Built> {
    let library = library_of_untorn()?;
    need(Command::new("cc").arg("--version").output().is_ok(), "there is no C compiler here")?;
    let scratch = Scratch::new_in(&std::env::temp_dir())?;
    for (name, text) in SOURCES {
        std::fs::write(scratch.path().join(name), text)?;
    }
    // The name by which the programs load the library.
    symlink(library.canonicalize()?, scratch.path().join("libuntorn.so.0"))?;
    run.progress.cell(format!("{}: live, compiling", place.name));
    let built = Command::new("sh")
        .arg("build_live.sh")
        .arg(&library)
        .arg(most.to_string())
        .current_dir(scratch.path())
        .output()?;
    ensure!(built.status.success(), "compiling failed:\n{}", String::from_utf8_lossy(&built.stderr));
    let compilers = String::from_utf8(built.stdout)?;
    need(!compilers.is_empty(), "there is no g++ or clang++ here")?;
    Ok(Built { scratch, compilers: compilers.lines().map(str::to_owned).collect() })
}

/// The programs that one compiler built.
pub(super) struct Programs<'a> {
    pub(super) run: &'a Run,
    pub(super) dir: &'a Path,
    pub(super) scratch: &'a Path,
    pub(super) compiler: &'a str,
}

impl Programs<'_> {
    /// Whether a program was built.
    pub(super) fn has(&self, way: &str) -> bool {
        self.path(way).exists()
    }

    fn path(&self, way: &str) -> PathBuf {
        self.scratch.join(format!("{way}-{}", self.compiler))
    }

    /// Runs a program, and returns its operations per second.
    pub(super) fn rate(&self, way: &str, work: (&str, u64, u64)) -> Result<f64> {
        self.rate_with(way, work, &[])
    }

    pub(super) fn rate_with(&self, way: &str, (work, size, threads): (&str, u64, u64), more: &[&str]) -> Result<f64> {
        // A pool of libpmemobj is in memory, as a live heap is.
        let memory = if way.starts_with("pool") { Some(Scratch::new_in(Path::new("/dev/shm"))?) } else { None };
        let heap = memory.as_ref().map_or(self.dir, Scratch::path).join("heap");
        let milliseconds = if self.run.quick { 20 } else { 400 };
        let mut command = Command::new(self.path(way));
        command.arg(&heap).arg(work).args([size, threads, milliseconds].map(|number| number.to_string()));
        command.args(more).env("LD_LIBRARY_PATH", self.scratch);
        // Its flushes are instructions then, not system calls.
        command.env("PMEM_IS_PMEM_FORCE", "1");
        let output = command.output()?;
        ensure!(output.status.success(), "{way} {work}: {}", String::from_utf8_lossy(&output.stderr));
        if !way.starts_with("plain") && memory.is_none() {
            untorn::offline::eject(&heap, &|_, _| {})?;
            std::fs::remove_file(&heap)?;
        }
        let text = String::from_utf8(output.stdout)?;
        let last = text.lines().last().unwrap_or_default();
        Ok(last.split_whitespace().next().context("no figure")?.parse()?)
    }
}
