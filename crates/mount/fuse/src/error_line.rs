//! Formats errors for messages.

/// Formats an error and its causes in one line. Errors of the library already contain their causes, so a part that the
/// line already ends with is left out.
pub fn in_one_line(e: &anyhow::Error) -> String {
    let mut line = String::new();
    for part in e.chain().map(ToString::to_string) {
        if !line.ends_with(&part) {
            line += if line.is_empty() { "" } else { ": " };
            line += &part;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_cause_is_told_once() {
        let source = Arc::new(std::io::Error::from_raw_os_error(libc::EACCES));
        let library = untorn::Error::Io { action: "open", path: "x".into(), source };
        let line = in_one_line(&anyhow::Error::from(library).context("cannot mount"));
        assert_eq!(line, "cannot mount: cannot open x: Permission denied (os error 13)");
    }
}
