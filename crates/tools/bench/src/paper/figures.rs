//! The workloads of the papers' figures.

mod appends;
mod attached;
mod databases;
mod device_writes;
mod file_systems;
mod key_value_server;
mod key_values;
mod many_files;
mod msync_pages;
mod recovery;
mod sections;
mod session_programs;
mod two_files;

use crate::paper::measured::Panel;
use crate::paper::setting::Setting;
use anyhow::Result;

type Workload = fn(&Setting<'_>) -> Result<Vec<Panel>>;

pub const WORKLOADS: &[(&str, Workload)] = &[
    ("device-writes", device_writes::measure),
    ("msync-pages", msync_pages::measure),
    ("kv", key_values::of_2013),
    ("kv-2015", key_values::of_2015),
    ("kv-server", key_value_server::measure),
    ("two-files", two_files::latency_and_bytes),
    ("two-files-threads", two_files::threads),
    ("two-files-sizes", two_files::sizes),
    ("two-files-idle", two_files::idle),
    ("two-files-medium", two_files::medium),
    ("databases", databases::times),
    ("database-bytes", databases::bytes),
    ("recovery-sizes", recovery::measure),
    ("append-pages", appends::pages),
    ("syncv-files", appends::files),
    ("file-systems", file_systems::measure),
    ("attached", attached::measure),
    ("unclean-files", many_files::measure),
    ("sections", sections::iterations),
    ("section-programs", sections::programs),
    ("session-postmark", session_programs::postmark),
    ("session-build", session_programs::build),
    ("session-apache", session_programs::apache),
    ("session-database", session_programs::database),
    ("session-server", session_programs::server),
    ("session-web", session_programs::web),
    ("session-eager", session_programs::eager),
];

/// The workload of a name.
pub fn find(name: &str) -> Option<Workload> {
    WORKLOADS.iter().find(|(one, _)| *one == name).map(|(_, workload)| *workload)
}
