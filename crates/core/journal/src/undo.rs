//! Old contents, names and log segments that the owner of a store keeps for readers of older commits.
//!
//! ```text
//! holds    readers lock a range of bytes of the page: the kernel releases it when they end
//! page     four numbers that the owner publishes, and that readers see at once
//! index    all kept data, in the order in which it was published
//! keep     the owner's part: data that a held commit needs is kept before it is overwritten
//! ```

pub mod holds;
pub mod index;
pub mod keep;
mod keep_names;
mod kept;
pub mod kept_links;
pub mod page;
mod taken_over;
