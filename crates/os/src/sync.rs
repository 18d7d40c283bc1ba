//! The durability steps, by name.

macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why something is being made durable. Each step can be taken away by name in the crash
        /// laboratory, which shows which crash then loses data.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Step { $($(#[doc = $doc])+ $name,)+ }
        /// All steps, in the order of their life.
        pub const STEPS: &[Step] = &[$(Step::$name,)+];
        impl Step {
            /// What is made durable, for reports.
            pub fn about(self) -> &'static str {
                match self { $(Step::$name => concat!($($doc),+).trim_ascii_start(),)+ }
            }
        }
    };
}

steps! {
    /// A new store: the header and the first segment, before the journal directory gets its name.
    CreateContents,
    /// A new store: the entries of the new journal directory, before it gets its name.
    CreateEntries,
    /// A new store: the journal directory's name in the store's own directory.
    CreateName,
    /// A new store: the name of the store's own directory in its parent.
    CreateStoreName,
    /// A file's attribute, before the first commit that touches the file.
    Attribute,
    /// The attributes of many files at once, before the first commit that touches them.
    AttributeMany,
    /// A new journal segment: written whole, so that later flushes carry no metadata.
    SegmentContents,
    /// A new journal segment's name.
    SegmentName,
    /// An extent file's contents, before the record that refers to it.
    ExtentContents,
    /// An extent file's name, before the record that refers to it.
    ExtentName,
    /// A commit group: the one flush of a commit.
    Commit,
    /// Data files, applied, before their journal records are given up.
    CheckpointData,
    /// Many data files at once, for the same reason.
    CheckpointMany,
    /// Directories whose entries were changed by applied commits, for the same reason.
    CheckpointNames,
    /// The header that gives journal records up.
    Header,
    /// The header that is no longer clean, before a first record that does not fit where a clean
    /// header says that news would be found.
    HeaderUnclean,
    /// The header that names the boot, before the first commit of class `process`.
    HeaderBoot,
    /// The journal as a killed owner left it in the cache, before recovery believes it.
    RecoverJournal,
    /// Data files whose journal was of class `process`, before they are promised to be durable.
    RecoverData,
    /// A journal set aside for quarantined files: the list of what it still owes.
    HeldContents,
    /// A journal set aside for quarantined files: its new name.
    HeldName,
    /// `eject`: the removal of everything, in the order that keeps a crash in between harmless.
    Eject,
    /// `put`: the new contents, before they get the name.
    PutContents,
    /// `put`: the name.
    PutName,
}
