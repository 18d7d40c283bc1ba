//! Slots: consumers outside of the store that need its log, such as one that ships it elsewhere; and the list of epochs,
//! by which a commit is named beyond one store. Stands on `scanning`.

pub mod epochs;
pub mod kept_files;
pub mod slot_dir;
pub mod slot_log;
