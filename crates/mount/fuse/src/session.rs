//! Runs a program over a plain directory: its mount, and putting its changes back. Stands on `daemon` and
//! `import_export`.

pub(crate) mod put_back;
pub(crate) mod run_on_plain;
pub(crate) mod session_changes;
pub(crate) mod session_dir;
pub(crate) mod session_mount;
