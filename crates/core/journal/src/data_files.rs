//! Data files: found, made, changed, and freed of Untorn's marks. Stands on `commits` and `directories`.

pub mod apply;
pub mod create;
pub(crate) mod create_ahead;
pub mod locate;
pub mod strip;
