//! Small tables for people.

/// Rows of cells, in columns as wide as they need to be; the first row is the head. Columns of numbers
/// stand to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |cell: &String| cell.chars().count();
    let widths: Vec<usize> =
        (0..columns).map(|c| rows.iter().filter_map(|row| row.get(c)).map(wide).max().unwrap_or(0)).collect();
    let numbers: Vec<bool> = (0..columns)
        .map(|c| {
            rows.iter().skip(1).filter_map(|row| row.get(c)).all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
        })
        .collect();
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).zip(&numbers).map(|((cell, &w), number)| match number {
            true => format!("{cell:>w$}"),
            false => format!("{cell:<w$}"),
        });
        text += format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end();
        text.push('\n');
        if n == 0 {
            let rule = widths.iter().map(|&w| "─".repeat(w)).collect::<Vec<_>>().join("  ");
            text += &format!("  {rule}\n");
        }
    }
    text
}

/// Names and values, one pair a line.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// A number of bytes as people read it.
pub fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

/// `1 file`, `2 files`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = super::table(&[row(["a", "long head"]), row(["größer", "b"])]);
        assert_eq!(text, "  a       long head\n  ──────  ─────────\n  größer  b\n");
        let text = super::table(&[row(["a", "numbers"]), row(["b", "5 µs"]), row(["c", "17"])]);
        assert_eq!(text, "  a  numbers\n  ─  ───────\n  b     5 µs\n  c       17\n");
    }
}
