//! Names of files as text for people.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name as one line, in which control characters, backslashes and bytes that are not UTF-8 are escaped.
///
/// So a name cannot forge a line or move the cursor.
pub fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_name_is_one_line_of_text() {
        let shown = |bytes: &[u8]| shown(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(shown("a b/ü\u{1F980}".as_bytes()), "a b/ü\u{1F980}");
        assert_eq!(shown(b"x\n#9  y\x1b[2K\\\xff\xfe."), r"x\n#9  y\u{1b}[2K\\\xff\xfe.");
    }
}
