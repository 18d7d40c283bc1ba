//! Relative paths that users give.

use std::path::{Component, Path};

/// Whether a relative path never goes above its start.
pub fn stays_within(path: &Path) -> bool {
    let mut depth = 0i64;
    path.components().all(|part| {
        depth += if part == Component::ParentDir { -1 } else { 1 };
        depth >= 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_goes_above_its_start_is_told_from_one_that_comes_back() {
        assert!(["", "a", "a/..", "a/../b", "a/b/../.."].iter().all(|path| stays_within(path.as_ref())));
        assert!(!["..", "../a", "a/../..", "a/../../a/b"].iter().any(|path| stays_within(path.as_ref())));
    }
}
