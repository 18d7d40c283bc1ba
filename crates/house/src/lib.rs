//! Rules of Untorn's source that no compiler checks.
//!
//! - Imports run down only: modules of a crate form no circle ([`imports`]), crates depend on those below them, and
//!   the drawing in `docs/ARCHITECTURE.md` names every crate ([`arrows`]).
//! - One file name has one meaning, first lines of doc comments stand alone, errors of the system are compared by
//!   name ([`habits`]).
//! - The public API changes on purpose only ([`listing`]).
//!
//! The tests of this crate hold the workspace to the rules; `cargo run -p untorn-house -- graph` prints who imports
//! what.
//!
//! # Why not `cargo modules dependencies --acyclic`
//!
//! `cargo-modules` would be the tool at hand. Its documentation (0.27) and manifest speak against it here:
//!
//! - It is rust-analyzer as a library (twenty `ra_ap_*` crates, 280 packages in its lock file), needs the newest
//!   Rust, and would take a bare machine with two cores many minutes to build; `syn` takes seconds.
//! - Its graph has an edge for every "owns", and its `--no-uses`, `--no-owns` filter what is printed as well as what
//!   is checked: a re-export in `lib.rs` counts as an import, so each crate with `pub use` has a circle.
//! - It checks one target for each call, stops at the first circle, and names modules, not the imported items.
//!
//! # What is not seen
//!
//! Methods are not paths: `self.flush()` does not tell which file has the `impl` block. A circle of modules that
//! consists of such calls alone is no violation; `graph --calls` shows those that can be guessed. What macros of other crates expand to is not seen either.

pub mod arrows;
pub mod attributes;
pub mod habits;
pub mod imports;
pub mod listing;
pub mod modules;
pub mod paths;
pub mod violations;
