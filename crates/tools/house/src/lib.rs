//! Rules for Untorn's source that the compiler does not check.
//!
//! - Imports run down only: modules of a crate form no circle ([`imports`]), and neither do its folders, which
//!   have an order ([`folders`]); crates depend on those below them, and the drawing in `docs/ARCHITECTURE.md` names
//!   every crate ([`arrows`]).
//! - First lines of doc comments stand alone, errors of the system are compared by name ([`habits`]).
//! - Source files are short ([`sizes`]).
//! - The public API changes on purpose only ([`listing`]).
//!
//! The tests of this crate check the rules in the workspace. `cargo run -p untorn-house -- graph` prints all imports.
//!
//! # Why not `cargo modules dependencies --acyclic`
//!
//! `cargo-modules` would be an existing tool. Its manifest and source (0.27) speak against it here:
//!
//! - It is rust-analyzer as a library (fourteen `ra_ap_*` crates directly, 280 packages in its lock file), asks for
//!   Rust 1.95, and would keep a bare machine with two cores busy for many minutes; `syn` takes seconds.
//! - It looks for a circle in the unfiltered graph, in which every name in a module's scope is an import: a re-export
//!   in `lib.rs` closes a circle with each module that uses anything that `lib.rs` defines.
//! - It stops at the first circle, names modules without the items, and checks one target for each call.
//!
//! `cargo-cycles` (0.2) builds in seconds, but sees `use` alone: a path such as `crate::store::Store` in an expression
//! or a type is no import to it.
//!
//! # Limits
//!
//! Methods are not paths: `self.flush()` does not show which file has the `impl` block. A circle of modules that
//! consists of such calls alone is not found; `graph --calls` shows those that can be guessed. The expansion of macros
//! of other crates is not seen either.

pub mod arrows;
pub mod attributes;
pub mod events;
pub mod folders;
pub mod habits;
pub mod imports;
pub mod listing;
pub mod modules;
pub mod paths;
pub mod sizes;
pub mod violations;
