//! Finds calls in the text of C and C++ sources.

/// A call, or the use of a class that opens files.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// The line, counted from 1.
    pub line: usize,
    pub name: String,
    /// The text between the parentheses, with comments and literals blanked.
    pub arguments: String,
}

/// Keywords after which a name and a parenthesis are a call, not a declaration.
const BEFORE_CALLS: [&str; 9] = ["return", "else", "do", "case", "throw", "co_return", "co_await", "co_yield", "and"];

/// Classes of C++ that open files.
const CLASSES: [&str; 3] = ["fstream", "ifstream", "ofstream"];

/// Finds all calls by name in a text. Calls of methods (`.`, `->`, `Class::`) do not count.
pub fn calls(text: &str) -> Vec<Call> {
    let text = blank(text);
    let bytes = text.as_bytes();
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < bytes.len() {
        if bytes[at] == b'\n' {
            line += 1;
        }
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && is_word(bytes[at]) {
            at += 1;
        }
        let name = &text[start..at];
        if CLASSES.contains(&name) {
            found.push(Call { line, name: name.to_owned(), arguments: String::new() });
            continue;
        }
        let rest = text[at..].trim_start();
        if rest.starts_with('(') && !name.as_bytes()[0].is_ascii_digit() && is_call(&text[..start]) {
            found.push(Call { line, name: name.to_owned(), arguments: arguments(rest) });
        }
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a name after this text is called, not declared, and not a member.
fn is_call(before: &str) -> bool {
    let before = before.trim_end();
    if before.ends_with("->") || before.ends_with('.') {
        return false;
    }
    if let Some(scope) = before.strip_suffix("::") {
        // `::open` and `std::rename` belong to the C library, `File::open` does not.
        let owner = scope.trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
        return owner.is_empty() || owner == "std" || BEFORE_CALLS.contains(&owner);
    }
    let word = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
    word.is_empty() || BEFORE_CALLS.contains(&word)
}

/// The text between a parenthesis and its closing partner.
fn arguments(from: &str) -> String {
    let mut depth = 0;
    for (at, c) in from.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return from[1..at].to_owned(),
            ')' => depth -= 1,
            _ => {}
        }
    }
    String::new()
}

/// The text with comments and the insides of literals blanked. The line numbers stay the same.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('/', Some('/')) => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            ('/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for c in chars.by_ref() {
                    if c == '\n' {
                        out.push('\n');
                    }
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
                out.push(' ');
            }
            // A quote after a digit separates digits, as in 1'000.
            ('"', _) | ('\'', _) if c == '"' || !before.is_ascii_hexdigit() => {
                out.push(c);
                while let Some(inner) = chars.next() {
                    match inner {
                        '\\' => out.extend(chars.next().filter(|next| *next == '\n')),
                        '\n' => {
                            out.push('\n');
                            break;
                        }
                        inner if inner == c => break,
                        _ => {}
                    }
                }
                out.push(c);
            }
            _ => out.push(c),
        }
        before = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(usize, String)> {
        calls(text).into_iter().map(|call| (call.line, call.name)).collect()
    }

    #[test]
    fn calls_are_found_by_line() {
        let text = "int f(void) {\n  fd = open(\"close(x)\", 0); // read(fd)\n  /* write(\n */ if (pread(fd, b, 1, 0)) return\n close(fd);\n}";
        let found: Vec<_> = names(text).into_iter().filter(|(_, name)| name != "if").collect();
        let expected = [(2, "open"), (4, "pread"), (5, "close")];
        assert_eq!(found, expected.map(|(line, name)| (line, name.to_owned())));
        assert!(names("file->open(x); file.close(); File::open(x); int open(const char *);").is_empty());
        assert_eq!(names("::open(x); std::rename(a, b); 'a' + read(x)").len(), 3);
        assert_eq!(names("std::ofstream out(name);")[0].1, "ofstream");
        assert_eq!(calls("mmap(0, (n), P | MAP_SHARED, fd, 0)")[0].arguments, "0, (n), P | MAP_SHARED, fd, 0");
    }

    #[test]
    fn unfinished_texts_end() {
        for text in ["\"", "'", "/*", "open(", "open((", "a'", "\\", "1'000 + open(x)"] {
            let _ = calls(text);
        }
    }
}
