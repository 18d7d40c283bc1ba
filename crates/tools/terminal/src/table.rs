//! Tables and amounts for people.

use console::{Alignment, measure_text_width, pad_str};

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with a head and rows of cells. Columns are as wide as needed, with a rule under the head.
pub fn aligned(head: &[String], rows: &[Vec<String>], align: impl Fn(usize) -> Align) -> String {
    let columns = rows.iter().map(Vec::len).fold(head.len(), usize::max);
    let width = |column: usize| {
        let cells = std::iter::once(head).chain(rows.iter().map(Vec::as_slice)).filter_map(|row| row.get(column));
        cells.map(|cell| measure_text_width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &[String]| {
        let padded = row.iter().enumerate().map(|(column, cell)| {
            let side = match align(column) {
                Align::Left => Alignment::Left,
                Align::Right => Alignment::Right,
            };
            pad_str(cell, widths[column], side, None)
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rule = widths.iter().map(|&width| "─".repeat(width)).collect::<Vec<_>>().join("  ");
    format!("{}{rule}\n{}", line(head), rows.iter().map(|row| line(row)).collect::<String>())
}

/// An indented table. Columns in which every cell is a number are aligned to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit());
    let align = |column: usize| match rows.iter().filter_map(|row| row.get(column)).all(number) {
        true => Align::Right,
        false => Align::Left,
    };
    aligned(&head, rows, align).lines().map(|line| format!("  {line}\n")).collect()
}

/// Names and values, one pair in each line.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// A number of bytes with a suitable unit.
pub fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

/// A number with the right form of the noun: `1 file`, `2 files`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = super::table(&["a", "long head"], &[row(["größer", "b"])]);
        assert_eq!(text, "  a       long head\n  ──────  ─────────\n  größer  b\n");
        let text = super::table(&["a", "numbers"], &[row(["b", "5 µs"]), row(["c", "17"])]);
        assert_eq!(text, "  a  numbers\n  ─  ───────\n  b     5 µs\n  c       17\n");
    }
}
